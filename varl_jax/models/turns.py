"""Whose turn the device is, where several threads use one."""

import collections
import threading
from types import TracebackType


class Turns:
  """A lock that is given in the order in which it was asked for.

    with turns:
      ...  # one dispatch to the device and its result

  A plain lock may go to the same thread over and over. A turn is short (a
  segment of decoding, an update) and nobody waits for anything else within one,
  so all come to theirs.
  """

  def __init__(self):
    self._inside = threading.Lock()
    self._busy = False
    self._line: collections.deque[threading.Event] = collections.deque()

  @property
  def waiting(self) -> int:
    """Threads in the line."""
    return len(self._line)

  def __enter__(self) -> "Turns":
    with self._inside:
      if not self._busy:
        self._busy = True
        return self
      mine = threading.Event()
      self._line.append(mine)
    mine.wait()  # handed over by the one before, still busy
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    with self._inside:
      if self._line:
        self._line.popleft().set()
      else:
        self._busy = False
