"""What every service gives its trainer, in a thread and behind HTTP."""

import asyncio
import dataclasses
import json
import math
import threading

import pytest

from tests import fakes
from tests.service import hosts
from varl_jax.llm.chat import ChatError
from varl_jax.roles.bundle import make_roles
from varl_jax.service import wire
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.store import StoreError
from varl_jax.types import to_json

KINDS = ("thread", "http")


@pytest.fixture(params=KINDS)
def kind(request):
  return request.param


def answered(tasks, step):
  return [(task, fakes.rollouts(task, step)) for task in tasks]


def run_step(service, step):
  tasks = service.poll(step, 4)
  groups = service.grade(step, answered(tasks, step))
  return tasks, groups, service.report(step, groups)


def test_a_run_is_the_same_in_both(tmp_path):
  found = {}
  for kind in KINDS:
    with hosts.opened(kind, tmp_path / f"{kind}.sqlite") as service:
      steps = [run_step(service, step) for step in range(5)]
      path = tmp_path / f"{kind}.jsonl"
      count = service.export_evidence(path)
      found[kind] = (
        steps,
        service.event_number(),
        service.history(),
        service.history(2),
        service.cases(3),
        service.cases(repaired=True),
        (count, path.read_text()),
      )
  assert found["thread"] == found["http"]
  assert found["http"][-1][0] > 0
  assert len(found["http"][-2]) > 0


def test_values_keep_their_types(kind, tmp_path):
  with hosts.opened(kind, tmp_path / "s.sqlite") as service:
    tasks, groups, metrics = run_step(service, 1)
  assert to_json(tasks) == [to_json(group.task) for group in groups]
  assert all(isinstance(task.prompt, tuple) for task in tasks)
  assert all(isinstance(group.answers, tuple) for group in groups)
  assert any(a.truncated for group in groups for a in group.answers)
  assert all(math.isfinite(value) for value in metrics.values())


def test_repeated_calls_give_the_recorded_results(kind, tmp_path):
  calls = []

  def counting(reading):
    calls.append(reading)
    return fakes.judge(reading)

  with hosts.opened(kind, tmp_path / "s.sqlite", judge=counting) as service:
    run_step(service, 0)
    tasks = service.poll(1, 4)
    assert service.poll(1, 4) == tasks
    graded = service.grade(1, answered(tasks, 1))
    before = len(calls)
    assert before > 0
    assert service.grade(1, answered(tasks, 1)) == graded
    assert len(calls) == before
    metrics = service.report(1, graded)
    number, after = service.event_number(), len(calls)
    assert service.report(1, graded) == metrics
    assert service.event_number() == number
    assert len(calls) == after


def test_suspicion_chooses_and_rankings_come_back(kind, tmp_path):
  """Of four groups two are refereed: those the trainer suspects."""
  config = fakes.config(patch__referee_share=0.5, discriminator__on=True)
  path = tmp_path / "s.sqlite"
  with hosts.opened(kind, path, config=config) as service:
    assert service.rankings(0) == []
    tasks = service.poll(0, 4)
    groups = service.grade(0, answered(tasks, 0))
    metrics = service.report(0, groups, [0.5, None, -1.5, 0.25])
    rankings = service.rankings(0)
    first = service.event_number()
    # Asked for again with another suspicion, it is the recorded result.
    assert service.report(0, groups, [None, 0.5, 0.25, -1.5]) == metrics
    assert service.rankings(0) == rankings
    assert service.event_number() == first
    run_step(service, 1)
    assert len(service.rankings(1)) == 2
    service.rewind(first)
    assert service.rankings(1) == []
    assert service.rankings(0) == rankings
  names = [task.task_id for task in tasks]
  assert [r.task_id for r in rankings] == [names[0], names[3]]
  assert metrics["referee/skipped"] == metrics["referee/groups"] == 2
  for group, ranking in zip([groups[0], groups[3]], rankings, strict=True):
    shown = [i for i, a in enumerate(group.answers) if a.answer is not None]
    assert sorted(i for tier in ranking.tiers for i in tier) == shown
  assert isinstance(rankings[0].tiers[0], tuple)


