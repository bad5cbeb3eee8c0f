"""Work that outlives the request for it.

A caller submits work under a name, asks again and again whether it is done, and
may vanish in between: the work goes on, and whoever submits the same work finds
it. What was already done the service itself knows (`generation_service`).
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

# Finished jobs whose outcome is kept for callers that come back.
KEPT: Final = 16
_EXCLUSIVE: Final = "\0exclusive"


@dataclasses.dataclass(kw_only=True, eq=False)
class Job:
  """One piece of work.

  Attributes:
    name: what is done, the same for the same work.
    call: the caller's own name of its request; a repeated request has the
      same one and gets the outcome there is, a new one starts failed or
      finished work anew.
    done: set when there is an outcome.
    value: what came of it.
    error: what was raised instead.
  """

  name: str
  call: str
  done: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
  value: Any = None
  error: Exception | None = None


class Jobs:
  """Runs jobs, each in a thread: those of one kind one after another.

  A job that is exclusive waits for all before it, and all after it wait.
  """

  def __init__(self):
    self._loop: asyncio.AbstractEventLoop | None = None
    self._last: dict[str, asyncio.Task[None]] = {}
    self._jobs: dict[str, Job] = {}
    self._finished: collections.deque[Job] = collections.deque()
    self._running: set[asyncio.Task[None]] = set()
    self._stopping = asyncio.Event()

  def open(self) -> None:
    """Makes the running loop the one of the jobs."""
    self._loop = asyncio.get_running_loop()

  @property
  def stopping(self) -> bool:
    """Whether `stop` was called; nothing more is taken on."""
    return self._stopping.is_set()

  def submit(
    self,
    name: str,
    call: str,
    work: Callable[[], Any],
    *,
    kind: str = "",
    exclusive: bool = False,
  ) -> Job:
    """Starts work, or finds it where it already goes on.

    Args:
      name: see `Job`.
      call: see `Job`.
      work: may raise.
      kind: waits for earlier work of the same.
      exclusive: waits for all earlier work, and later work for it.
    """
    found = self._jobs.get(name)
    if found is not None and (found.call == call or not found.done.is_set()):
      return found
    job = Job(name=name, call=call)
    self._jobs[name] = job
    before = list(self._running)
    if not exclusive:
      ahead = (self._last.get(kind), self._last.get(_EXCLUSIVE))
      before = [task for task in ahead if task is not None]
    running = asyncio.create_task(self._run(job, work, before))
    self._last[_EXCLUSIVE if exclusive else kind] = running
    self._running.add(running)
    running.add_done_callback(self._running.discard)
    return job

  def find(self, name: str) -> Job | None:
    """The job of that name, None when it is unknown or long finished."""
    return self._jobs.get(name)

  async def wait(self, job: Job, seconds: float) -> None:
    """Returns when the job is done, time is up or the service stops."""
    waits = [
      asyncio.ensure_future(event.wait())
      for event in (job.done, self._stopping)
    ]
    try:
      await asyncio.wait(
        waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
      )
    finally:
      for wait in waits:
        wait.cancel()

  def stop(self) -> None:
    """Wakes all who wait; the service's end then ends the work."""
    self._stopping.set()

  def stop_soon(self) -> None:
    """The same from a signal handler or another thread."""
    if self._loop is None:
      self.stop()
    else:
      self._loop.call_soon_threadsafe(self.stop)

  async def _run(
    self, job: Job, work: Callable[[], Any], before: Sequence[asyncio.Task]
  ) -> None:
    if before:
      await asyncio.wait(before)
    if self.stopping:
      return
    outcome = await asyncio.to_thread(_outcome, work)
    if outcome is None:
      return  # the service was closed under it; nobody is told an outcome
    job.value, job.error = outcome
    job.done.set()
    self._forget(job)

  def _forget(self, job: Job) -> None:
    """Drops the oldest outcomes."""
    self._finished.append(job)
    while len(self._finished) > KEPT:
      old = self._finished.popleft()
      if self._jobs.get(old.name) is old:
        del self._jobs[old.name]


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None] | None:
  """The value or the error of some work, None when it was cut off."""
  try:
    return work(), None
  except concurrent.futures.CancelledError:
    return None
  except Exception as error:  # noqa: BLE001 - whoever asked for it raises it
    return None, error
