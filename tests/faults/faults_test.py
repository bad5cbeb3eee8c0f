"""A service run through HTTP whose server fails in every way it can.

The rules, by fault:

  transport faults    the client asks again, so the run ends exactly as without
                      faults: 429, 500, 503, hang, reset, html, cut_json,
                      choices_null, empty, drip, stall
  two_objects         the last object of a reply counts, so the same holds
  no_usage            the reply counts, its tokens are unknown; the same holds
  wrong_schema        the vote is no vote, of kind malformed
  cut_reply           the vote is no vote, of kind length
  content_filter,     the vote is no vote, of kind refusal
  refusal
  quota, unauthorized,  the run ends with its state saved
  bad_request

However many votes are lost, a verdict is what the remaining ones say or is
undetermined, and an answer with an undetermined verdict has no score.
"""

import collections
import json
import logging

import pytest

from tests import fakes
from tests.faults.server import (
  FATAL_FAULTS,
  FAULTS,
  TRANSPORT_FAULTS,
  Always,
  First,
  Mixed,
  fault_server,
  no_faults,
)
from varl_jax.config import EndpointConfig, JudgeConfig
from varl_jax.llm.journal import Journal
from varl_jax.llm.openai_chat import make_chat
from varl_jax.llm.retries import Backoff
from varl_jax.methods import METHODS
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.bundle import make_roles
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.store import Store
from varl_jax.story import world
from varl_jax.types import to_json

KEY = "sk-planted-f00dfeedf00dfeed"
STEPS = 2
# A fault of these takes a whole timeout, so there are fewer of them.
ENDLESS = ("hang", "drip", "stall")
TIMEOUT_S = 1.0  # where the server never finishes a reply
PATIENT_S = 60.0
KINDS = {
  "429": "unavailable",
  "500": "unavailable",
  "503": "unavailable",
  "reset": "unavailable",
  "hang": "timeout",
  "drip": "timeout",
  "stall": "timeout",
  "html": "malformed",
  "cut_json": "malformed",
  "choices_null": "malformed",
  "empty": "malformed",
}
LOST_VOTES = {
  "wrong_schema": "malformed",
  "cut_reply": "length",
  "content_filter": "refusal",
  "refusal": "refusal",
}
HARMLESS = ("two_objects", "no_usage")


def weighted(*names):
  """Names for `Mixed`."""
  return [name for name in names for _ in range(1 if name in ENDLESS else 10)]


def generator(reading):
  """Tasks whose criteria only a judge can decide."""
  words = fakes.words_of(reading.blocks["REQUEST"])
  items = [
    {"criterion_text": f"Brings a '{word}' into the text.", "points": 8}
    for word in words[: int(reading.blocks["POSITIVE COUNT"])]
  ]
  if int(reading.blocks["NEGATIVE COUNT"]):
    items.append(
      {"criterion_text": "Strings 'All' of them together.", "points": -6}
    )
  return json.dumps(
    {
      "question": reading.blocks["REQUEST"],
      "use_case": reading.blocks["USE CASE"],
      "rubric_items": items,
    }
  )


CHAT = fakes.chat(generator=generator)


def truth(criterion, answer):
  """What every good vote says."""
  return criterion.text.split("'")[1] in answer


class Run:
  """A run of a few steps and what it left."""

  def __init__(
    self,
    server,
    folder,
    *,
    transport="aiohttp",
    outage_s=60.0,
    timeout_s=PATIENT_S,
  ):
    endpoint = EndpointConfig(
      model="fake",
      base_url=server.url,
      api_key_env="PLANTED_KEY",
      timeout_s=timeout_s,
      deadline_s=120.0,
      attempts=20,
      outage_s=outage_s,
    )
    self.notes = []
    self.journal = Journal(folder / "calls.sqlite")
    self.chat = make_chat(
      endpoint,
      journal=self.journal,
      notify=self.notes.append,
      transport=transport,
      backoff=Backoff(first_s=0.01, cap_s=0.05),
    )
    config = fakes.config(
      train={"tasks_per_step": 3, "minibatch_tasks": 3, "samples": 4},
      pool={"capacity": 6},
    )
    self.service = METHODS["rri"](
      config,
      roles=make_roles(self.chat, "story", JudgeConfig(), fakes.CHECKS),
      store=Store(folder / "service.sqlite"),
      checks=fakes.CHECKS,
      verifiers=fakes.CHECKS.describe(),
    )
    self.groups = []

  def steps(self, count=STEPS):
    """Everything that a step hands out."""
    seen = []
    for step in range(count):
      tasks = self.service.poll(step, 3)
      answered = [(task, fakes.rollouts(task, step)) for task in tasks]
      groups = self.service.grade(step, answered)
      metrics = self.service.report(step, groups)
      self.groups += groups
      seen.append([to_json(tasks), to_json(groups), metrics])
    return seen

  def total(self, name):
    """A count over all roles."""
    return sum(role.get(name, 0) for role in self.chat.usage().values())

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self.service.close()
    self.journal.close()


