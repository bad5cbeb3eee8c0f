"""The methods beside RRI in whole runs on the story world: cut and resumed."""

import signal

import pytest

from tests.end_to_end_test import TINY, environment, kill_when, records, run

__all__ = ["environment"]  # a fixture


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rar", "sibyl_sense", "evo_rubrics"])
def test_a_killed_run_ends_as_one_that_was_not(method, environment, tmp_path):
  config = f"configs/story.py:{method}"
  whole, cut = tmp_path / "whole", tmp_path / "cut"
  done = run(whole, environment, *TINY, config=config)
  assert done.returncode == 0, done.stderr
  for ready in (
    (cut / "service.sqlite").exists,
    (cut / "checkpoints").exists,
  ):
    code, output = kill_when(cut, environment, ready, config=config)
    assert code == -signal.SIGKILL, output
  done = run(cut, environment, *TINY, config=config)
  assert done.returncode == 0, done.stderr
  assert records(cut) == records(whole)
  found = records(whole)
  assert [record["step"] for record in found] == [0, 1, 2, 3, 4]
  assert found[-1]["guidance/version"] == (2 if method == "sibyl_sense" else 0)
  if method == "evo_rubrics":
    assert found[1]["evo/parsed"] > 0
    assert found[-1]["rubric_generator/train/grad_norm"] > 0
  for name in ("evidence.jsonl", "report.html"):
    assert (cut / name).exists()
