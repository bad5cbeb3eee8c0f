"""Benchmarks answered by weights on this machine."""

import dataclasses
import json
import pathlib

import jax
import pytest

from tests.benchmarks import rows
from varl_jax import build, checkpoint_answers, evaluation_run, run_folder
from varl_jax.benchmarks import BenchmarkError
from varl_jax.benchmarks.folder import read_lines
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import from_config_dict
from varl_jax.evaluation_data import Request
from varl_jax.story import world

MODULE = '''
from varl_jax.benchmarks.protocol import Benchmark, BenchmarkTask, criterion
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.types import Message


def says(answer, word):
  """The answer holds the word."""
  return word in answer


BENCHMARK = Benchmark(
  name="stories",
  title="Stories",
  to_task=lambda row, source: BenchmarkTask(
    task_id=row["id"],
    prompt=(Message(role="user", content=row["request"]),),
    criteria=(
      criterion("Says the.", 2, check="says(the)"),
      criterion("Says xyzzy.", 2, check="says(xyzzy)"),
    ),
  ),
  domain="story",
  checks=CheckRegistry(checks={"says": says}),
)
'''
SMALL = {"model": {"path": "story", "max_prompt": 48, "max_response": 16}}


@pytest.fixture(name="benchmark")
def benchmark_module(tmp_path):
  path = tmp_path / "stories.py"
  path.write_text(MODULE)
  return str(path)


@pytest.fixture(name="data")
def data_file(tmp_path):
  requests = world.held_out_requests(4, seed=1)
  made = [{"id": f"s{i}", "request": r.text} for i, r in enumerate(requests)]
  return str(rows.write_rows(tmp_path / "rows.jsonl", made))


def request_for(benchmark, data, workdir, **changes):
  fields = {
    "benchmark": benchmark,
    "data": data,
    "config": from_config_dict(SMALL),
    "workdir": workdir,
    "model": "story",
    **changes,
  }
  return Request(**fields)


def results_of(workdir):
  return json.loads((workdir / "results.json").read_text())


def answers_of(workdir):
  found = read_lines(workdir / "answers.jsonl")[0]
  return {(row["task_id"], row["sample"]): row["answer"] for row in found}


@pytest.mark.slow
def test_a_shipped_model_answers_and_a_stop_changes_nothing(
  tmp_path, benchmark, data, monkeypatch
):
  whole = request_for(benchmark, data, tmp_path / "whole", samples=2)
  assert evaluation_run.run(whole) == evaluation_run.DONE
  found = results_of(tmp_path / "whole")
  assert found["answers"] == 8
  assert found["scored"] == 4
  assert 0 < found["score"] <= 0.5
  told = found["settings"]["model"]
  assert told["kind"] == "checkpoint"
  assert len(told["weights_sha256"]) == 64
  assert found["answered_by"] == ["story"]
  # A folder that lost the end of its answers draws the same ones again.
  part = tmp_path / "part"
  part.mkdir()
  for name in ("settings.json", "answers.jsonl"):
    (part / name).write_bytes((tmp_path / "whole" / name).read_bytes())
  lines = (part / "answers.jsonl").read_bytes().splitlines(keepends=True)
  (part / "answers.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:9])
  again = dataclasses.replace(whole, workdir=part)
  assert evaluation_run.run(again) == evaluation_run.DONE
  assert answers_of(part) == answers_of(tmp_path / "whole")
  assert results_of(part)["score"] == found["score"]


@pytest.mark.slow
def test_greedy_answers_do_not_depend_on_the_seed(tmp_path, benchmark, data):
  drawn = []
  for seed in (0, 1):
    config = from_config_dict({**SMALL, "seed": seed})
    request = request_for(
      benchmark,
      data,
      tmp_path / f"seed{seed}",
      config=config,
      temperature=0.0,
      samples=2,
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    drawn.append(answers_of(tmp_path / f"seed{seed}"))
  assert drawn[0] == drawn[1]
  assert all(drawn[0][name, 0] == drawn[0][name, 1] for name, _ in drawn[0])


@pytest.mark.slow
def test_a_runs_newest_checkpoint_is_evaluated(tmp_path, benchmark, data):
  """A run whose second step turned the signs of its weights."""
  config = from_config_dict({**SMALL, "name": "mine", "domain": "story"})
  run = tmp_path / "run"
  run.mkdir()
  run_folder.claim(config, run)
  policy = build.make_policy(config)
  checkpoints = Checkpoints(folder=run / "checkpoints")
  for step, sign in ((1, 1), (2, -1)):
    state = policy.learner.init(policy.params)
    params = jax.tree.map(lambda leaf, s=sign: s * leaf, state.params)
    state = dataclasses.replace(state, params=params)
    checkpoints.save(step, state, {"fingerprint": config.fingerprint()})
  scores = {}
  for model in (str(run), "story"):
    out = tmp_path / pathlib.Path(model).name.replace("run", "of_run")
    request = request_for(benchmark, data, out, model=model, temperature=0.0)
    assert evaluation_run.run(request) == evaluation_run.DONE
    scores[model] = answers_of(out), results_of(out)
  of_run, of_story = scores[str(run)], scores["story"]
  assert of_run[1]["settings"]["model"]["kind"] == "run"
  assert of_run[1]["answered_by"] == ["run step 2"]
  assert of_run[0] != of_story[0]
  hashes = {
    r["settings"]["model"]["weights_sha256"] for _, r in scores.values()
  }
  assert len(hashes) == 2


@pytest.mark.parametrize(
  ("model", "match"),
  [("./nowhere", "no model at"), ("/nowhere/run", "no model at")],
)
def test_a_checkpoint_that_is_not_there_is_refused(
  tmp_path, benchmark, data, model, match
):
  request = request_for(benchmark, data, tmp_path / "out", model=model)
  with pytest.raises(evaluation_run.REFUSALS, match=match):
    evaluation_run.run(request)


def test_a_run_without_a_checkpoint_is_refused(tmp_path, benchmark, data):
  run = tmp_path / "run"
  (run / "checkpoints").mkdir(parents=True)
  tree = {"fingerprint": "x", **from_config_dict(SMALL).to_dict()}
  (run / "config.json").write_text(json.dumps(tree))
  request = request_for(benchmark, data, tmp_path / "out", model=str(run))
  with pytest.raises(BenchmarkError, match="no complete checkpoint"):
    evaluation_run.run(request)


def test_hashes_of_weights_follow_names_and_contents(tmp_path):
  for name, content in (("a", b"1"), ("b", b"2")):
    (tmp_path / name).write_bytes(content)
  files = [tmp_path / "b", tmp_path / "a"]
  digest = checkpoint_answers.digest_files(files)
  assert digest == checkpoint_answers.digest_files(files[::-1])
  (tmp_path / "a").write_bytes(b"3")
  assert digest != checkpoint_answers.digest_files(files)
