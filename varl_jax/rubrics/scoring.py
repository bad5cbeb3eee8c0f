"""From verdicts to a score (paper section 3 and appendix G).

With points p_j and the met criteria M of an answer y:

    r(y)   = sum of p_j over M / sum of the positive p_j
    raw(y) = r clipped to [0, 1]
    s(y)   = r - weight * (len(y) - center) / unit

The length is in characters of the final answer, and `s` is neither clipped nor
bounded. Validation takes the two-sided `s`; training only lets length cost,
never pay.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from varl_jax.types import Rubric, Verdict

LENGTH_WEIGHT: Final = 0.0147
LENGTH_CENTER: Final = 2000
LENGTH_UNIT: Final = 500


class LengthTerm(Protocol):
  """The length settings of a run, as in `config.RewardConfig`."""

  @property
  def length_weight(self) -> float: ...

  @property
  def length_center(self) -> int: ...

  @property
  def length_unit(self) -> int: ...

  @property
  def length_adjusted(self) -> bool: ...


def rubric_score(points: Sequence[float], met: Sequence[bool]) -> float:
  """Earned points over the positive points.

  Args:
    points: one a criterion, negative for mistakes.
    met: whether the answer met each criterion, mistakes included.

  Returns:
    r in (-inf, 1].

  Raises:
    ValueError: no positive criterion, unequal lengths, or an undetermined
      verdict (None), which is neither met nor unmet.
  """
  if len(points) != len(met):
    raise ValueError(f"{len(points)} criteria but {len(met)} verdicts.")
  if any(verdict is None for verdict in met):
    raise ValueError("An undetermined verdict has no score.")
  available = math.fsum(p for p in points if p > 0)
  if not available > 0:
    raise ValueError("A rubric without a positive criterion has no score.")
  return math.fsum(p for p, m in zip(points, met, strict=True) if m) / available


def verdict_score(rubric: Rubric, verdicts: Sequence[Verdict]) -> float | None:
  """`rubric_score` of an answer, or None when a verdict is undetermined.

  Raises:
    ValueError: see `rubric_score`.
  """
  met = [verdict.met for verdict in verdicts]
  known = [value for value in met if value is not None]
  if len(known) < len(met):
    return None
  return rubric_score([item.points for item in rubric.criteria], known)


def by_criterion(
  rubric: Rubric, verdicts: Sequence[Verdict]
) -> tuple[Verdict | None, ...]:
  """A verdict a criterion; None each where an answer was rated as a whole."""
  if len(verdicts) == 1 != len(rubric.criteria):
    return (None,) * len(rubric.criteria)
  return tuple(verdicts)


def met_positive(rubric: Rubric, verdicts: Sequence[Verdict]) -> bool:
  """Whether the answer met any criterion with positive points."""
  pairs = zip(rubric.criteria, verdicts, strict=True)
  return any(item.points > 0 and v.met is True for item, v in pairs)


def raw_score(r: float) -> float:
  """`r` clipped to [0, 1]."""
  return min(1.0, max(0.0, r))


def length_adjusted(
  r: float,
  length: int,
  *,
  one_sided: bool = False,
  weight: float = LENGTH_WEIGHT,
  center: int = LENGTH_CENTER,
  unit: int = LENGTH_UNIT,
) -> float:
  """`r` less the price of length.

  Args:
    r: rubric score.
    length: characters of the final answer.
    one_sided: whether answers shorter than `center` gain nothing.
    weight: price of `unit` characters.
    center: characters that cost nothing.
    unit: characters.
  """
  excess = length - center
  if one_sided:
    excess = max(0, excess)
  return r - weight * excess / unit


def training_score(r: float, length: int, reward: LengthTerm) -> float:
  """The score of training and of probes: one-sided, unclipped.

  Which of the two length terms a probe takes is reconstructed: a probe is there
  to predict training reward, so it takes training's.
  """
  if not reward.length_adjusted:
    return r
  return length_adjusted(
    r,
    length,
    one_sided=True,
    weight=reward.length_weight,
    center=reward.length_center,
    unit=reward.length_unit,
  )


def truncated_score(
  rule: Literal["zero", "group_min", "unscorable"],
  siblings: Sequence[float | None],
) -> float | None:
  """Score of an answer whose reasoning never closed; no length term.

  Args:
    rule: `zero` is the authors' practice; it beats siblings below zero, which
      `group_min` (never above 0) and `unscorable` do not let happen.
    siblings: scores of the group's other answers, None where unscorable.
  """
  if rule == "unscorable":
    return None
  if rule == "group_min":
    return min([0.0, *(score for score in siblings if score is not None)])
  return 0.0


def clipped_mean(scores: Sequence[float]) -> float:
  """The mean of unclipped scores, then clipped to [0, 1].

  Raises:
    ValueError: no scores.
  """
  return raw_score(_mean(scores))


def mean_of_clipped(scores: Sequence[float]) -> float:
  """Each task's score clipped to [0, 1], then the mean.

  Raises:
    ValueError: no scores.
  """
  return _mean([raw_score(score) for score in scores])


def _mean(scores: Sequence[float]) -> float:
  if not scores:
    raise ValueError("No scores to average.")
  return math.fsum(scores) / len(scores)
