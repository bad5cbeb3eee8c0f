"""Arms and judges compared, against hand-worked numbers."""

import random
import statistics

import numpy as np
import pytest

from varl_jax.benchmarks import BenchmarkError, comparison, resampling


def verdicts(*values):
  return {("t", 0, i, "mark"): value for i, value in enumerate(values)}


def test_agreement_and_kappa():
  """Agree on 7 of 10; chance is 0.6 x 0.5 + 0.4 x 0.5 = 0.5."""
  first = verdicts(*[True] * 6, *[False] * 4)
  second = verdicts(*[True] * 4, *[False] * 5, True)
  found = comparison.agreement(first, second)
  assert found is not None
  assert found["agreement"] == pytest.approx(0.7)
  assert found["kappa"] == pytest.approx((0.7 - 0.5) / 0.5)
  assert found["met"] == [0.6, 0.5]
  assert found["verdicts"] == 10


def test_agreement_leaves_out_what_either_left_open():
  found = comparison.agreement(
    verdicts(True, None, False, True), verdicts(True, True, None, True)
  )
  assert found is not None
  assert found["verdicts"] == 2
  assert found["undetermined"] == 2
  assert found["agreement"] == 1.0
  assert found["kappa"] is None  # Both always say the same thing.


def test_verdicts_on_other_answers_are_not_compared():
  assert comparison.agreement(verdicts(True), {("t", 0, 0, "x"): True}) is None


def test_judges_that_agree_by_chance_have_no_kappa():
  rng = random.Random(0)
  first = verdicts(*(rng.random() < 0.8 for _ in range(20000)))
  second = verdicts(*(rng.random() < 0.8 for _ in range(20000)))
  found = comparison.agreement(first, second)
  assert found is not None
  assert found["agreement"] == pytest.approx(0.68, abs=0.02)
  assert found["kappa"] == pytest.approx(0.0, abs=0.03)


def test_orders_of_arms():
  first = {"a": 0.5, "b": 0.4, "c": 0.3}
  kept = comparison.ordering(first, {"a": 0.9, "b": 0.8, "c": 0.1})
  assert kept["preserved"]
  assert kept["kendall_tau"] == 1.0
  assert kept["first"] == kept["second"] == ["a", "b", "c"]
  turned = comparison.ordering(first, {"a": 0.4, "b": 0.5, "c": 0.1})
  assert not turned["preserved"]
  assert turned["swapped"] == [["a", "b"]]
  assert turned["kendall_tau"] == pytest.approx(1 / 3)
  tie = comparison.ordering(first, {"a": 0.4, "b": 0.4, "c": 0.1})
  assert tie["preserved"]


def test_the_paired_difference_is_over_common_tasks():
  first = {str(i): 0.1 * (i % 7) for i in range(100)}
  second = {name: value + 0.05 for name, value in first.items()} | {"z": 9.0}
  found = comparison.paired_difference(first, second)
  assert found["difference"] == pytest.approx(0.05)
  assert found["tasks"] == 100
  # Paired, the spread between tasks drops out.
  low, high = found["interval"]
  assert low == pytest.approx(0.05)
  assert high == pytest.approx(0.05)
  assert found["share_above"] == 1.0
  with pytest.raises(BenchmarkError, match="no scored task in common"):
    comparison.paired_difference({"a": 1.0}, {"b": 1.0})


def test_a_paired_difference_weighs_groups_as_the_benchmark_does():
  first = dict.fromkeys("abcd", 0.0)
  second = {"a": 0.3, "b": 0.3, "c": 0.3, "d": 0.9}
  groups = {"a": "x", "b": "x", "c": "x", "d": "y"}
  found = comparison.paired_difference(first, second, groups)
  assert found["difference"] == pytest.approx(0.6)


def test_an_interval_covers_the_mean_about_as_often_as_it_says():
  rng = np.random.default_rng(0)
  hits = 0
  for trial in range(200):
    values = rng.normal(0.4, 0.2, 60)
    found = resampling.bootstrap(list(values), seed=trial, resamples=400)
    hits += found.low <= 0.4 <= found.high
  assert 175 <= hits <= 199


def test_the_deviation_is_that_of_a_mean():
  values = list(np.random.default_rng(1).normal(0.5, 0.3, 400))
  found = resampling.bootstrap(values)
  expected = statistics.pstdev(values) / 20
  assert found.std == pytest.approx(expected, rel=0.1)
  again = resampling.bootstrap(values)
  assert found == again
  assert resampling.bootstrap(values, seed=1) != found


def test_clipping_each_resample():
  found = resampling.bootstrap([-0.5, -0.1], clip=True)
  assert found.low == found.high == found.std == 0.0
