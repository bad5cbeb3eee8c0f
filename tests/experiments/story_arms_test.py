"""Arithmetic of the comparison of arms, and its committed result."""

import json
import math
import pathlib

import pytest

from experiments import story_arms

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = ROOT / "experiments" / "results" / "story_arms.json"


@pytest.fixture
def workdir(tmp_path):
  """A run of two steps whose one exploit pair is right."""
  records = [
    {"step": 0, "eval/score": 0.3, "eval/non_overlapping": 0.2},
    {"step": 1, "reward/mean": 0.4, "exploit/rate": 0.5},
    {
      "step": 2,
      "reward/mean": 0.8,
      "exploit/rate": 0.1,
      "eval/score": 0.25,
      "eval/non_overlapping": 0.1,
    },
  ]
  (tmp_path / "metrics.jsonl").write_text(
    "".join(json.dumps(r) + "\n" for r in records)
  )
  request = (
    "write a story about mia and tom at the barn with a rope . the bell is"
    " stuck . the mood is calm . use six sentences ."
  )
  case = {
    "source": "on_policy",
    "task": {"prompt": [{"role": "user", "content": request}]},
    "exploit": {"answer": "mia . tom . barn . rope ."},
    "honest": {"answer": "mia sat at the barn with a friend . they saw it ."},
  }
  attack = {**case, "source": "re_attack", "exploit": case["honest"]}
  (tmp_path / "evidence.jsonl").write_text(
    json.dumps(case) + "\n" + json.dumps(attack) + "\n"
  )
  return tmp_path


def test_summary_of_a_run(workdir):
  found = story_arms.summary(workdir)
  assert found["hidden"] == 0.25
  assert found["hidden_start"] == 0.3
  assert found["hidden_best"] == 0.3
  assert found["train_reward"] == pytest.approx(0.6)
  assert found["exploit_rate"] == pytest.approx(0.3)
  assert math.isnan(found["lead_before_patch"])


def test_only_the_solvers_pairs_count(workdir):
  found = story_arms.pair_correctness([workdir])
  assert found == {"pairs": 1, "share": 1.0}


def test_curves_keep_the_steps_that_were_measured(workdir):
  found = story_arms.curves([workdir, workdir])
  assert found["eval/score"]["step"] == [0, 2]
  assert found["eval/score"]["mean"] == [0.3, 0.25]
  assert found["reward/mean"]["step"] == [1, 2]


def test_paired_difference_by_hand():
  found = story_arms.paired([0.5, 0.7, 0.9], [0.4, 0.4, 0.4])
  assert found["mean"] == pytest.approx(0.3)
  # Differences 0.1, 0.3, 0.5: deviation 0.2, over sqrt(3).
  assert found["standard_error"] == pytest.approx(0.2 / math.sqrt(3))


def test_committed_result_has_its_stated_form():
  result = json.loads(RESULT.read_text())
  seeds = result["seeds"]
  assert len(seeds) == 16
  assert min(seeds) >= 100, "development seeds are no evidence"
  assert set(result["arms"]) == set(story_arms.ARMS)
  for arm in result["arms"].values():
    for key in (
      "hidden",
      "hidden_non_overlapping",
      "hidden_start",
      "train_reward",
      "train_reward_start",
      "exploit_rate",
    ):
      assert len(arm[key]) == len(seeds)
      assert all(isinstance(value, float) for value in arm[key])
  for name, gap in result["paired"].items():
    one, two = name.split(" - ")
    again = story_arms.paired(
      result["arms"][one]["hidden"], result["arms"][two]["hidden"]
    )
    assert gap == pytest.approx(again)
  assert result["command"].startswith("python -m experiments.story_arms")
  assert "jax" in result["versions"]
  assert RESULT.with_suffix(".md").read_text() == story_arms.table(result)


def test_table_shows_what_an_arm_does_not_have():
  result = {
    "arms": {"one": {"hidden": [0.1, 0.3], "lead": [None, None]}},
    "paired": {},
    "pair_correctness": {"one": {"pairs": 0, "share": None}},
    "referee_agreement": {"x": 0.8},
    "seeds": [100, 101],
  }
  text = story_arms.table(result)
  assert "| hidden | 0.200 +- 0.100 |" in text
  assert "| lead | - |" in text
  assert "| one | 0 | - |" in text
