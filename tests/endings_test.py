"""How a run ends when the store, the disk or a setting fails it."""

import errno
import json
import os

import pytest

from tests.policies import with_own_weights
from tests.service.postgres_server import PostgresServer
from varl_jax import build, checkpoints, serving
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.llm.journal import JournalError
from varl_jax.metrics import MetricsWriter
from varl_jax.run_folder import RunError
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.event_log import StoreError
from varl_jax.service.postgres_store import PostgresStore
from varl_jax.service.store import Store

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
  "evolution": {"interval": 1, "cases": 4},
  "eval": {"interval": 0},
  "checkpoint": {"interval": 5},
}
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/file")


def config(**groups):
  return from_config_dict({**TREE, **groups})


@pytest.fixture(scope="module")
def policy():
  return build.make_policy(config())


@pytest.fixture(autouse=True)
def small(policy, monkeypatch):
  monkeypatch.setattr(
    build, "make_policy", lambda config: with_own_weights(policy)
  )


@pytest.fixture(scope="module")
def undisturbed(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "make_policy", lambda config: with_own_weights(policy))
    assert build.run(config(), folder) == build.DONE
  return folder


def records(folder):
  return [
    {
      key: value
      for key, value in json.loads(line).items()
      if not key.startswith(("time/", "service/"))
      and not key.endswith("_per_s")
    }
    for line in (folder / "metrics.jsonl").read_text().splitlines()
  ]


def fails(error):
  def call(*values, **named):
    raise error

  return call


class Failing:
  """A service of which one call fails in step 2."""

  def __init__(self, inner, error, call):
    self._inner = inner
    self._error = error
    self._call = call

  def __getattr__(self, name):
    called = getattr(self._inner, name)
    if name != self._call:
      return called

    def work(step, *values):
      if step == 2:
        raise self._error
      return called(step, *values)

    return work


def failing(patch, error, call="report"):
  """Makes a call of the service fail in the second step of runs."""
  opened = build._open_service
  patch.setattr(
    build,
    "_open_service",
    lambda *values: Failing(opened(*values), error, call),
  )


@pytest.mark.parametrize("kind", [StoreError, JournalError])
def test_a_store_lost_on_the_way_is_no_wrong_input(
  undisturbed, tmp_path, capsys, monkeypatch, kind
):
  with monkeypatch.context() as patch:
    failing(patch, kind("The server is gone."))
    assert build.run(config(), tmp_path) == build.JUDGE_FAILED
  said = capsys.readouterr().err
  assert "varl_jax: The server is gone. The state in" in said
  # The weights were being updated, so nothing newer than the start is whole.
  assert build.run(config(), tmp_path) == build.DONE
  assert records(tmp_path) == records(undisturbed)


def test_what_was_whole_before_the_store_was_lost_is_saved(
  tmp_path, monkeypatch
):
  """In a checkpoint, if the store is not on the disk that this goes to."""
  failing(monkeypatch, StoreError("The server is gone."), call="poll")
  monkeypatch.setattr(serving, "make_store", lambda config, path: Store(path))
  for service, saved in (({"store_env": "STORE_ADDRESS"}, 1), ({}, None)):
    folder = tmp_path / str(saved)
    assert build.run(config(service=service), folder) == build.JUDGE_FAILED
    assert Checkpoints(folder=folder / "checkpoints").latest() == saved


def test_a_store_of_another_run_is_wrong_input(tmp_path, monkeypatch):
  short = config(train={**TREE["train"], "steps": 1})
  assert build.run(short, tmp_path) == build.DONE
  for path in tmp_path.glob("service.sqlite*"):
    path.unlink()
  with pytest.raises(RunError, match="is not the store of that run"):
    build.run(config(), tmp_path)


@pytest.mark.slow
def test_a_database_that_goes_away_ends_a_run_that_goes_on_later(
  undisturbed, tmp_path, capsys, monkeypatch
):
  server = PostgresServer()
  monkeypatch.setattr(
    serving,
    "make_store",
    lambda config, path: PostgresStore(
      server.address(), run="ending", patience=0.3
    ),
  )
  write = MetricsWriter.write

  def stopping(self, step, metrics):
    if step == 2:
      server.stop(mode="immediate")
    return write(self, step, metrics)

  settings = config(service={"store_env": "STORE_ADDRESS"})
  try:
    with monkeypatch.context() as patch:
      patch.setattr(MetricsWriter, "write", stopping)
      assert build.run(settings, tmp_path) == build.JUDGE_FAILED
    server.start()
    said = capsys.readouterr().err
    assert "cannot be reached" in said and "same command goes on" in said
    assert server.password not in said
    assert build.run(settings, tmp_path) == build.DONE
  finally:
    server.remove()
  assert records(tmp_path) == records(undisturbed)


