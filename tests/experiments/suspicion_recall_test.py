"""Arithmetic of the comparison of choices, and its committed result."""

import json
import math
import pathlib
import random

import numpy as np
import pytest

from experiments import suspicion_recall as experiment
from varl_jax.config import Config

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = ROOT / "experiments" / "results" / "story_discriminator.json"


def group(*, case, head, own=None, top=1.0, spread=0.5):
  """Two answers; the best-paid one is worse in a case."""
  lead = 2.0 if case else -1.0
  return {
    "scores": [top, top - spread],
    "words": [9, 7],
    "tiers": [[1], [0]] if case else [[0], [1]],
    "quality": [0.0, lead],
    "head": head,
    "own": own,
    "learnt": True,
  }


# Two calls a step. Step one: two cases, the head finds one. Step two: one.
STEPS = [
  [
    group(case=True, head=3.0, spread=0.2),
    group(case=True, head=-1.0, spread=0.9),
    group(case=False, head=2.0, spread=0.8),
    *(group(case=False, head=-2.0, spread=0.1) for _ in range(5)),
  ],
  [
    group(case=True, head=0.5, own=1.0),
    *(group(case=False, head=0.1, own=2.0) for _ in range(7)),
  ],
]


def test_counts_of_each_rule_by_hand():
  found = experiment.step_counts(STEPS)
  assert found["cases"].tolist() == [2, 1]
  assert found["groups"].tolist() == [8, 8]
  assert found["calls"].tolist() == [2, 2]
  assert found["head"].tolist() == [1, 1]
  assert found["score spread"][0] == 1
  assert found["head, learnt from its own choice"][1] == 0
  assert found["random, expected"].tolist() == [0.5, 0.25]
  assert found["most possible"].tolist() == [2, 1]
  # All top scores are alike: as good as a lot.
  assert found["top score"][0] == pytest.approx(0.5, abs=0.2)
  assert found["random, measured"][0] == pytest.approx(0.5, abs=0.2)


def test_groups_that_cannot_be_compared_take_no_part():
  alone = {**group(case=False, head=9.0), "scores": [1.0, None]}
  unranked = {**group(case=False, head=9.0), "tiers": None}
  found = experiment.step_counts([[*STEPS[1], alone, unranked], [alone]])
  assert found["groups"].tolist() == [8]
  assert found["head"].tolist() == [1]


def test_recall_and_its_interval():
  found = experiment.recall(experiment.step_counts(STEPS))
  assert found["head"]["recall"] == pytest.approx(2 / 3)
  assert found["random, expected"]["head_minus"] == pytest.approx(2 / 3 - 0.25)
  assert found["head"]["head_minus"] == 0
  assert found["random, expected"]["head_minus_interval"] == [0.25, 0.75]
  low, high = found["head"]["interval"]
  assert (low, high) == (0.5, 1.0)
  assert found["random, expected"]["interval"] == [0.25, 0.25]


def test_choices_break_ties_by_lot_and_leave_none_for_last():
  draws = {
    tuple(experiment.chosen(range(8), [None] * 6 + [1.0, 2.0], lot))
    for lot in map(random.Random, range(20))
  }
  assert draws == {(7, 6)}
  draws = {
    tuple(experiment.chosen(range(8), [None] * 7 + [1.0], lot))
    for lot in map(random.Random, range(50))
  }
  assert {first for first, _ in draws} == {7}
  assert {second for _, second in draws} == set(range(7))
  assert len(experiment.chosen(range(9), [0.0] * 9, random.Random(0))) == 3


def test_calibration_by_hand():
  sure = {**group(case=True, head=0.0), "quality": [0.0, 2.0]}
  wrong = {**group(case=True, head=0.0), "quality": [0.5, 0.0]}
  found = experiment.calibration([[sure], [wrong]])
  p, q = 1 / (1 + math.exp(-2.0)), 1 / (1 + math.exp(-0.5))
  assert found["pairs"] == 2
  assert found["accuracy"] == pytest.approx(0.5)
  assert found["accuracy_of_length"] == 0
  assert found["brier"] == pytest.approx(((1 - p) ** 2 + q**2) / 2)
  assert found["expected_calibration_error"] == pytest.approx((1 - p + q) / 2)
  assert [b["observed"] for b in found["bins"]] == [0.0, 1.0]


def test_steps_before_the_head_had_its_say_are_left_out():
  early = [{**member, "learnt": False} for member in STEPS[0]]
  found = experiment.summary([[early, STEPS[0]], [STEPS[1]]])
  assert (found["runs"], found["steps"], found["cases"]) == (2, 2, 3)
  assert found["calibration"]["pairs"] == 16


def test_committed_result_has_its_stated_form():
  result = json.loads(RESULT.read_text())
  assert result["first_seed"] >= 400, "development seeds are no evidence"
  assert result["share"] == experiment.SHARE == 0.25
  assert result["epsilon"] == Config().patch.epsilon
  assert set(result["arms"]) == {"rri", "co_evolve_only", "generation_only"}
  for arm in result["arms"].values():
    assert arm["calls"] == pytest.approx(arm["groups"] / 4, rel=0.05)
    found = arm["recall"]
    assert {"random, expected", *experiment.RULES, "most possible"} == set(
      found
    )
    for entry in found.values():
      low, high = entry["interval"]
      assert 0 <= low <= entry["recall"] <= high <= 1
    expected = found["random, expected"]["recall"]
    assert found["random, measured"]["recall"] == pytest.approx(
      expected, abs=0.02
    )
    shares = [b["share"] for b in arm["calibration"]["bins"]]
    assert np.sum(shares) == pytest.approx(1)
  assert result["command"].startswith("python -m experiments.story_discrim")
  assert RESULT.with_suffix(".md").read_text() == experiment.table(result)
