"""RaR's two aggregations, against numbers worked by hand."""

import pytest

from varl_jax.rubrics import checklists
from varl_jax.rubrics.scoring import rubric_score

FOUR = ("Essential", "Important", "Optional", "Pitfall")


def test_explicit_by_hand():
  # (1.0 + 0.3 + 0.9) / (1.0 + 0.7 + 0.3 + 0.9) = 22 / 29.
  score = checklists.explicit_score(FOUR, [True, False, True, True])
  assert score == pytest.approx(22 / 29)
  assert score == pytest.approx(0.758621, abs=1e-6)
  assert checklists.explicit_score(FOUR, [True] * 4) == pytest.approx(1)
  assert checklists.explicit_score(FOUR, [False] * 4) == 0
  with pytest.raises(ValueError, match="without items"):
    checklists.explicit_score([], [])
  with pytest.raises(ValueError):
    checklists.explicit_score(FOUR, [True])


@pytest.mark.parametrize("met", [(1, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 0)])
def test_criteria_of_avoided_pitfalls_score_the_same(met):
  points = [checklists.points_of(c, "avoided") for c in FOUR]
  assert rubric_score(points, met) == pytest.approx(
    checklists.explicit_score(FOUR, met)
  )


def test_a_committed_pitfall_costs_its_weight():
  points = [checklists.points_of(c, "committed") for c in FOUR]
  assert points == [10, 7, 3, -9]
  # (1.0 + 0.3 - 0.9) / (1.0 + 0.7 + 0.3).
  assert rubric_score(points, [True, False, True, True]) == pytest.approx(0.2)


@pytest.mark.parametrize("pitfalls", ["avoided", "committed"])
@pytest.mark.parametrize("category", FOUR)
def test_points_tell_the_category(category, pitfalls):
  points = checklists.points_of(category, pitfalls)
  assert checklists.category_of(points) == category


def test_other_points_are_no_checklists():
  with pytest.raises(ValueError, match="has 8 points"):
    checklists.category_of(8)


@pytest.mark.parametrize(
  ("rating", "reward"), [(1, 0), (4, 1 / 3), (7, 2 / 3), (10, 1)]
)
def test_implicit_by_hand(rating, reward):
  assert checklists.implicit_score(rating) == pytest.approx(reward)


@pytest.mark.parametrize("rating", [0, 11, -3])
def test_a_rating_keeps_to_its_scale(rating):
  with pytest.raises(ValueError, match="1 to 10"):
    checklists.implicit_score(rating)
