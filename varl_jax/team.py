"""The processes of one run on several hosts, and what process 0 tells them.

All processes run the same loop, because a program on a mesh needs every one of
them. What is not computed on the mesh - tasks, verdicts, whether to stop - is
done by process 0 alone and sent to the others over a TCP line of its own, as
JSON. No collective waits meanwhile, however long a judge takes.

The line also tells who is left. A process that ends without a word closes it,
and all others end at once, with one sentence: their programs would wait for it
for ever. They may be inside such a program, so the thread that notices ends
the process; whatever moment that is, the run can go on from its checkpoint.
"""

import hmac
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from varl_jax.run_folder import RunError
from varl_jax.types import to_json

Value = TypeVar("Value")
Frame = dict[str, Any]

# Exit code of a process that lost another one; what was saved is kept.
LOST: Final = 3
# How long the others may take to connect, and to follow process 0 to the end.
PATIENCE_S: Final = 300.0
# A host that vanishes closes nothing: it is gone after about a minute.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# Within which a process that is gone is noticed, where its host is not.
_NOTICED_S: Final = 5.0
# How long processes that are told to end may take.
_ENDED_S: Final = 10.0
_SIZE: Final = struct.Struct(">I")


class TeamError(RunError):
  """Processes that cannot work together; one sentence with the mend."""


class Team(Protocol):
  """The processes of a run as one of them sees them."""

  @property
  def index(self) -> int: ...

  @property
  def count(self) -> int: ...

  def share(
    self,
    name: str,
    compute: Callable[[], Value],
    read: Callable[[Any], Value] = lambda found: found,
  ) -> Value:
    """What process 0 computes, on every process.

    All processes share the same things in the same order.

    Args:
      name: of what is shared; the others check that it is what they want.
      compute: called in process 0 alone; a failure of a known kind is raised
        in every process.
      read: from the value as JSON (`types.to_json`) to the value.
    """
    ...

  def ask_stop(self) -> None:
    """Tells process 0 that this process was asked to stop."""
    ...

  def stop_asked(self) -> bool:
    """In process 0: whether another one was asked to stop."""
    ...

  def leave(self, code: int, *, together: bool) -> int:
    """Ends the work with the others.

    Args:
      code: this process's exit code.
      together: whether the others come to their end too, by themselves; they
        are ended otherwise.

    Returns:
      The code; the process ends here where the others did not follow.
    """
    ...


class Alone:
  """A run of one process."""

  index = 0
  count = 1

  def share(
    self,
    name: str,
    compute: Callable[[], Value],
    read: Callable[[Any], Value] = lambda found: found,
  ) -> Value:
    del name, read
    return compute()

  def ask_stop(self) -> None:
    pass

  def stop_asked(self) -> bool:
    return False

  def leave(self, code: int, *, together: bool) -> int:
    del together
    return code


