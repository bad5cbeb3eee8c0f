"""Where an evaluation's answers come from: calls, or a file.

A local checkpoint is one more source, in a module that loads jax.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from varl_jax.benchmarks.answering import Answer, Answerer
from varl_jax.benchmarks.folder import Key
from varl_jax.benchmarks.protocol import BenchmarkTask
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together

Wanted = Sequence[tuple[BenchmarkTask, int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
  """An answer that could not be had this time; `fatal` says why none can."""

  key: Key
  kind: str
  fatal: str = ""


class AnswerSource(Protocol):
  """Where answers come from."""

  def stream(
    self, wanted: Wanted, *, stopped: Callable[[], bool]
  ) -> AsyncIterator[Answer | Failed]:
    """Answers as they come; begins none once `stopped`."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallSource:
  """Answers by calls, `concurrency` at a time."""

  answerer: Answerer
  concurrency: int

  async def stream(
    self, wanted: Wanted, *, stopped: Callable[[], bool]
  ) -> AsyncIterator[Answer | Failed]:
    """See `AnswerSource`."""
    done: asyncio.Queue[Answer | Failed | None] = asyncio.Queue()
    left = iter(wanted)

    async def work() -> None:
      for task, sample in left:
        if stopped():
          return
        try:
          done.put_nowait(await self.answerer.answer(task, sample=sample))
        except ChatError as error:
          key = (task.task_id, sample)
          fatal = str(error) if error.fatal else ""
          done.put_nowait(Failed(key=key, kind=error.kind, fatal=fatal))
          if fatal:
            return

    async def all_work() -> None:
      try:
        await together(work() for _ in range(self.concurrency))
      finally:
        done.put_nowait(None)

    running = asyncio.create_task(all_work())
    try:
      while (found := await done.get()) is not None:
        yield found
      await running
    finally:
      running.cancel()
      await asyncio.gather(running, return_exceptions=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedSource:
  """Answers that are there already."""

  answers: dict[Key, Answer]

  async def stream(
    self, wanted: Wanted, *, stopped: Callable[[], bool]
  ) -> AsyncIterator[Answer | Failed]:
    """See `AnswerSource`; a sample that is not there was not answered."""
    for task, sample in wanted:
      key = (task.task_id, sample)
      empty = Answer(task_id=task.task_id, sample=sample, answer=None)
      yield self.answers.get(key, empty)
