"""Answers graded into scores (spec sections 2 and 3).

A criterion whose votes were undetermined leaves the answer without a score: a
failed judgement is neither met nor unmet.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Protocol

from varl_jax.config import RewardConfig
from varl_jax.roles.grading import Grader
from varl_jax.rubrics import scoring
from varl_jax.types import GradedAnswer, Message, Rollout, Rubric, Verdict

# `GradedAnswer.sample` of answers that no solver wrote.
NO_SAMPLE = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
  """Votes counted over some verdicts."""

  verdicts: int = 0
  undetermined: int = 0
  votes: int = 0
  failures: int = 0

  def __add__(self, other: "Tally") -> "Tally":
    return Tally(
      verdicts=self.verdicts + other.verdicts,
      undetermined=self.undetermined + other.undetermined,
      votes=self.votes + other.votes,
      failures=self.failures + other.failures,
    )

  @property
  def failure_rate(self) -> float:
    """Failed share of the votes asked for, 0 when none was."""
    asked = self.votes + self.failures
    return self.failures / asked if asked else 0.0


def tally(verdicts: Iterable[Verdict]) -> Tally:
  """Counts votes and failures; a verifier's verdict counts as one vote."""
  counts = [0, 0, 0, 0]
  for verdict in verdicts:
    counts[0] += 1
    counts[1] += verdict.met is None
    counts[2] += len(verdict.votes)
    counts[3] += len(verdict.failures)
  return Tally(
    verdicts=counts[0],
    undetermined=counts[1],
    votes=counts[2],
    failures=counts[3],
  )


class AnswerAssessor(Protocol):
  """What grading needs of a method; see `Assessor`."""

  @property
  def grader(self) -> Grader: ...

  async def assess_rollout(
    self,
    prompt: tuple[Message, ...],
    rollout: Rollout,
    rubric: Rubric,
    *,
    op: str,
  ) -> GradedAnswer: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assessor:
  """Grades answers under one reward.

  Attributes:
    grader: verdicts by verifiers and the judge.
    reward: length term and the score of truncated answers.
    seed: the run's seed.
  """

  grader: Grader
  reward: RewardConfig
  seed: int

  async def verdicts(
    self,
    prompt: tuple[Message, ...],
    answer: str,
    rubric: Rubric,
    *,
    strict: bool,
    op: str,
  ) -> tuple[Verdict, ...]:
    """One verdict a criterion."""
    return await self.grader.grade(
      prompt,
      answer,
      rubric,
      strict=strict,
      op=op,
      seed=self.seed,
    )

  async def assess(
    self,
    prompt: tuple[Message, ...],
    answer: str,
    rubric: Rubric,
    *,
    strict: bool,
    op: str,
    sample: int = NO_SAMPLE,
  ) -> GradedAnswer:
    """Grades an answer; its score may lie below zero."""
    verdicts = await self.verdicts(prompt, answer, rubric, strict=strict, op=op)
    return self.scored(rubric, answer, verdicts, sample=sample)

  def scored(
    self,
    rubric: Rubric,
    answer: str,
    verdicts: tuple[Verdict, ...],
    *,
    sample: int = NO_SAMPLE,
  ) -> GradedAnswer:
    """The graded answer for verdicts that are already there."""
    value = scoring.verdict_score(rubric, verdicts)
    score = raw = None
    if value is not None:
      score = scoring.training_score(value, len(answer), self.reward)
      raw = scoring.raw_score(value)
    return GradedAnswer(
      sample=sample, answer=answer, verdicts=verdicts, score=score, raw=raw
    )

  async def assess_rollout(
    self,
    prompt: tuple[Message, ...],
    rollout: Rollout,
    rubric: Rubric,
    *,
    op: str,
  ) -> GradedAnswer:
    """Grades a rollout; one without a final answer is not shown to a judge."""
    if rollout.answer is None:
      graded = GradedAnswer(
        sample=rollout.sample,
        answer=None,
        verdicts=(),
        score=None,
        raw=None,
        truncated=True,
      )
    else:
      graded = await self.assess(
        prompt,
        rollout.answer,
        rubric,
        strict=False,
        op=op,
        sample=rollout.sample,
      )
    return dataclasses.replace(
      graded,
      finish=rollout.finish,
      reasoning_chars=rollout.reasoning_chars,
    )


def score_truncated(
  answers: Sequence[GradedAnswer], reward: RewardConfig
) -> tuple[GradedAnswer, ...]:
  """Gives a group's truncated answers the score the settings ask for."""
  value = scoring.truncated_score(
    reward.truncated_score, [a.score for a in answers if not a.truncated]
  )
  raw = None if value is None else scoring.raw_score(value)
  return tuple(
    dataclasses.replace(a, score=value, raw=raw) if a.truncated else a
    for a in answers
  )


def scores_of(answers: Iterable[GradedAnswer]) -> list[float]:
  """The scores there are."""
  return [a.score for a in answers if a.score is not None]


def mean_of(values: Sequence[float]) -> float | None:
  """The mean, None of nothing."""
  return statistics.fmean(values) if values else None
