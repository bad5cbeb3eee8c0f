"""What a step measures of its scores and lengths, by hand."""

import math

import pytest

from varl_jax.step_measures import Clock, length_metrics, score_metrics
from varl_jax.types import Rollout


def test_unscorable_rollouts_are_counted_and_left_out_of_the_means():
  found = score_metrics(
    [0.5, -0.5, math.nan, 0.2, 0.2],
    [0.5, 0.0, None, 0.2, 0.2],
    [0, 0, 0, 1, 1],
    [True, True, False, False, False],
  )
  assert found["reward/mean"] == pytest.approx(0.1)
  assert found["reward/raw"] == pytest.approx(0.225)
  assert found["reward/unscorable"] == 1
  assert found["reward/untrained"] == 3
  assert found["reward/constant_groups"] == 1


def test_nothing_scorable_leaves_the_means_out():
  found = score_metrics([math.nan], [None], [0], [False])
  assert found == {
    "reward/unscorable": 1,
    "reward/untrained": 1,
    "reward/constant_groups": 0,
  }


def test_lengths():
  rollouts = [
    Rollout(
      task_id="t",
      sample=index,
      answer=answer,
      tokens=(1,) * size,
      logprobs=(-1.0,) * size,
      mask=(1,) * size,
      finish=finish,
    )
    for index, (answer, size, finish) in enumerate(
      (("abcd", 2, "stop"), (None, 4, "length"))
    )
  ]
  assert length_metrics(rollouts) == {
    "rollout/length": 3,
    "rollout/chars": 2,
    "rollout/cut": 0.5,
  }
  assert length_metrics([]) == {}


def test_laps_add_up_to_the_step():
  clock = Clock()
  assert clock.lap("one") > 0
  clock.lap("two")
  times = clock.times()
  assert times["time/step"] == pytest.approx(
    times["time/one"] + times["time/two"]
  )
