"""A run whose models are behind a server that goes away, for a while or not."""

import dataclasses
import json
import os
import signal
import time

import pytest

from tests.faults.server import Always, fault_server, no_faults
from tests.policies import with_own_weights
from varl_jax import build
from varl_jax.config import from_config_dict
from varl_jax.story import world

TREE = {
  "domain": "story",
  "model": {"path": "story", "max_prompt": 48, "max_response": 64},
  "train": {
    "steps": 2,
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


def config(url="", *, judge=False, **endpoint):
  """The story run, on its own script or on a server that speaks it."""
  tree = json.loads(json.dumps(TREE))
  settings = {
    "model": world.CHAT.name,
    "base_url": url,
    "api_key_env": "",
    "concurrency": 4,
    **endpoint,
  }
  if url:
    tree["endpoints"] = {"judge" if judge else "roles": settings}
  return from_config_dict(tree)


@pytest.fixture(scope="module")
def policy():
  return build.make_policy(config())


@pytest.fixture
def train(policy, monkeypatch):
  monkeypatch.setattr(
    build, "make_policy", lambda config: with_own_weights(policy)
  )
  return build.run


@pytest.fixture(scope="module")
def undisturbed(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "make_policy", lambda config: with_own_weights(policy))
    assert build.run(config(), folder) == build.DONE
  return folder


def records(folder):
  """The metrics but for what is measured of the run's own work."""
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  return [
    {
      key: value
      for key, value in json.loads(line).items()
      if not key.startswith(("time/", "service/", "calls/"))
      and not key.endswith("_per_s")
    }
    for line in lines
  ]


def totals(folder, key):
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  return sum(json.loads(line).get(key, 0.0) for line in lines)


def role_of(call):
  return call.body["messages"][0]["content"].split()[1]


@dataclasses.dataclass
class Outage:
  """From the judge's `start`-th request on, `length` requests fail."""

  start: int
  length: int
  judged: int = 0
  failed: int = 0

  def __call__(self, call):
    self.judged += role_of(call) == "judge"
    if self.judged >= self.start and self.failed < self.length:
      self.failed += 1
      return "503"
    return None


def test_an_outage_pauses_the_run_and_changes_nothing(
  undisturbed, train, tmp_path, capsys
):
  outage = Outage(start=30, length=7)
  with fault_server(world.CHAT, outage) as server:
    assert train(config(server.url, price_in=2.0), tmp_path) == build.DONE
  assert outage.failed == 7
  said = capsys.readouterr().err
  assert "does not answer" in said
  assert "is back" in said
  assert records(tmp_path) == records(undisturbed)
  assert (tmp_path / "evidence.jsonl").read_text() == (
    undisturbed / "evidence.jsonl"
  ).read_text()
  assert totals(tmp_path, "calls/judge/attempts") > totals(
    tmp_path, "calls/judge/calls"
  )
  assert totals(tmp_path, "calls/judge/paused_s") > 0
  assert totals(tmp_path, "calls/cost") > 0


def test_a_judge_that_stays_away_stops_the_run_and_it_goes_on_later(
  undisturbed, train, tmp_path, capsys
):
  def no_judge(call):
    return "503" if role_of(call) == "judge" else None

  with fault_server(world.CHAT, no_judge) as server:
    settings = config(server.url, judge=True, outage_s=1.0)
    assert train(settings, tmp_path) == build.JUDGE_FAILED
    said = capsys.readouterr().err
    assert "of the judge's votes in step" in said
    assert "same command goes on" in said
    assert (tmp_path / "report.html").exists()
    server.faults = no_faults
    assert train(settings, tmp_path) == build.DONE
  assert records(tmp_path) == records(undisturbed)


@pytest.mark.parametrize(
  ("fault", "words"),
  [("quota", "quota is used up"), ("unauthorized", "rejects calls")],
)
def test_calls_that_never_succeed_stop_the_run_with_the_cause(
  undisturbed, train, tmp_path, capsys, monkeypatch, fault, words
):
  """And what was paid before is not paid again."""
  secret = "sk-planted-secret-key"
  monkeypatch.setenv("STORY_KEY", secret)
  with fault_server(world.CHAT) as server:
    settings = config(server.url, api_key_env="STORY_KEY")
    limit = 40

    def fails_later(call):
      return fault if server.counts["ok"] >= limit else None

    server.faults = fails_later
    assert train(settings, tmp_path) == build.JUDGE_FAILED
    output = capsys.readouterr()
    assert words in output.err
    assert "same command goes on" in output.err
    paid = server.counts["ok"]
    assert paid >= limit
    server.faults = no_faults
    assert train(settings, tmp_path) == build.DONE
    output_after = capsys.readouterr()
    whole = server.counts["ok"]
    assert server.keys == {f"Bearer {secret}"}
  assert records(tmp_path) == records(undisturbed)
  # Nothing was asked twice: all that was answered is in the journal once.
  bodies = [json.dumps(body, sort_keys=True) for body in server.requests]
  failed = server.counts[fault]
  assert len(set(bodies)) == len(bodies) - failed
  assert whole == len(set(bodies))
  for text in (output.out, output.err, output_after.out, output_after.err):
    assert secret not in text
  for folder, _, files in os.walk(tmp_path):
    for name in files:
      with open(os.path.join(folder, name), "rb") as file:
        assert secret.encode() not in file.read(), name


@pytest.mark.parametrize(
  ("fault", "cause"), [("503", "status 503"), ("html", "an HTML page")]
)
def test_outage_at_once_is_said_before_any_step(
  train, tmp_path, capsys, fault, cause
):
  with fault_server(world.CHAT, Always(fault)) as server:
    settings = config(server.url, outage_s=0.5)
    assert train(settings, tmp_path) == build.JUDGE_FAILED
  last = capsys.readouterr().err.splitlines()[-1]
  assert "needs 4 tasks but the pool has 0" in last
  assert cause in last and "check base_url" in last
  assert "Check base_url, model and key of endpoints.roles" in last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_waits_for_a_server(
  undisturbed, train, tmp_path, capsys, monkeypatch, number
):
  """With the last whole step saved, and the same outcome later."""
  say = build.Notices.say

  def say_and_stop(notices, sentence):
    say(notices, sentence)
    if "does not answer" in sentence:
      os.kill(os.getpid(), number)

  monkeypatch.setattr(build.Notices, "say", say_and_stop)
  with fault_server(world.CHAT) as server:

    def gone_after_a_step(call):
      metrics = tmp_path / "metrics.jsonl"
      whole = metrics.exists() and metrics.read_text().count("\n") >= 1
      return "503" if whole else None

    server.faults = gone_after_a_step
    settings = config(server.url, outage_s=3000.0)
    begun = time.monotonic()
    assert train(settings, tmp_path) == build.INTERRUPTED
    assert time.monotonic() - begun < 1500
    said = capsys.readouterr().err
    assert "Stopped while waiting for a model's server" in said
    assert "same command goes on" in said
    assert (tmp_path / "checkpoints" / "1").is_dir()
    server.faults = no_faults
    assert train(settings, tmp_path) == build.DONE
  assert records(tmp_path) == records(undisturbed)
