"""EvoRubrics' rewards, against numbers worked by hand."""

import math

import pytest

from varl_jax.methods import rubric_rewards as rewards


def test_a_sets_score_by_hand():
  # 10 and -7 are met: total 3, worst -7, best 16, so 10 / 23.
  score = rewards.set_score([10, 6, -7], [True, False, True])
  assert score == pytest.approx(10 / 23)
  assert rewards.centred(score) == pytest.approx(-0.130435, abs=1e-6)
  assert rewards.set_score([10, 6, -7], [True, True, False]) == 1
  assert rewards.set_score([10, 6, -7], [False, False, True]) == 0


def test_a_set_of_mistakes_alone_has_a_score():
  assert rewards.set_score([-4, -6], [True, False]) == pytest.approx(0.6)


def test_a_set_in_which_nothing_counts_has_none():
  with pytest.raises(ValueError, match="nothing counts"):
    rewards.set_score([0.0], [True])
  with pytest.raises(ValueError):
    rewards.set_score([1.0], [])


def test_an_answer_earns_its_mean_over_valid_sets():
  assert rewards.policy_reward([0.2, None, 0.6, 1.0]) == pytest.approx(0.6)
  assert rewards.policy_reward([None, None]) is None


def test_discrimination_is_a_deviation():
  # Mean 0.5; squares 0.25, 0, 0, 0.25; mean 0.125.
  assert rewards.discrimination([0.0, 0.5, 0.5, 1.0]) == pytest.approx(
    math.sqrt(0.125)
  )
  assert rewards.discrimination([0.7, 0.7, 0.7, 0.7]) == 0
  with pytest.raises(ValueError, match="no answer"):
    rewards.discrimination([])


def test_diversity_is_a_mean_distance():
  assert rewards.similarity([1, 0], [0, 2]) == pytest.approx(0.5)
  # The same direction 0, at a right angle 1/2, opposite 1.
  others = [[2, 0], [0, 3], [-1, 0]]
  assert rewards.diversity([1, 0], others) == pytest.approx(0.5)
  assert rewards.diversity([1, 0], []) is None
  with pytest.raises(ValueError, match="no direction"):
    rewards.similarity([0, 0], [1, 0])


def test_a_generator_earns_the_mean_of_its_parts():
  parts = {"discrimination": 0.25, "diversity": 0.5, "reflect": -0.15}
  assert rewards.generator_reward(
    parsed=True, reference=0.8, **parts
  ) == pytest.approx(0.35)
  assert rewards.generator_reward(parsed=True, **parts) == pytest.approx(0.2)
  assert rewards.generator_reward(parsed=False, **parts) == -1
  assert rewards.reflection(0.6, 0.45) == pytest.approx(-0.15)
  with pytest.raises(ValueError, match="nothing was measured"):
    rewards.generator_reward(parsed=True)