class First:
  """Process 0: works for all and tells the others.

  Args:
    count: processes of the run.
    failures: kinds of failures that every process is told of, by name, those
      of a subclass before their base.
    loopback: whether all processes are on this machine.
  """

  index = 0

  def __init__(
    self,
    count: int,
    *,
    failures: Mapping[str, type[Exception]],
    loopback: bool = False,
  ):
    self.count = count
    self.token = os.urandom(16).hex()
    self._failures = failures
    self._server = _listen(loopback)
    self.port: int = self._server.getsockname()[1]
    self._others: dict[int, socket.socket] = {}
    self._watchers: list[threading.Thread] = []
    self._left: set[int] = set()
    self._stop = threading.Event()
    self._closing = threading.Event()
    self._writing = threading.Lock()

  def accept(self, digest: str, *, patience_s: float = PATIENCE_S) -> None:
    """Waits for the others.

    Args:
      digest: of the settings, which all share.
      patience_s: for all of them.

    Raises:
      TeamError: one does not come, or has other settings.
    """
    self._server.settimeout(patience_s)
    while len(self._others) < self.count - 1:
      try:
        line, _ = self._server.accept()
      except TimeoutError as error:
        missing = sorted({*range(1, self.count)} - set(self._others))
        raise TeamError(
          f"Process {missing[0]} of {self.count} did not connect within"
          f" {patience_s:.0f} seconds; start all processes together."
        ) from error
      self._welcome(line, digest)
    self._server.close()
    for index, line in self._others.items():
      watcher = threading.Thread(
        target=self._watch, args=(index, line), daemon=True
      )
      self._watchers.append(watcher)
      watcher.start()

  def share(
    self,
    name: str,
    compute: Callable[[], Value],
    read: Callable[[Any], Value] = lambda found: found,
  ) -> Value:
    del read
    try:
      value = compute()
    except Exception as error:
      known = _pack_failure(error, self._failures)
      if known is not None:
        self._send({"name": name, "failure": known})
      raise
    self._send({"name": name, "value": to_json(value)})
    return value

  def ask_stop(self) -> None:
    pass

  def stop_asked(self) -> bool:
    return self._stop.is_set()

  def leave(self, code: int, *, together: bool) -> int:
    self._closing.set()
    self._send({"end": code, "together": together})
    for watcher in self._watchers:
      watcher.join(PATIENCE_S if together else _ENDED_S)
    if not together or len(self._left) < self.count - 1:
      _exit(code)
    self.close()
    return code

  def close(self) -> None:
    """Closes the lines; who does not expect it ends."""
    for line in (self._server, *self._others.values()):
      line.close()

  def _welcome(self, line: socket.socket, digest: str) -> None:
    """Takes in who has the token; others are none of ours."""
    line.settimeout(10.0)
    hello = next(_frames(line), {})
    if not hmac.compare_digest(str(hello.get("token")), self.token):
      line.close()
      return
    index = hello["index"]
    problem = ""
    if index in self._others or not 1 <= index < self.count:
      problem = f"There is no place for a process {index} of {self.count}."
    elif hello["digest"] != digest:
      problem = (
        f"Process {index} has other settings than process 0; start all with"
        " the same command."
      )
    _write(line, {"refused": problem})
    if problem:
      line.close()
      raise TeamError(problem)
    line.settimeout(None)
    _keep_alive(line)
    self._others[index] = line

  def _watch(self, index: int, line: socket.socket) -> None:
    for frame in _frames(line):
      if "stop" in frame:
        self._stop.set()
      elif "left" in frame:
        self._left.add(index)
        return
      elif "failed" in frame:
        self._lose(index, f"ended with exit code {frame['failed']}")
    if not self._closing.is_set():
      self._lose(index, "is gone")

  def _lose(self, index: int, how: str) -> NoReturn:
    self._closing.set()
    self._send({"lost": index, "how": how}, patience_s=2.0)
    _end(_lost(index, self.count, how), LOST)

  def _send(self, frame: Frame, *, patience_s: float = -1) -> None:
    """Tells all; does without the lock's order where it has to be short."""
    held = self._writing.acquire(timeout=patience_s)
    try:
      for line in self._others.values():
        try:
          _write(line, frame)
        except OSError:
          continue  # its watcher notices, and says so
    finally:
      if held:
        self._writing.release()


class Other:
  """A process that is told.

  Args:
    index: of this process, 1 or above.
    count: processes of the run.
    failures: see `First`.
  """

  def __init__(
    self,
    index: int,
    count: int,
    *,
    failures: Mapping[str, type[Exception]],
  ):
    self.index = index
    self.count = count
    self._failures = failures
    self._told: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    self._leaving = threading.Event()
    self._ended = threading.Event()
    self._line: socket.socket | None = None

  def connect(
    self,
    hosts: Sequence[str],
    port: int,
    *,
    token: str,
    digest: str,
    patience_s: float = 10.0,
  ) -> None:
    """Connects to process 0.

    Args:
      hosts: addresses that it may have, tried in turn.
      port: where it listens.
      token: that it knows this run by.
      digest: of the settings.
      patience_s: for each address.

    Raises:
      TeamError: no address answers, or process 0 refuses.
    """
    hello = {"token": token, "index": self.index, "digest": digest}
    for host in dict.fromkeys(hosts):
      try:
        line = socket.create_connection((host, port), timeout=patience_s)
      except OSError:
        continue
      reply = _asked(line, hello)
      if reply is None or reply["refused"]:
        line.close()
      if reply is None:
        continue
      if reply["refused"]:
        raise TeamError(reply["refused"])
      line.settimeout(None)
      _keep_alive(line)
      self._line = line
      threading.Thread(target=self._listen, args=(line,), daemon=True).start()
      return
    raise TeamError(
      f"Process {self.index} cannot reach process 0 at {', '.join(hosts)}, port"
      f" {port}; open the ports between the hosts of a run."
    )

  def share(
    self,
    name: str,
    compute: Callable[[], Value],
    read: Callable[[Any], Value] = lambda found: found,
  ) -> Value:
    del compute
    frame = self._told.get()
    if frame["name"] != name:
      raise TeamError(
        f"Process {self.index} waits for {name!r} and process 0 sends"
        f" {frame['name']!r}; run the same version and settings everywhere."
      )
    if "failure" in frame:
      raise _unpack_failure(frame["failure"], self._failures)
    return read(frame["value"])

  def ask_stop(self) -> None:
    self._tell({"stop": True})

  def stop_asked(self) -> bool:
    return False

  def leave(self, code: int, *, together: bool) -> int:
    self._leaving.set()
    if not together:
      self._tell({"failed": code})
      _exit(code)
    self._ended.wait()
    self._tell({"left": code})
    self.close()
    return code

  def close(self) -> None:
    """Closes the line."""
    if self._line is not None:
      self._line.close()

  def _listen(self, line: socket.socket) -> None:
    for frame in _frames(line):
      if "lost" in frame:
        _end(_lost(frame["lost"], self.count, frame["how"]), LOST)
      if "end" in frame:
        if not frame["together"] or not self._leaving.wait(PATIENCE_S):
          _end(
            f"Process 0 ended the run with exit code {frame['end']}, and says"
            " why.",
            frame["end"],
          )
        self._ended.set()
        return
      self._told.put(frame)
    if not self._ended.is_set():
      _end(_lost(0, self.count, "is gone"), LOST)

  def _tell(self, frame: Frame) -> None:
    assert self._line is not None
    try:
      _write(self._line, frame)
    except OSError:
      return  # process 0 is gone, which the listening thread says


