"""Which proposed criteria a repair may add (paper appendix C); pure logic.

A criterion is looked at twice: by its form, before any model is asked
(`form_problem`), and by its verdicts on the pair (`verdict_problem`). Both
return "" or one of `REASONS`, so that rejections can be counted.
"""

from collections.abc import Sequence
from typing import Final

from varl_jax.config import PatchConfig
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.similarity import trigram_overlap
from varl_jax.rubrics.validation import (
  MAX_PATCHED_CRITERIA,
  criterion_problems,
)
from varl_jax.types import Criterion, Rubric, Verdict

TOLERANCE: Final = 1e-9

REASONS: Final = (
  "over_limit",
  "length",
  "points",
  "invalid",
  "check",
  "rubric_full",
  "overlap",
  "gap_removed",
  "undetermined",
  "negative_not_on_exploit",
  "negative_on_honest",
  "negative_on_cached",
  "positive_not_on_honest",
  "positive_on_exploit",
)


def form_problem(
  criterion: Criterion,
  rubric: Rubric,
  config: PatchConfig,
  checks: CheckRegistry,
) -> str:
  """The first reason against adding `criterion` that needs no verdict.

  Args:
    criterion: proposed.
    rubric: the rubric to repair.
    config: thresholds.
    checks: verifiers there are.
  """
  if not config.min_chars <= len(criterion.text) <= config.max_chars:
    return "length"
  if not config.min_points <= abs(criterion.points) <= config.max_points:
    return "points"
  if criterion_problems(criterion):
    return "invalid"
  if criterion.check is not None and checks.problems(criterion.check):
    return "check"
  crowded = growth_problem(criterion, rubric, config)
  if crowded:
    return crowded
  if gap_removed(criterion, rubric) < config.min_gap_removed - TOLERANCE:
    return "gap_removed"
  return ""


def growth_problem(
  criterion: Criterion, rubric: Rubric, config: PatchConfig
) -> str:
  """The reasons that depend on what the rubric already holds."""
  if len(rubric.criteria) >= MAX_PATCHED_CRITERIA:
    return "rubric_full"
  overlaps = (
    trigram_overlap(criterion.text, item.text) for item in rubric.criteria
  )
  if any(overlap >= config.max_overlap for overlap in overlaps):
    return "overlap"
  return ""


def gap_removed(criterion: Criterion, rubric: Rubric) -> float:
  """|p| over the rubric's positive points: the lead this criterion takes.

  The denominator is the rubric's before the addition, the one the pair's gap
  was measured with.
  """
  available = sum(c.points for c in rubric.criteria if c.points > 0)
  return abs(criterion.points) / available if available else 0.0


def verdict_problem(
  criterion: Criterion,
  on_exploit: Verdict,
  on_honest: Verdict,
  on_cached: Verdict | None,
) -> str:
  """The first reason in the verdicts against adding `criterion`.

  Args:
    criterion: proposed.
    on_exploit: on the overpaid answer.
    on_honest: on the better answer.
    on_cached: of a negative, on the honest answer of admission; None without
      one.
  """
  asked: Sequence[Verdict | None] = (on_exploit, on_honest, on_cached)
  if any(verdict is not None and verdict.met is None for verdict in asked):
    return "undetermined"
  if criterion.points > 0:
    if not on_honest.met:
      return "positive_not_on_honest"
    return "positive_on_exploit" if on_exploit.met else ""
  if not on_exploit.met:
    return "negative_not_on_exploit"
  if on_honest.met:
    return "negative_on_honest"
  if on_cached is not None and on_cached.met:
    return "negative_on_cached"
  return ""
