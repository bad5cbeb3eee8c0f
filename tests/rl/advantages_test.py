import numpy as np
import pytest

from varl_jax.rl.advantages import (
  count_groups,
  group_advantages,
  scored_rows,
)


@pytest.mark.parametrize(
  ("scores", "groups", "expected"),
  [
    (
      [1, 1, 0, 0, 0.5, 0, 0, 0.3],
      [0] * 8,
      [0.65, 0.65, -0.35, -0.35, 0.15, -0.35, -0.35, -0.05],
    ),
    (
      [0.5, 0.2, -0.8, None],
      [7] * 4,
      [0.5333333, 0.2333333, -0.7666667, 0.0],
    ),
    (
      [1, 2, 3, 4, 10, 12, 5, 6, 7],
      [0, 0, 0, 0, 1, 1, 2, 2, 2],
      [-1.5, -0.5, 0.5, 1.5, -1, 1, -1, 0, 1],
    ),
  ],
  ids=["centred", "unscorable", "by group id"],
)
def test_reference_cases(scores, groups, expected):
  found = group_advantages(scores, groups, [True] * len(scores))
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_excluded_row_does_not_vote_and_gets_zero():
  found = group_advantages([1.0, 0.0, 100.0], [0, 0, 0], [True, True, False])
  np.testing.assert_allclose(found, [0.5, -0.5, 0.0])


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_unscored_among_negative_siblings_is_not_rewarded(bad):
  found = group_advantages([-1.0, -0.5, bad], [0, 0, 0])
  np.testing.assert_allclose(found, [-0.25, 0.25, 0.0])


def test_one_survivor_and_empty_group_give_zero():
  found = group_advantages([0.9, None, None, None], [0, 0, 1, 1])
  np.testing.assert_array_equal(found, np.zeros(4))


def test_scattered_rows_of_a_group_are_found_by_id():
  scores, groups = [1, 10, 3, 30], [5, 2, 5, 2]
  np.testing.assert_allclose(group_advantages(scores, groups), [-1, -10, 1, 10])


def test_no_division_by_the_deviation():
  small = group_advantages([0.0, 0.01], [0, 0])
  np.testing.assert_allclose(small, [-0.005, 0.005], rtol=1e-6)


def test_constant_group_by_spread_not_by_zero_deviation():
  third = 1 / 3
  scores = [third, third + 5e-7, third, 0.1, 0.2, 0.3]
  groups = [0, 0, 0, 1, 1, 1]
  np.testing.assert_array_equal(group_advantages(scores, groups)[:3], 0)
  assert count_groups(scores, groups).constant == 1
  assert group_advantages([0, 2e-6], [0, 0])[0] != 0


def test_counts():
  found = count_groups(
    [1, 1, 0, 0.5, 3, None, None, 2], [0, 0, 1, 1, 2, 2, 3, 4], None
  )
  assert (found.groups, found.constant, found.single) == (5, 1, 2)
  assert (found.empty, found.unscored) == (1, 2)
  assert found.spread == pytest.approx(0.25)
  assert count_groups([1.0], [0]).spread is None


def test_scored_rows():
  found = scored_rows([1, None, 2, float("nan")], [True, True, False, True])
  assert found.tolist() == [True, False, False, False]


def test_lengths_must_agree():
  with pytest.raises(ValueError, match="one entry a row"):
    group_advantages([1.0, 2.0], [0, 0, 0])
