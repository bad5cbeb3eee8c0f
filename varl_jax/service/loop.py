"""An asyncio loop in a thread of its own, behind blocking calls.

The trainer is synchronous and the roles are not; work left running between two
calls (admissions in the background) goes on in the loop's thread. All state is
touched in that thread only, so there are no locks.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class LoopThread:
  """Runs coroutines; `close` cancels what is left."""

  def __init__(self, name: str):
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._loop.run_forever, name=name, daemon=True
    )
    self._thread.start()

  @property
  def closed(self) -> bool:
    """Whether `close` has run."""
    return self._loop.is_closed()

  def run(self, work: Coroutine[Any, Any, Value]) -> Value:
    """Waits for `work` in the loop; its errors are raised here."""
    if self._loop.is_closed():
      work.close()
      raise RuntimeError("The service is closed.")
    return asyncio.run_coroutine_threadsafe(work, self._loop).result()

  def close(self) -> None:
    """Cancels all tasks and ends the thread; harmless when repeated."""
    if self._loop.is_closed():
      return
    self.run(_cancel_others())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()


async def _cancel_others() -> None:
  others = asyncio.all_tasks() - {asyncio.current_task()}
  for task in others:
    task.cancel()
  await asyncio.gather(*others, return_exceptions=True)
