import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.config import RewardConfig
from varl_jax.rubrics import scoring
from varl_jax.types import Criterion, Rubric, Verdict

# points, met, length, r, raw, s, training s; worked out by hand.
CASES = [
  ([10, 5], [1, 1], 2000, 1.0, 1.0, 1.0, 1.0),
  ([10, 5], [1, 0], 1000, 0.6666667, 0.6666667, 0.6960667, 0.6666667),
  ([7, 5, 10, -6], [1, 0, 1, 1], 2500, 0.5, 0.5, 0.4853, 0.4853),
  ([6, -3], [0, 1], 2000, -0.5, 0.0, -0.5, -0.5),
  ([8, -10, -5], [0, 1, 1], 1500, -1.875, 0.0, -1.8603, -1.875),
  ([8, 7, -5], [0, 0, 0], 0, 0.0, 0.0, 0.0588, 0.0),
  ([10, 10], [1, 1], 36013, 1.0, 1.0, 0.0000178, 0.0000178),
]


@pytest.mark.parametrize(
  ("points", "met", "length", "r", "raw", "adjusted", "training"), CASES
)
def test_worked_cases(points, met, length, r, raw, adjusted, training):
  got = scoring.rubric_score(points, met)
  assert got == pytest.approx(r, abs=1e-6)
  assert scoring.raw_score(got) == pytest.approx(raw, abs=1e-6)
  assert scoring.length_adjusted(got, length) == pytest.approx(
    adjusted, abs=1e-6
  )
  one_sided = scoring.length_adjusted(got, length, one_sided=True)
  assert one_sided == pytest.approx(training, abs=1e-6)
  assert scoring.training_score(got, length, RewardConfig()) == one_sided


def test_a_rubric_without_a_positive_has_no_score():
  with pytest.raises(ValueError, match="positive criterion"):
    scoring.rubric_score([-5, -3], [True, False])
  with pytest.raises(ValueError, match="positive criterion"):
    scoring.rubric_score([], [])


def test_verdicts_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="2 criteria but 1"):
    scoring.rubric_score([5, 5], [True])
  with pytest.raises(ValueError, match="undetermined"):
    scoring.rubric_score([5, -5], [True, None])


def _verdict(met):
  return Verdict(met=met, votes=(), explanation="", judge="test")


def test_undetermined_verdicts_make_an_answer_unscorable():
  rubric = Rubric(
    criteria=(
      Criterion(text="Names the rope", points=8),
      Criterion(text="Invents a second door", points=-4),
    )
  )
  score = scoring.verdict_score
  assert score(rubric, [_verdict(True), _verdict(True)]) == 0.5
  # A failed judge on a negative must not raise the score.
  assert score(rubric, [_verdict(True), _verdict(None)]) is None
  with pytest.raises(ValueError):
    score(rubric, [_verdict(True)])
  assert scoring.met_positive(rubric, [_verdict(True), _verdict(None)])
  assert not scoring.met_positive(rubric, [_verdict(None), _verdict(True)])


def test_benchmarks_without_a_length_term_keep_the_score():
  assert (
    scoring.training_score(0.5, 9000, RewardConfig(length_adjusted=False))
    == 0.5
  )


def test_truncated_answers():
  assert scoring.truncated_score("zero", [-0.5, 0.3]) == 0.0
  assert scoring.truncated_score("group_min", [-0.5, None, 0.3]) == -0.5
  assert scoring.truncated_score("group_min", [0.2, None]) == 0.0
  assert scoring.truncated_score("unscorable", [0.2]) is None


def test_both_aggregates():
  scores = [1.0, -0.5, 0.25]
  assert scoring.clipped_mean(scores) == pytest.approx(0.25)
  assert scoring.mean_of_clipped(scores) == pytest.approx(0.4166667)
  with pytest.raises(ValueError):
    scoring.clipped_mean([])


_POINTS = st.integers(-10, 10).filter(bool)


@given(st.lists(st.tuples(_POINTS, st.booleans()), min_size=1, max_size=12))
def test_score_properties(items):
  points = [p for p, _ in items] + [5]
  met = [m for _, m in items] + [False]
  r = scoring.rubric_score(points, met)
  assert r <= 1
  # One more met criterion moves r by exactly its share.
  available = sum(p for p in points if p > 0)
  more = scoring.rubric_score(points, [*met[:-1], True])
  assert more - r == pytest.approx(5 / available)
  # Scaling all points changes nothing.
  assert scoring.rubric_score([2 * p for p in points], met) == pytest.approx(r)


@given(st.floats(-5, 1), st.integers(0, 50_000))
def test_training_never_pays_for_brevity(r, length):
  one_sided = scoring.length_adjusted(r, length, one_sided=True)
  assert one_sided <= r
  assert one_sided <= scoring.length_adjusted(r, length)
  assert math.isclose(one_sided, r) or length > 2000
