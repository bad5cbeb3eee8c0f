"""Bootstrap over tasks: intervals of a score, and of a difference.

Tasks are drawn with replacement; where a score is a mean of groups' means, they
are drawn within each group.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

RESAMPLES: Final = 1000
LEVEL: Final = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
  """A percentile interval with the standard deviation of the resamples."""

  low: float
  high: float
  std: float


def group_mean(values: Sequence[float], groups: Sequence[str]) -> float:
  """The mean of the groups' means; a plain mean when all are of one group.

  Raises:
    ValueError: no values.
  """
  return float(_means(np.asarray(values, np.float64)[None], groups)[0])


def bootstrap(
  values: Sequence[float],
  groups: Sequence[str] | None = None,
  *,
  seed: int = 0,
  resamples: int = RESAMPLES,
  clip: bool = False,
) -> Interval:
  """The interval of `group_mean`.

  Args:
    values: one a task.
    groups: of the tasks, None for a single one.
    seed: of the draws.
    resamples: how many.
    clip: clip each resample's mean to [0, 1].

  Raises:
    ValueError: no values.
  """
  drawn = resampled_means(values, groups, seed=seed, resamples=resamples)
  return interval(np.clip(drawn, 0.0, 1.0) if clip else drawn)


def interval(drawn: np.ndarray, *, level: float = LEVEL) -> Interval:
  """The percentile interval of resampled values."""
  tail = (1.0 - level) / 2 * 100
  low, high = np.percentile(drawn, [tail, 100 - tail])
  return Interval(low=float(low), high=float(high), std=float(np.std(drawn)))


def resampled_means(
  values: Sequence[float],
  groups: Sequence[str] | None = None,
  *,
  seed: int = 0,
  resamples: int = RESAMPLES,
) -> np.ndarray:
  """Means of resampled tasks, one a resample.

  Raises:
    ValueError: no values.
  """
  found = np.asarray(values, np.float64)
  names = list(groups) if groups is not None else [""] * len(found)
  if not len(found):
    raise ValueError("No values to average.")
  rng = np.random.default_rng(seed)
  total = np.zeros(resamples)
  members = _members(names)
  for where in members:
    rows = found[where]
    # A block at a time: 5,000 tasks would take 40 MB at once.
    for start in range(0, resamples, 100):
      count = min(100, resamples - start)
      picks = rng.integers(0, len(rows), (count, len(rows)))
      total[start : start + count] += rows[picks].mean(axis=1)
  return total / len(members)


def _members(groups: Sequence[str]) -> list[np.ndarray]:
  names = np.asarray(groups, dtype=object)
  return [np.flatnonzero(names == name) for name in dict.fromkeys(groups)]


def _means(rows: np.ndarray, groups: Sequence[str]) -> np.ndarray:
  if not rows.shape[1]:
    raise ValueError("No values to average.")
  return np.mean(
    [rows[:, where].mean(axis=1) for where in _members(groups)], axis=0
  )
