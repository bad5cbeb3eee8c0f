"""Group-relative advantages: score minus the mean of the task's own answers.

There is no division by the standard deviation (Appendix E). Groups are found
by their id, never by position, so that dropped rows cannot shift a neighbour
into the wrong group.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

# A spread of scores up to this is float noise: the group says nothing.
CONSTANT_SPREAD: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCounts:
  """What a batch's groups hold.

  Attributes:
    groups: distinct ids.
    constant: groups of two or more scored rows whose spread is at most
      `CONSTANT_SPREAD`; no row of theirs is pushed in either direction.
    single: groups with exactly one scored row.
    empty: groups with none.
    unscored: rows that carry no score.
    spread: mean over groups of max - min score; None when no group has two.
  """

  groups: int
  constant: int
  single: int
  empty: int
  unscored: int
  spread: float | None


def _scored(
  scores: Sequence[float | None] | np.ndarray,
  group_ids: Sequence[int] | np.ndarray,
  valid: Sequence[bool] | np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  values = np.asarray(scores, dtype=np.float64)
  ids = np.asarray(group_ids)
  usable = np.isfinite(values)
  if valid is not None:
    usable &= np.asarray(valid, dtype=bool)
  if not values.shape == ids.shape == usable.shape or values.ndim != 1:
    raise ValueError(
      "scores, group_ids and valid have one entry a row, got shapes"
      f" {values.shape}, {ids.shape} and {usable.shape}."
    )
  return values, ids, usable


def scored_rows(
  scores: Sequence[float | None] | np.ndarray,
  valid: Sequence[bool] | np.ndarray | None = None,
) -> np.ndarray:
  """Rows [B] bool with a finite score that `valid` does not exclude."""
  return _scored(scores, np.zeros(len(scores)), valid)[2]


def group_advantages(
  scores: Sequence[float | None] | np.ndarray,
  group_ids: Sequence[int] | np.ndarray,
  valid: Sequence[bool] | np.ndarray | None = None,
) -> np.ndarray:
  """Centres each score on its group: A_i = s_i - mean of the group.

  Args:
    scores: [B]; None or a value that is not finite means the row could not be
      scored.
    group_ids: [B], equal for answers to one serving of a task; any order.
    valid: [B], False for rows to leave out although they carry a score.

  Returns:
    float32 [B]. 0 for rows left out (they take no part in the mean either),
    for the only scored row of a group, and for groups whose scores differ by
    at most `CONSTANT_SPREAD`.

  Raises:
    ValueError: the lengths differ.
  """
  values, ids, usable = _scored(scores, group_ids, valid)
  advantages = np.zeros(values.shape, np.float64)
  for group in np.unique(ids):
    rows = usable & (ids == group)
    inside = values[rows]
    if inside.size >= 2 and np.ptp(inside) > CONSTANT_SPREAD:
      advantages[rows] = inside - inside.mean()
  return advantages.astype(np.float32)


def count_groups(
  scores: Sequence[float | None] | np.ndarray,
  group_ids: Sequence[int] | np.ndarray,
  valid: Sequence[bool] | np.ndarray | None = None,
) -> GroupCounts:
  """Counts groups without a learning signal; arguments as above."""
  values, ids, usable = _scored(scores, group_ids, valid)
  inside = [values[usable & (ids == group)] for group in np.unique(ids)]
  spreads = [np.ptp(row) for row in inside if row.size >= 2]
  return GroupCounts(
    groups=len(inside),
    constant=sum(bool(s <= CONSTANT_SPREAD) for s in spreads),
    single=sum(row.size == 1 for row in inside),
    empty=sum(row.size == 0 for row in inside),
    unscored=int((~usable).sum()),
    spread=float(np.mean(spreads)) if spreads else None,
  )
