"""Rankings joined: reciprocal-rank fusion."""

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

# The constant of Cormack et al. (2009).
SMOOTHING: Final = 60

# Of the lexical ranking beside a dense one. Equal weights lost to the lexical
# ranking alone where the word table knows the field (docs/retrieval.md).
LEXICAL_WEIGHT: Final = 4.0

Place = TypeVar("Place")


def best(scores: np.ndarray, k: int, *, above: float) -> np.ndarray:
  """Positions of the `k` highest scores above a bound, the best first.

  Equal scores go by position, so that a search repeats exactly.
  """
  found = np.flatnonzero(scores > above)
  if len(found) > k:
    limit = np.partition(scores[found], len(found) - k)[len(found) - k]
    found = found[scores[found] >= limit]
  order = np.lexsort((found, -scores[found].astype(np.float64)))
  return found[order[:k]]


def fuse(
  rankings: Sequence[Sequence[Place]], k: int, *, weights: Sequence[float]
) -> list[tuple[Place, float]]:
  """Joins rankings by the sum of weight / (60 + rank), ranks from 1.

  Returns:
    What was ranked with its sum, the best first; ties in the order of the
    first ranking, then of the next.
  """
  sums: dict[Place, float] = {}
  for ranking, weight in zip(rankings, weights, strict=True):
    for rank, place in enumerate(ranking, 1):
      sums[place] = sums.get(place, 0.0) + weight / (SMOOTHING + rank)
  return sorted(sums.items(), key=lambda item: -item[1])[:k]
