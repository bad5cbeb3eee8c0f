"""The canary: an empty answer, which no sound grader pays for.

A judge that credits it, or a rubric whose verifiers hold of nothing at all,
pays answers for something other than their content. An empty answer may well
score below zero: a trap can be met by saying nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.roles.grading import Grader
from varl_jax.rubrics.scoring import verdict_score
from varl_jax.types import Rubric, Task, Verdict

ANSWER: Final = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canary:
  """The graded empty answer.

  Attributes:
    score: the rubric score without a length term, None when a verdict was
      undetermined: then nothing was learnt and another task should be tried.
    alarm: one sentence when it was paid, else None.
  """

  score: float | None
  alarm: str | None


def canary_alarm(rubric: Rubric, verdicts: Sequence[Verdict]) -> str | None:
  """One sentence naming a criterion that paid an empty answer, or None.

  An undetermined verdict raises no alarm.
  """
  score = verdict_score(rubric, verdicts)
  if score is None or score <= 0:
    return None
  paid, verdict = next(
    (criterion, verdict)
    for criterion, verdict in zip(rubric.criteria, verdicts, strict=True)
    if verdict.met and criterion.points > 0
  )
  return (
    f"An empty answer scored {score:.2f} instead of at most 0: {verdict.judge}"
    f" calls {paid.text[:120]!r} met; check the judge and the rubrics before"
    " trusting any reward."
  )


async def grade_canary(
  grader: Grader, task: Task, *, op: str, seed: int
) -> Canary:
  """Grades an empty answer to `task`, as training answers are graded.

  Args:
    grader: of the run.
    task: with its rubric.
    op: unique name of the operation.
    seed: the run's seed.

  Raises:
    ChatError: a fatal one only.
  """
  verdicts = await grader.grade(
    task.prompt, ANSWER, task.rubric, strict=False, op=op, seed=seed
  )
  return Canary(
    score=verdict_score(task.rubric, verdicts),
    alarm=canary_alarm(task.rubric, verdicts),
  )
