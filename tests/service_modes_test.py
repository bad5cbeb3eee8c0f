"""Training with the service in a thread and behind HTTP: the same run."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.policies import with_own_weights
from tests.service import hosts
from varl_jax import build, report, report_data, serving
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import ServiceConfig, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.run_folder import RunError
from varl_jax.service.hosting import Notices

ROOT = pathlib.Path(__file__).resolve().parents[1]
TREE = {
  "domain": "story",
  "model": {"path": "story", "max_prompt": 48, "max_response": 64},
  "train": {
    "steps": 3,
    "tasks_per_step": 4,
    "samples": 4,
    "minibatch_tasks": 2,
    "learning_rate": 1e-3,
  },
  "admission": {"barrier": True},
  "evolution": {"interval": 2, "cases": 4},
  "eval": {"interval": 2, "tasks": 2},
  "checkpoint": {"interval": 2},
}
CONFIG = from_config_dict(TREE)


def at(url):
  return dataclasses.replace(CONFIG, service=ServiceConfig(url=url))


@pytest.fixture(scope="module")
def policy():
  return build.make_policy(CONFIG)


@pytest.fixture
def train(policy, monkeypatch):
  monkeypatch.setattr(
    build, "make_policy", lambda config: with_own_weights(policy)
  )
  return build.run


@pytest.fixture(scope="module")
def in_thread(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("thread") / "run"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "make_policy", lambda config: with_own_weights(policy))
    assert build.run(CONFIG, folder) == build.DONE
  return folder


def http(folder, **parts):
  """The config's service behind HTTP, its state in `folder`."""
  hosted = serving.make_service(
    CONFIG,
    load_domain(CONFIG),
    folder / "service.sqlite",
    notices=Notices(lambda sentence: None),
  )
  return hosts.Http(hosted, folder, fingerprint=CONFIG.fingerprint(), **parts)


def records(folder):
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  return [
    {
      key: value
      for key, value in json.loads(line).items()
      if not key.startswith(("time/", "service/"))
      and not key.endswith("_per_s")
    }
    for line in lines
  ]


def leaves(policy, folder):
  checkpoints = Checkpoints(folder=folder / "checkpoints")
  step = checkpoints.latest()
  state, meta = checkpoints.restore(step, policy.learner.init(policy.params))
  return [step, meta["event_number"]], jax.tree.leaves(state)


def test_metrics_parameters_and_reports_are_the_same(
  in_thread, policy, train, tmp_path
):
  with http(tmp_path) as served:
    assert train(at(served.url), tmp_path / "run") == build.DONE
  folder = tmp_path / "run"
  assert records(folder) == records(in_thread)
  assert len(records(folder)) == 4
  (named, mine), (theirs, others) = (
    leaves(policy, folder),
    leaves(policy, in_thread),
  )
  assert named == theirs
  for one, two in zip(mine, others, strict=True):
    np.testing.assert_array_equal(one, two)
  # What the trainer leaves is the whole of what there is to report.
  assert not (folder / "service.sqlite").exists()
  assert (folder / "evidence.jsonl").read_text() == (
    in_thread / "evidence.jsonl"
  ).read_text()
  kept = report_data.read_history(folder)
  assert kept == report_data.read_service(in_thread / "service.sqlite")
  assert kept.cases
  measured = json.loads((folder / "metrics.jsonl").read_text().split("\n")[1])
  assert measured["service/loop_lag_s"] >= 0
  assert measured["service/loop_lag_mean_s"] >= 0


def test_the_report_of_a_service_elsewhere_is_remade(
  in_thread, train, tmp_path
):
  with http(tmp_path) as served:
    assert train(at(served.url), tmp_path / "run") == build.DONE
  page = (tmp_path / "run" / "report.html").read_text()
  (tmp_path / "run" / "report.html").unlink()
  assert report.main([str(tmp_path / "run")]) == 0
  assert (tmp_path / "run" / "report.html").read_text() == page
  (tmp_path / "run" / "history.json").write_text("{")
  assert report.main([str(tmp_path / "run")]) == 2