def test_the_pair_of_a_repaired_case_is_told(kind, tmp_path):
  config = fakes.config(discriminator__on=True)
  with hosts.opened(kind, tmp_path / "s.sqlite", config=config) as service:
    pairs = []
    for step in range(4):
      _, groups, metrics = run_step(service, step)
      found = [
        (group, ranking)
        for group, ranking in zip(groups, service.rankings(step), strict=True)
        if ranking.repaired
      ]
      assert len(found) == metrics["patch/tasks"]
      pairs += found
  assert pairs
  for group, ranking in pairs:
    better, worse = ranking.repaired
    assert better in ranking.tiers[0] and worse not in ranking.tiers[0]
    assert group.answers[worse].score > group.answers[better].score


def test_without_a_discriminator_no_ranking_is_kept(kind, tmp_path):
  with hosts.opened(kind, tmp_path / "s.sqlite") as service:
    _, _, metrics = run_step(service, 0)
    assert service.rankings(0) == []
  assert "referee/skipped" not in metrics


def test_a_suspicion_too_few_is_a_mistake(kind, tmp_path):
  path = tmp_path / "s.sqlite"
  wrong = ValueError if kind == "thread" else wire.RemoteBug
  with hosts.opened(kind, path) as service:
    tasks = service.poll(0, 4)
    groups = service.grade(0, answered(tasks, 0))
    with pytest.raises(wrong, match="1 suspicions for 4 groups"):
      service.report(0, groups, [0.5])


def test_other_answers_are_graded_anew(kind, tmp_path):
  with hosts.opened(kind, tmp_path / "s.sqlite") as service:
    tasks = service.poll(0, 4)
    groups = answered(tasks, 0)
    graded = service.grade(0, groups)
    task, rollouts = groups[0]
    changed = [
      dataclasses.replace(r, answer=fakes.listing(fakes.THINGS))
      for r in rollouts
    ]
    again = service.grade(0, [(task, changed), *groups[1:]])
  assert again[1:] == graded[1:]
  assert [a.answer for a in again[0].answers] == [c.answer for c in changed]


def test_rewinding_and_going_on_gives_the_undisturbed_run(kind, tmp_path):
  with hosts.opened(kind, tmp_path / "whole.sqlite") as service:
    expected = [run_step(service, step) for step in range(4)]
  with hosts.opened(kind, tmp_path / "broken.sqlite") as service:
    found = [run_step(service, step) for step in range(2)]
    remembered = service.event_number()
    run_step(service, 2)
    service.grade(3, answered(service.poll(3, 4), 3))
    service.rewind(remembered)
    assert service.event_number() == remembered
    found += [run_step(service, step) for step in range(2, 4)]
  assert found == expected


def test_failures_are_raised_as_what_they_are(kind, tmp_path):
  def broke(reading):
    raise ChatError("quota", "Nothing left.")

  with hosts.opened(kind, tmp_path / "a.sqlite", generator=broke) as service:
    with pytest.raises(ServiceFailure, match=r"quota .*Nothing left"):
      service.poll(0, 4)
    # It goes on: the trainer may come back when that is mended.
    assert service.event_number() > 0
    with pytest.raises(ServiceFailure, match="quota"):
      service.poll(0, 4)
    with pytest.raises(StoreError, match="not the store of that run"):
      service.rewind(10_000)


@dataclasses.dataclass
class OneFails:
  """Judge calls hang until they are cancelled; the last one finds no quota."""

  calls: int
  name: str = "one fails"
  begun: int = 0
  hanging: int = 0

  async def complete(self, request):
    self.begun += 1
    if self.begun == self.calls:
      raise ChatError("quota", "Nothing left.")
    self.hanging += 1
    try:
      await asyncio.Event().wait()
    finally:
      self.hanging -= 1


