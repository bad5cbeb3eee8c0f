"""Training on the sign world: calls are run, recorded, and found again."""

import json

import pytest

from configs.story import get_config
from varl_jax import build
from varl_jax.config import from_config_dict


def config(steps):
  tree = get_config("lookup")
  tree.update(
    train={"steps": steps, "tasks_per_step": 4, "minibatch_tasks": 2},
    eval={"interval": 2, "tasks": 4},
    checkpoint={"interval": 1},
  )
  return from_config_dict(tree)


def records(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  timed = ("time/", "service/loop", "rollout/new_tokens_per_s", "train/tokens_")
  return [
    {k: v for k, v in json.loads(line).items() if not k.startswith(timed)}
    for line in lines
  ]


@pytest.mark.slow
def test_a_run_with_tools_goes_on_as_if_it_had_not_stopped(tmp_path):
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert build.run(config(2), whole) == build.DONE
  for steps in (1, 2):
    assert build.run(config(steps), parts) == build.DONE
  found = {record["step"]: record for record in records(whole)}
  again = {record["step"]: record for record in records(parts)}
  assert found[2]["tools/calls"] == again[2]["tools/calls"] > 0
  assert found[2]["reward/mean"] == again[2]["reward/mean"]
  assert found[2]["tools/tokens"] == again[2]["tools/tokens"] > 0
  assert found[2]["train/tokens"] == again[2]["train/tokens"]
  assert "eval/score" in found[2]
