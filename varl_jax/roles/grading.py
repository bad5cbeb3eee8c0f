"""Grades whole answers: programs where a criterion has one, else the judge."""

import asyncio
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Final

from varl_jax.roles.judge import Judge
from varl_jax.rubrics.checks import CheckError, CheckRegistry
from varl_jax.types import Criterion, Message, Rubric, Verdict

# The judge named on a verdict that a program reached.
CHECK: Final = "check"

_Loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grader:
  """One verdict a criterion of a rubric.

  Attributes:
    judge: decides criteria without a check.
    checks: the domain's programs.
    concurrency: most judge calls in flight, over all answers of one event
      loop; a criterion's votes run together and count as that many.
  """

  judge: Judge
  checks: CheckRegistry
  concurrency: int = 32
  _loops: _Loops = dataclasses.field(
    default_factory=weakref.WeakKeyDictionary, repr=False, compare=False
  )

  async def grade(
    self,
    prompt: Sequence[Message],
    answer: str,
    rubric: Rubric,
    *,
    strict: bool,
    op: str,
    seed: int,
  ) -> tuple[Verdict, ...]:
    """Grades one answer.

    Args:
      prompt: the conversation that was answered.
      answer: the final answer.
      rubric: its criteria.
      strict: whether the judge gets the strict note.
      op: unique name of the operation; criteria are `op/criterion0`, ...
      seed: the run's seed.

    Returns:
      Verdicts in the order of the criteria. A check that cannot be run leaves
      its criterion undetermined.

    Raises:
      ChatError: kind `quota` only.
    """
    limit = self._limit()

    async def verdict(index: int, criterion: Criterion) -> Verdict:
      if criterion.check is not None:
        return _run_check(self.checks, criterion.check, answer)
      async with limit:
        return await self.judge.judge(
          prompt=prompt,
          answer=answer,
          criterion=criterion,
          strict=strict,
          op=f"{op}/criterion{index}",
          seed=seed,
        )

    return tuple(
      await asyncio.gather(
        *(
          verdict(index, criterion)
          for index, criterion in enumerate(rubric.criteria)
        )
      )
    )

  def _limit(self) -> asyncio.Semaphore:
    """The semaphore of the running loop; they cannot be shared by loops."""
    loop = asyncio.get_running_loop()
    limit = self._loops.get(loop)
    if limit is None:
      limit = asyncio.Semaphore(max(1, self.concurrency // self.judge.votes))
      self._loops[loop] = limit
    return limit


def _run_check(checks: CheckRegistry, text: str, answer: str) -> Verdict:
  try:
    met = checks.run(text, answer)
  except CheckError as error:
    return Verdict(
      met=None,
      votes=(),
      explanation=str(error),
      judge=CHECK,
      failures=("malformed",),
    )
  return Verdict(met=met, votes=(met,), explanation=text, judge=CHECK)
