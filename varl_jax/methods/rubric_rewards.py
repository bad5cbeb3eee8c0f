"""EvoRubrics: what answers and rubric sets earn from one another.

M answers to a prompt are graded under N rubric sets (arXiv 2606.23038). An
answer's score under a set is the share of the way from the set's worst possible
total to its best. A policy's reward for an answer is the mean of its scores
over the sets that parsed; the generator's reward for a set is the mean of the
parts that were measured, or -1 for a set that did not parse.

Reconstructed: distances are one less the cosine similarity, halved so that they
lie in [0, 1]; a gain in score that is negative stays negative.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

UNPARSABLE: Final = -1.0


def set_score(points: Sequence[float], met: Sequence[bool]) -> float:
  """(total - worst) / (best - worst), in [0, 1].

  Args:
    points: one an item, negative for mistakes; not all 0.
    met: whether the answer met each.

  Raises:
    ValueError: unequal lengths, or nothing to earn or to lose.
  """
  total = math.fsum(p for p, m in zip(points, met, strict=True) if m)
  worst = math.fsum(p for p in points if p < 0)
  best = math.fsum(p for p in points if p > 0)
  if not best > worst:
    raise ValueError("A rubric set in which nothing counts has no score.")
  return min(1.0, max(0.0, (total - worst) / (best - worst)))


def centred(score: float) -> float:
  """A score of [0, 1] on the scale [-1, 1]."""
  return 2 * score - 1


def policy_reward(scores: Sequence[float | None]) -> float | None:
  """An answer's mean score over sets; None for a set that did not parse.

  Returns:
    The mean, or None when no set parsed.
  """
  known = [score for score in scores if score is not None]
  return statistics.fmean(known) if known else None


def discrimination(scores: Sequence[float]) -> float:
  """How far a set tells answers apart: the standard deviation over them.

  Of the population, as the answers are all there are; 0 for a single one.

  Raises:
    ValueError: no scores.
  """
  if not scores:
    raise ValueError("A set that graded no answer tells nothing apart.")
  return statistics.pstdev(scores)


def similarity(one: Sequence[float], two: Sequence[float]) -> float:
  """Cosine of two embeddings, moved from [-1, 1] onto [0, 1].

  Raises:
    ValueError: unequal lengths, or an embedding of length 0.
  """
  product = math.fsum(a * b for a, b in zip(one, two, strict=True))
  lengths = math.hypot(*one) * math.hypot(*two)
  if not lengths:
    raise ValueError("An embedding of length 0 has no direction.")
  return (1 + product / lengths) / 2


def diversity(
  own: Sequence[float], others: Sequence[Sequence[float]]
) -> float | None:
  """Mean distance of a set's embedding to those of its siblings, in [0, 1].

  Returns:
    The distance, None without siblings.
  """
  if not others:
    return None
  return statistics.fmean(1 - similarity(own, other) for other in others)


def reflection(before: float, after: float) -> float:
  """What an answer gained by being revised with the set, in [-1, 1]."""
  return after - before


def generator_reward(
  *,
  parsed: bool,
  reference: float | None = None,
  discrimination: float | None = None,
  diversity: float | None = None,
  reflect: float | None = None,
) -> float:
  """The mean of a set's parts.

  Args:
    parsed: whether the set could be read.
    reference: similarity to a reference rubric, None where there is none.
    discrimination: see `discrimination`; None where nothing was graded.
    diversity: see `diversity`.
    reflect: see `reflection`; None where no answer was revised.

  Raises:
    ValueError: a set that parsed, of which no part was measured.
  """
  if not parsed:
    return UNPARSABLE
  parts = (reference, discrimination, diversity, reflect)
  known = [part for part in parts if part is not None]
  if not known:
    raise ValueError(
      "A rubric set of which nothing was measured has no reward."
    )
  return statistics.fmean(known)