def test_a_fatal_failure_ends_the_other_calls(kind, tmp_path):
  """None goes on being paid for once the run has stopped."""
  task = fakes.task(("Speaks of a 'dragon' at length.", 8, None))
  rollouts = [fakes.rollout(task, n, "Some text.") for n in range(20)]
  chat = OneFails(calls=20)
  config = fakes.config(judge__votes=1)
  roles = make_roles(chat, "story", config.judge, fakes.CHECKS)
  with hosts.opened(
    kind, tmp_path / "s.sqlite", config=config, roles=roles
  ) as service:
    with pytest.raises(ServiceFailure, match="quota"):
      service.grade(0, [(task, rollouts)])
    assert chat.begun == 20
    assert chat.hanging == 0
    assert service.event_number() == 0


def test_measures_are_of_the_step_and_repeat(kind, tmp_path):
  totals = {"calls/judge/calls": 3.0}
  with hosts.opened(
    kind, tmp_path / "s.sqlite", meter=lambda: totals
  ) as service:
    run_step(service, 1)
    first = service.measures(1)
    totals["calls/judge/calls"] = 10.0
    assert service.measures(1) == first
    second = service.measures(2)
  assert first["calls/judge/calls"] == 3
  assert second["calls/judge/calls"] == 7
  for found in (first, second):
    assert found["service/loop_lag_s"] >= found["service/loop_lag_mean_s"] >= 0


def test_a_late_loop_is_measured(kind, tmp_path):
  """A responder that computes for long holds up the loop for that long."""
  held = threading.Event()

  def slow(reading):
    held.wait(0.5)
    return fakes.proposer(reading)

  with hosts.opened(kind, tmp_path / "s.sqlite", proposer=slow) as service:
    service.measures(0)
    service.poll(1, 4)
    assert service.measures(1)["service/loop_lag_s"] > 0.3


def test_a_report_cut_in_half_is_done_again(kind, tmp_path):
  """Cases are committed, then the service dies over the optimizers."""
  alive = True

  def optimizer(reading):
    if not alive:
      raise ChatError("quota", "Nothing left.")
    return fakes.meta_optimizer(reading)

  with hosts.opened(kind, tmp_path / "whole.sqlite") as service:
    expected = [run_step(service, step) for step in range(4)]
  with hosts.opened(
    kind, tmp_path / "cut.sqlite", meta_optimizer=optimizer
  ) as service:
    found = [run_step(service, step) for step in range(3)]
    alive = False
    tasks = service.poll(3, 4)
    groups = service.grade(3, answered(tasks, 3))
    with pytest.raises(ServiceFailure):
      service.report(3, groups)
    alive = True
    found.append((tasks, groups, service.report(3, groups)))
  assert found == expected


@pytest.mark.parametrize("generous", [False, True])
def test_an_empty_answer_that_is_paid_is_an_alarm(kind, tmp_path, generous):
  def judge(reading):
    if generous:
      return json.dumps({"explanation": "Sure.", "criteria_met": True})
    return fakes.judge(reading)

  path = tmp_path / "s.sqlite"
  hosted = hosts.host(path, judge=judge, canary=True)
  task = fakes.task(("Speaks of a 'fox' at length.", 8, None))
  groups = [(task, [fakes.rollout(task, 0, "A fox.")])]
  with hosts.presented(kind, hosted, tmp_path) as service:
    service.grade(0, groups)
    first, second = service.measures(0), service.measures(1)
  assert first["service/canary_alarm"] == generous
  assert first["service/canary_score"] == generous
  assert "service/canary_score" not in second
  said = [sentence for _, sentence in hosted.notices.since(0)]
  assert len(said) == generous
  assert all("empty answer scored 1.00" in sentence for sentence in said)