@pytest.fixture(autouse=True)
def planted(monkeypatch):
  monkeypatch.setenv("PLANTED_KEY", KEY)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  """The steps of a run without faults."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PLANTED_KEY", KEY)
    with (
      fault_server(CHAT) as server,
      Run(server, tmp_path_factory.mktemp("undisturbed")) as run,
    ):
      seen = run.steps()
      assert set(server.counts) == {"ok"}
      assert server.keys == {f"Bearer {KEY}"}
      assert run.total("attempts") == run.total("calls") == server.counts["ok"]
  assert any(answer.score for group in run.groups for answer in group.answers)
  return seen


def judged(groups):
  for group in groups:
    for answer in group.answers:
      for criterion, verdict in zip(
        group.task.rubric.criteria, answer.verdicts, strict=False
      ):
        if criterion.check is None:
          yield answer, criterion, verdict


def check_no_score_from_a_failure(groups):
  """A verdict is the truth or open, and an open one leaves no score."""
  seen = 0
  for answer, criterion, verdict in judged(groups):
    seen += 1
    expected = truth(criterion, answer.answer)
    assert set(verdict.votes) <= {expected}
    assert len(verdict.votes) + len(verdict.failures) == 3
    if len(verdict.votes) >= 2:
      assert verdict.met is expected
    else:
      assert verdict.met is None and answer.score is None
  assert seen > 20


def test_a_story_run_through_http_is_the_run_without(tmp_path):
  seen = []
  with fault_server(world.CHAT) as server:
    endpoint = EndpointConfig(
      model=world.CHAT.name, base_url=server.url, api_key_env=""
    )
    for chat in (world.CHAT, make_chat(endpoint)):
      service = METHODS["rri"](
        fakes.config(pool={"capacity": 6}),
        roles=make_roles(chat, "story", JudgeConfig(), world.CHECKS),
        store=Store(tmp_path / f"{len(seen)}.sqlite"),
        checks=world.CHECKS,
        verifiers=world.VERIFIERS,
      )
      tasks = service.poll(0, 4)
      answers = [
        "She found it.",
        tasks[0].cached_honest,
        tasks[1].cached_honest,
      ]
      answered = [
        (task, [fakes.rollout(task, i, text) for i, text in enumerate(answers)])
        for task in tasks
      ]
      groups = service.grade(0, answered)
      metrics = service.report(0, groups)
      seen.append([to_json(tasks), to_json(groups), metrics])
      service.close()
  assert seen[0] == seen[1]
  assert server.counts["ok"] > 10


@pytest.mark.parametrize("name", [*TRANSPORT_FAULTS, *HARMLESS])
def test_what_is_asked_for_again_changes_nothing(name, undisturbed, tmp_path):
  endless = name in ENDLESS
  with (
    fault_server(CHAT, First(name, share=0.01 if endless else 0.1)) as server,
    Run(server, tmp_path, timeout_s=TIMEOUT_S if endless else PATIENT_S) as run,
  ):
    assert run.steps() == undisturbed
    assert server.counts[name] > 0
    check_no_score_from_a_failure(run.groups)
    retried = {
      kind: run.total(f"retried_{kind}")
      for kind in ("unavailable", "timeout", "malformed")
    }
    expected = dict.fromkeys(retried, 0)
    if name in KINDS:
      expected[KINDS[name]] = server.counts[name]
    if endless:  # a busy machine also lets true replies come too late
      assert retried["timeout"] >= server.counts[name]
      expected["timeout"] = retried["timeout"]
    assert retried == expected
    assert run.total("attempts") == sum(server.counts.values())
    lacking = server.counts["no_usage"]
    assert run.total("without_usage") == lacking


@pytest.mark.parametrize("name", sorted(LOST_VOTES))
def test_a_vote_that_cannot_be_read_is_no_vote(name, tmp_path):
  with (
    fault_server(CHAT, First(name, share=0.1)) as server,
    Run(server, tmp_path) as run,
  ):
    run.steps()
    check_no_score_from_a_failure(run.groups)
    kinds = collections.Counter(
      kind for *_, verdict in judged(run.groups) for kind in verdict.failures
    )
    assert kinds == {LOST_VOTES[name]: lost_votes(server, name)}
    assert run.total("attempts") == run.total("calls")


def lost_votes(server, name):
  """Votes on answers of the run, not of probes, that met a fault."""
  note = load_prompts("story").strict_note
  turns = [
    body["messages"][-1]["content"]
    for outcome, body in server.outcomes
    if outcome == name
  ]
  return sum("<<<CRITERION" in turn and note not in turn for turn in turns)


@pytest.mark.slow
def test_everything_at_once(tmp_path):
  with (
    fault_server(CHAT, Mixed(weighted(*FAULTS), share=0.2, seed=3)) as server,
    Run(server, tmp_path, timeout_s=TIMEOUT_S) as run,
  ):
    run.steps(3)
    check_no_score_from_a_failure(run.groups)
    assert len(server.counts) > 12
    kinds = ("unavailable", "timeout", "malformed")
    sent = collections.Counter(
      {
        kind: sum(server.counts[name] for name in KINDS if KINDS[name] == kind)
        for kind in kinds
      }
    )
    retried = {kind: run.total(f"retried_{kind}") for kind in kinds}
    # On a busy machine any reply may come too late, and count as a timeout.
    late = retried["timeout"] - sent["timeout"]
    assert late >= 0
    for kind in ("unavailable", "malformed"):
      assert sent[kind] - late <= retried[kind] <= sent[kind]
    assert run.total("attempts") == sum(server.counts.values())
    assert not any(
      run.total(f"failed_{kind}")
      for kind in ("unavailable", "timeout", "malformed", "rejected")
    )


@pytest.mark.slow
def test_transport_faults_at_once_change_nothing(undisturbed, tmp_path):
  plan = Mixed(weighted(*TRANSPORT_FAULTS, *HARMLESS), share=0.2, seed=5)
  with (
    fault_server(CHAT, plan) as server,
    Run(server, tmp_path, timeout_s=TIMEOUT_S) as run,
  ):
    assert run.steps() == undisturbed
    assert len(server.counts) > 10
    assert 0.1 < 1 - server.counts["ok"] / len(server.outcomes) < 0.3


@pytest.mark.parametrize("name", FATAL_FAULTS)
def test_what_no_retry_mends_ends_the_run_and_a_restart_pays_no_call_twice(
  name, undisturbed, tmp_path
):
  with fault_server(CHAT) as server:
    with Run(server, tmp_path) as run:
      plan = Always(name)
      server.faults = lambda call: plan(call) if len(paid) > 60 else None
      paid = server.outcomes
      with pytest.raises(ServiceFailure) as caught:
        run.steps()
    assert "resume" in str(caught.value)
    assert KEY not in str(caught.value)
    done = [body for outcome, body in server.outcomes if outcome == "ok"]
    server.faults = no_faults
    server.outcomes.clear()
    with Run(server, tmp_path) as run:
      run.service.rewind(0)
      assert run.steps() == undisturbed
    again = [body for _, body in server.outcomes]
    assert again
    assert not [body for body in again if body in done]


class Outage:
  """The server is gone for requests `first` to `last`."""

  def __init__(self, first, last=10**9):
    self._first, self._last, self._seen = first, last, 0

  def __call__(self, call):
    self._seen += 1
    return "503" if self._first <= self._seen <= self._last else None


def test_an_outage_in_mid_run_is_waited_out_and_told(undisturbed, tmp_path):
  with (
    fault_server(CHAT, Outage(60, 140)) as server,
    Run(server, tmp_path) as run,
  ):
    assert run.steps() == undisturbed
    assert run.total("paused_s") > 0
    first, last = run.notes[0], run.notes[-1]
  assert "does not answer (status 503)" in first and "wait up to 60 s" in first
  assert "is back after" in last


def test_an_outage_that_lasts_stops_the_run_and_it_goes_on_later(
  undisturbed, tmp_path
):
  with fault_server(CHAT) as server:
    with Run(server, tmp_path, outage_s=0.3) as run:
      begun = run.service.event_number()
      tasks = run.service.poll(0, 3)
      server.faults = Outage(1)
      answered = [(task, fakes.rollouts(task, 0)) for task in tasks]
      with pytest.raises(ServiceFailure, match="max_failure_rate"):
        run.service.grade(0, answered)
      assert run.total("failed_unavailable") > 20
    server.faults = no_faults
    with Run(server, tmp_path) as run:
      run.service.rewind(begun)  # As the trainer does from its checkpoint.
      assert run.steps() == undisturbed


def chained(error):
  """An exception with all that it came from, shown or not."""
  if error is not None:
    yield error
    yield from chained(error.__cause__)
    yield from chained(error.__context__)


def test_the_key_is_found_nowhere(tmp_path, caplog, capfd):
  caplog.set_level(logging.DEBUG)
  texts = []
  plan = Mixed(sorted({*FAULTS} - {*ENDLESS}), share=0.3, seed=1)
  with fault_server(CHAT, plan) as server:
    for transport in ("aiohttp", "sdk"):
      folder = tmp_path / transport
      folder.mkdir()
      with Run(server, folder, transport=transport) as run:
        run.steps(1)
        server.faults = Always("unauthorized")
        with pytest.raises(ServiceFailure) as caught:
          run.steps(2)
        server.faults = plan
        run.service.export_evidence(folder / "evidence.jsonl")
        texts += [repr(vars(run.chat)), repr(run.chat), *run.notes]
        texts += [repr(run.chat.usage()), repr(vars(run.chat._inner))]
      for error in chained(caught.value):
        texts += [str(error), repr(error), repr(vars(error))]
  assert server.keys == {f"Bearer {KEY}"}
  assert any("Incorrect key provided" in text for text in texts)
  written = [path for path in tmp_path.rglob("*") if path.is_file()]
  assert len(written) > 5
  for path in written:
    assert KEY.encode() not in path.read_bytes(), path
  assert len(caplog.records) > 10
  for record in caplog.records:
    texts.append(f"{record.getMessage()} {record.args!r}")
  out, err = capfd.readouterr()
  for text in [*texts, out, err]:
    assert KEY not in text