def test_a_service_that_is_not_there_stops_the_run_before_it_begins(
  train, tmp_path, monkeypatch
):
  monkeypatch.setattr(build, "START_PATIENCE_S", 0.0)
  with http(tmp_path) as served:
    url = served.url
  with pytest.raises(RunError, match="cannot be reached"):
    train(at(url), tmp_path / "run")
  with pytest.raises(RunError, match=r"service\.url"):
    train(at("no address"), tmp_path / "run")
  assert not (tmp_path / "run" / "config.json").exists()


def test_a_folder_has_one_trainer(train, tmp_path):
  (tmp_path / "run").mkdir()
  with http(tmp_path) as served, build.lock(tmp_path / "run"):
    with pytest.raises(RunError, match="in use by another process"):
      train(at(served.url), tmp_path / "run")


def test_another_folder_does_not_wipe_the_services_state(train, tmp_path):
  with http(tmp_path) as served:
    assert train(at(served.url), tmp_path / "run") == build.DONE
    reached = served.hosted.event_number()
    with pytest.raises(RunError, match="another folder"):
      train(at(served.url), tmp_path / "other")
    assert not (tmp_path / "other" / "config.json").exists()
    assert served.hosted.event_number() == reached


TINY = (
  "--config.train.steps=3",
  "--config.train.tasks_per_step=4",
  "--config.train.minibatch_tasks=2",
  "--config.eval.tasks=4",
  "--config.eval.interval=2",
  "--config.checkpoint.interval=2",
  "--config.evolution.interval=2",
  "--config.evolution.cases=6",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    "PYTHONUNBUFFERED": "1",
  }


def start(program, workdir, environment, *flags):
  return subprocess.Popen(
    [
      sys.executable,
      "-m",
      f"varl_jax.{program}",
      "--config=configs/story.py",
      f"--workdir={workdir}",
      *TINY,
      *flags,
    ],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_service(workdir, environment, port=0):
  process = start("serve", workdir, environment, f"--port={port}")
  assert process.stdout is not None
  line = process.stdout.readline()
  found = re.search(r"http://\S+:(\d+)", line)
  assert found, line + process.communicate(timeout=60)[0]
  return process, found[0], int(found[1])


def lines(workdir):
  path = workdir / "metrics.jsonl"
  return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(ready, process):
  deadline = time.monotonic() + 300
  while not ready():
    assert process.poll() is None, process.communicate()[0]
    assert time.monotonic() < deadline
    time.sleep(0.02)


@pytest.mark.slow
def test_killed_on_either_side_ends_the_same(environment, tmp_path):
  """The trainer, then the service, then both are killed; each comes back."""
  whole, folder, store = (tmp_path / n for n in ("whole", "run", "service"))
  undisturbed = start("main", whole, environment)
  output, _ = undisturbed.communicate(timeout=400)
  assert undisturbed.returncode == 0, output
  service, url, port = start_service(store, environment)
  alive = [service]

  def trainer():
    flag = f"--config.service.url={url}"
    alive.append(start("main", folder, environment, flag))
    return alive[-1]

  try:
    first = trainer()
    wait_for(lambda: lines(folder) >= 2, first)
    first.kill()
    first.communicate()
    second = trainer()
    wait_for(lambda: lines(folder) >= 3, second)
    service.send_signal(signal.SIGKILL)
    service.communicate()
    alive.append(start_service(store, environment, port)[0])
    output, _ = second.communicate(timeout=400)
    assert second.returncode == 0, output
  finally:
    for process in alive:
      process.kill()
      process.wait()
      assert process.stdout is not None
      process.stdout.close()
  assert records(folder) == records(whole)
  assert (folder / "evidence.jsonl").read_text() == (
    whole / "evidence.jsonl"
  ).read_text()