def test_a_checkpoint_that_finds_no_room_ends_the_run_with_its_state(
  undisturbed, tmp_path, capsys, monkeypatch
):
  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, "_check_space", fails(FULL))
    assert build.run(config(), tmp_path) == build.JUDGE_FAILED
  said = capsys.readouterr().err
  assert "Could not save the checkpoint of step 3" in said
  assert build.run(config(), tmp_path) == build.DONE
  assert records(tmp_path) == records(undisturbed)


def test_a_checkpoint_that_fails_too_does_not_hide_the_cause(
  tmp_path, capsys, monkeypatch
):
  failing(monkeypatch, ServiceFailure("The judge is gone."), call="poll")
  monkeypatch.setattr(checkpoints, "_check_space", fails(FULL))
  assert build.run(config(), tmp_path) == build.JUDGE_FAILED
  said = [s for s in capsys.readouterr().err.splitlines() if "varl_jax:" in s]
  assert "Could not save the checkpoint of step 1" in said[0]
  assert said[-1].startswith("varl_jax: The judge is gone. The state in")


@pytest.mark.parametrize("broken", ["write_report", "keep_history"])
def test_a_report_that_cannot_be_written_does_not_decide(
  tmp_path, capsys, monkeypatch, broken
):
  with monkeypatch.context() as patch:
    failing(patch, ServiceFailure("No space left for the journal."))
    patch.setattr(build, broken, fails(FULL))
    assert build.run(config(), tmp_path) == build.JUDGE_FAILED
  said = capsys.readouterr().err
  assert "lacks the newest cases: No space left on device: some/file" in said
  assert "Traceback" not in said


def test_a_report_missing_from_a_run_that_is_done_is_an_error(
  tmp_path, monkeypatch
):
  with monkeypatch.context() as patch:
    patch.setattr(build, "write_report", fails(FULL))
    with pytest.raises(RunError, match="run the same command once"):
      build.run(config(), tmp_path)
  assert build.run(config(), tmp_path) == build.DONE


def test_keys_and_template_are_looked_at_before_the_weights(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(build, "make_policy", fails(AssertionError("loaded")))
  monkeypatch.delenv("NOT_SET", raising=False)
  keyless = {"model": "m", "api_key_env": "NOT_SET"}
  keyed = {"model": "m", "api_key_env": ""}
  grader = tmp_path / "grader.txt"
  grader.write_text("{conversation} {criterion} Yes or No?")
  template = {"template_path": str(grader), "template_sha256": "0" * 64}
  held_out = {"interval": 1, "tasks_path": "tasks.jsonl"}
  elsewhere = {"service": {"url": "http://127.0.0.1:9"}, "eval": held_out}
  for words, groups in (
    ("NOT_SET is not set", {"endpoints": {"roles": keyless}}),
    ("NOT_SET", {"endpoints": {"roles": keyed, "judge": keyless}}),
    ("NOT_SET", {"endpoints": {"judge": keyless}, **elsewhere}),
    ("has the hash", {"judge": template}),
  ):
    with pytest.raises(ConfigError, match=words):
      build.run(config(**groups), tmp_path / "run")
  assert not (tmp_path / "run").exists()
  # What only the service elsewhere asks for is its own affair.
  with pytest.raises(AssertionError, match="loaded"):
    build.run(
      config(
        endpoints={"roles": keyless}, service={"url": "http://127.0.0.1:9"}
      ),
      tmp_path / "run",
    )


def test_a_run_does_not_go_on_with_an_edited_judge_template(tmp_path):
  grader = tmp_path / "grader.txt"
  text = "{conversation} {criterion} Is it met? Yes or No."
  grader.write_text(text)
  settings = config(judge={"template_path": str(grader)})
  folder = tmp_path / "run"
  folder.mkdir()
  build.claim(serving.pinned(settings), folder)
  grader.write_text(text + " Be lenient.")
  with pytest.raises(RunError, match=r"config \(judge\.template_sha256\)"):
    build.run(settings, folder)
