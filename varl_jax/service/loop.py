"""An asyncio loop in a thread of its own, behind blocking calls.

The trainer is synchronous and the roles are not; work left running between two
calls (admissions in the background) goes on in the loop's thread. All state is
touched in that thread only, so there are no locks.
"""

import asyncio
import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from varl_jax.service.calls import Stopped

Value = TypeVar("Value")

# Seconds between two looks at how late the loop is.
LAG_INTERVAL: Final = 0.05
# And between two looks at whether to give work up.
LOOK_INTERVAL: Final = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopLag:
  """How late timers of the loop fired, in seconds.

  A late timer means that something computed for that long instead of waiting,
  and kept every other call from going on.
  """

  longest: float = 0.0
  total: float = 0.0
  count: int = 0

  @property
  def mean(self) -> float:
    """Over all timers, 0 when none fired."""
    return self.total / self.count if self.count else 0.0

  def plus(self, late: float) -> "LoopLag":
    """With one more timer."""
    return LoopLag(
      longest=max(self.longest, late),
      total=self.total + late,
      count=self.count + 1,
    )


class LoopThread:
  """Runs coroutines; `close` cancels what is left."""

  def __init__(self, name: str):
    self._lag = LoopLag()
    self._asked: Callable[[], bool] | None = None
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._loop.run_forever, name=name, daemon=True
    )
    self._thread.start()
    self._watch = asyncio.run_coroutine_threadsafe(
      self._watch_lag(), self._loop
    )

  @property
  def closed(self) -> bool:
    """Whether `close` has run."""
    return self._loop.is_closed()

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """Lets `run` cancel work that is under way when `asked` says so."""
    self._asked = asked

  def run(self, work: Coroutine[Any, Any, Value]) -> Value:
    """Waits for `work` in the loop; its errors are raised here.

    Raises:
      Stopped: it was given up and is cancelled.
    """
    if self._loop.is_closed():
      work.close()
      raise RuntimeError("The service is closed.")
    running = asyncio.run_coroutine_threadsafe(work, self._loop)
    asked = self._asked
    if asked is not None:
      # A signal is only taken note of between two waits.
      while not concurrent.futures.wait([running], LOOK_INTERVAL).done:
        if asked():
          running.cancel()
          raise Stopped("Stopped while waiting for a model's server.")
    return running.result()

  def take_lag(self) -> LoopLag:
    """The lag since the last call of this."""
    return self.run(self._take_lag())

  def close(self) -> None:
    """Cancels all tasks and ends the thread; harmless when repeated."""
    if self._loop.is_closed():
      return
    self.run(_cancel_others())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  async def _watch_lag(self) -> None:
    while True:
      due = self._loop.time() + LAG_INTERVAL
      await asyncio.sleep(LAG_INTERVAL)
      self._lag = self._lag.plus(max(0.0, self._loop.time() - due))

  async def _take_lag(self) -> LoopLag:
    taken, self._lag = self._lag, LoopLag()
    return taken


async def _cancel_others() -> None:
  others = asyncio.all_tasks() - {asyncio.current_task()}
  for task in others:
    task.cancel()
  await asyncio.gather(*others, return_exceptions=True)