def crash(team: Team) -> None:
  """Ends the process over the error being handled, in a team.

  It may come of another process that is gone, which is noticed meanwhile and
  ends this one with a sentence. A run of one process has nothing to wait for.
  """
  if team.count == 1:
    return
  time.sleep(_NOTICED_S)
  traceback.print_exc()
  team.leave(1, together=False)


def _lost(index: int, count: int, how: str) -> str:
  return (
    f"Process {index} of {count} {how}, so this one ends too; start all again"
    " with the same command to go on from the last checkpoint."
  )


def _end(sentence: str, code: int) -> NoReturn:
  """Says why the process ends, and ends it from any thread."""
  cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
  os.write(2, f"{cursor}varl_jax: {sentence}\n".encode())
  _exit(code)


def _exit(code: int) -> NoReturn:
  """Ends without the exit handlers, which would wait for the others."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _listen(loopback: bool) -> socket.socket:
  if loopback:
    return socket.create_server(("127.0.0.1", 0))
  both = socket.has_dualstack_ipv6()
  return socket.create_server(
    ("", 0),
    family=socket.AF_INET6 if both else socket.AF_INET,
    dualstack_ipv6=both,
  )


def _keep_alive(line: socket.socket) -> None:
  line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in _KEEPALIVE.items():
    if hasattr(socket, name):  # not on every system
      line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _write(line: socket.socket, frame: Frame) -> None:
  data = json.dumps(frame, default=_plain).encode()
  line.sendall(_SIZE.pack(len(data)) + data)


def _asked(line: socket.socket, frame: Frame) -> Frame | None:
  """The answer of the other side, None when it hangs up."""
  try:
    _write(line, frame)
    return next(_frames(line), None)
  except OSError:
    return None


def _plain(value: Any) -> Any:
  """Numbers of numpy and jax."""
  return value.item()


def _frames(line: socket.socket) -> Iterator[Frame]:
  """What comes in; ends when the other side is gone."""
  while True:
    head = _exactly(line, _SIZE.size)
    if head is None:
      return
    body = _exactly(line, _SIZE.unpack(head)[0])
    if body is None:
      return
    yield json.loads(body)


def _exactly(line: socket.socket, size: int) -> bytes | None:
  data = bytearray()
  while len(data) < size:
    try:
      piece = line.recv(min(size - len(data), 1 << 20))
    except OSError:
      return None
    if not piece:
      return None
    data += piece
  return bytes(data)


def _pack_failure(
  error: Exception, kinds: Mapping[str, type[Exception]]
) -> list[str] | None:
  """The kind of a failure, its sentence and the kind of its cause."""

  def kind(found: BaseException | None) -> str:
    return next((n for n, k in kinds.items() if isinstance(found, k)), "")

  name = kind(error)
  return [name, str(error), kind(error.__cause__)] if name else None


def _unpack_failure(
  packed: Sequence[str], kinds: Mapping[str, type[Exception]]
) -> Exception:
  name, sentence, cause = packed
  error = kinds[name](sentence)
  if cause:
    error.__cause__ = kinds[cause](sentence)
  return error
