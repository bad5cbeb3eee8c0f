"""Grades whole answers: programs where a criterion has one, else the judge."""

import asyncio
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.together import together
from varl_jax.roles.judge import Judge
from varl_jax.rubrics.check_pool import CheckPool, CheckResult
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
    pool: processes that run them, None to run them here.
    concurrency: most judge calls in flight, over all answers of one event
      loop; a criterion's votes run together and count as that many.
  """

  judge: Judge
  checks: CheckRegistry
  pool: CheckPool | None = None
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
      Verdicts in the order of the criteria. A check that cannot be run, hangs
      or breaks leaves its criterion undetermined.

    Raises:
      ChatError: a fatal one only; all other calls have ended by then.
    """
    limit = self._limit()
    checks = [c.check for c in rubric.criteria if c.check is not None]

    async def by_judge(index: int, criterion: Criterion) -> tuple[Verdict, ...]:
      async with limit:
        verdict = await self.judge.judge(
          prompt=prompt,
          answer=answer,
          criterion=criterion,
          strict=strict,
          op=f"{op}/criterion{index}",
          seed=seed,
        )
      return (verdict,)

    checked, *judged = await together(
      [
        self._run_checks(answer, checks),
        *(
          by_judge(index, criterion)
          for index, criterion in enumerate(rubric.criteria)
          if criterion.check is None
        ),
      ]
    )
    by_check, by_vote = iter(checked), iter(judged)
    return tuple(
      next(by_vote)[0] if criterion.check is None else next(by_check)
      for criterion in rubric.criteria
    )

  def close(self) -> None:
    """Ends the verifiers' processes; harmless when repeated."""
    if self.pool is not None:
      self.pool.close()

  async def _run_checks(
    self, answer: str, checks: Sequence[str]
  ) -> tuple[Verdict, ...]:
    if self.pool is not None and checks:
      results = await self.pool.run(answer, checks)
    else:
      results = [_run_check(self.checks, text, answer) for text in checks]
    return tuple(map(_verdict, checks, results))

  def _limit(self) -> asyncio.Semaphore:
    """The semaphore of the running loop; they cannot be shared by loops."""
    loop = asyncio.get_running_loop()
    limit = self._loops.get(loop)
    if limit is None:
      limit = asyncio.Semaphore(max(1, self.concurrency // self.judge.votes))
      self._loops[loop] = limit
    return limit


def _run_check(checks: CheckRegistry, text: str, answer: str) -> CheckResult:
  try:
    return CheckResult(met=checks.run(text, answer))
  except CheckError as error:
    return CheckResult(met=None, failure="malformed", reason=str(error))


def _verdict(text: str, result: CheckResult) -> Verdict:
  if result.met is None:
    return Verdict(
      met=None,
      votes=(),
      explanation=result.reason,
      judge=CHECK,
      failures=(result.failure,),
    )
  return Verdict(
    met=result.met, votes=(result.met,), explanation=text, judge=CHECK
  )
