"""Whether a new task survives its adversary (paper appendix C); pure logic.

A probe grades an exploit and an honest answer under the strict note. Its margin
is D = exploit score - honest score. The order of the tests is reconstructed: an
adversary that earned nothing measured nothing, so that comes first; then the
honest band, since a task nobody can do or everybody can has no use for a
margin; then the margin.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, Literal, TypeGuard

from varl_jax.rubrics.validation import (
  MAX_PATCHED_CRITERIA,
  criterion_problems,
)
from varl_jax.types import Criterion, Rubric

TOLERANCE: Final = 1e-9
# A rewrite is salvaged: points pulled into this range, and no more criteria
# added than this. The repairer's prompt asks for fewer than the code allows.
SALVAGE_MIN_POINTS: Final = 5
SALVAGE_MAX_POINTS: Final = 10
SALVAGE_MAX_ADDED: Final = 4
PROMPT_MAX_ADDED: Final = 3

Outcome = Literal[
  "pass", "exploitable", "saturated", "unsatisfiable", "discarded", "unusable"
]
REPAIRABLE: Final = ("exploitable", "saturated", "unsatisfiable")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
  """One measurement of a task and rubric.

  Attributes:
    exploit_score: length-adjusted and unclipped, None when not measured.
    honest_score: likewise.
    exploit_met_positive: whether the exploit met any positive criterion.
  """

  exploit_score: float | None
  honest_score: float | None
  exploit_met_positive: bool = True

  @property
  def margin(self) -> float | None:
    """D, or None when this probe measured nothing."""
    exploit, honest = self.exploit_score, self.honest_score
    if not _known(exploit) or not _known(honest):
      return None
    if not self.exploit_met_positive:
      return None
    return exploit - honest


def probe_outcome(
  exploit_score: float | None,
  honest_score: float | None,
  *,
  exploit_met_positive: bool = True,
  margin: float = 0.20,
  honest_low: float = 0.15,
  honest_high: float = 0.92,
) -> Outcome:
  """Names what a probe found.

  Args:
    exploit_score: None when generation or grading failed.
    honest_score: likewise.
    exploit_met_positive: whether the exploit earned any points.
    margin: delta, how far the exploit has to stay behind.
    honest_low: least honest score.
    honest_high: largest honest score.

  Returns:
    `pass` when D <= -margin and the honest score is in its band (both ends
    included); `exploitable`, `saturated` or `unsatisfiable` for tasks to
    repair; `discarded` or `unusable` for probes that say nothing.
  """
  if not _known(exploit_score) or not _known(honest_score):
    return "unusable"
  if not exploit_met_positive:
    return "discarded"
  if honest_score > honest_high + TOLERANCE:
    return "saturated"
  if honest_score < honest_low - TOLERANCE:
    return "unsatisfiable"
  if exploit_score - honest_score > -margin + TOLERANCE:
    return "exploitable"
  return "pass"


def rewrite_accepted(
  before: Probe,
  after: Probe,
  *,
  min_drop: float = 0.15,
  honest_low: float = 0.15,
  honest_high: float = 0.92,
) -> bool:
  """Whether a rewrite clears the bar, by a fresh probe of it.

  Args:
    before: probe of the task it would replace.
    after: probe of the rewrite.
    min_drop: how much D has to fall.
    honest_low: least honest score after.
    honest_high: largest honest score after.
  """
  drop = _drop(before, after, honest_low, honest_high)
  return drop is not None and drop >= min_drop - TOLERANCE


def choose_rewrite(
  before: Probe,
  rounds: Sequence[Probe],
  *,
  honest_low: float = 0.15,
  honest_high: float = 0.92,
) -> int | None:
  """The round whose rewrite is adopted, None to keep the task as it was.

  The largest drop of D among rewrites with the honest score in its band, as
  long as D fell at all. A rewrite that clears the bar (`rewrite_accepted`) is
  among these, so the same choice serves both rules.

  Args:
    before: probe of the original task; every drop is measured from it.
    rounds: a fresh probe of each round's rewrite, in order.
    honest_low: least honest score.
    honest_high: largest honest score.
  """
  best, best_drop = None, TOLERANCE
  for index, after in enumerate(rounds):
    drop = _drop(before, after, honest_low, honest_high)
    if drop is not None and drop > best_drop + TOLERANCE:
      best, best_drop = index, drop
  return best


def salvage(
  rubric: Rubric,
  proposed: Sequence[Criterion],
  *,
  max_positives: int | None = None,
) -> Rubric:
  """Makes a usable rubric of a repairer's proposal.

  Points are pulled into +-[5, 10], criteria that are unusable by themselves
  left out, and the growth is cut to `SALVAGE_MAX_ADDED`, keeping the order and
  at least one positive.

  Args:
    rubric: the rubric to replace.
    proposed: the whole proposed rubric.
    max_positives: further positive criteria are left out; None for no limit.

  Returns:
    The next version; `validation.rubric_problems` tells whether it is fit.
  """
  usable = []
  for criterion in proposed:
    if math.isnan(criterion.points) or criterion.points == 0:
      continue
    clamped = dataclasses.replace(
      criterion, points=_clamp(criterion.points), source="admission"
    )
    if not criterion_problems(clamped):
      usable.append(clamped)
  if max_positives is not None:
    positives = [item for item in usable if item.points > 0]
    extra = positives[max_positives:]
    usable = [item for item in usable if item not in extra]
  most = min(len(rubric.criteria) + SALVAGE_MAX_ADDED, MAX_PATCHED_CRITERIA)
  kept, cut = usable[:most], usable[most:]
  rescued = [item for item in cut if item.points > 0]
  if rescued and not any(item.points > 0 for item in kept):
    kept[-1] = rescued[0]
  return Rubric(criteria=tuple(kept), version=rubric.version + 1)


def _clamp(points: float) -> float:
  size = min(SALVAGE_MAX_POINTS, max(SALVAGE_MIN_POINTS, abs(points)))
  return math.copysign(size, points)


def _known(score: float | None) -> TypeGuard[float]:
  return score is not None and math.isfinite(score)


def _drop(
  before: Probe, after: Probe, honest_low: float, honest_high: float
) -> float | None:
  """How much D fell; None when unmeasured or the honest score left its band."""
  if before.margin is None or after.margin is None:
    return None
  assert after.honest_score is not None
  low, high = honest_low - TOLERANCE, honest_high + TOLERANCE
  if not low <= after.honest_score <= high:
    return None
  return before.margin - after.margin
