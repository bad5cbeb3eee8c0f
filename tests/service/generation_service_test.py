"""The whole service on scripted models: steps, resuming, failing."""

import asyncio
import dataclasses
import inspect
import json
import math
import re
import threading

import pytest

from tests import fakes
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.methods import METHODS
from varl_jax.roles.bundle import make_roles
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.store import Store, StoreError
from varl_jax.types import Task, to_json


@pytest.fixture
def open_service(tmp_path):
  """Opens services on one store; the last one is closed at the end."""
  opened: list[GenerationService] = []

  def make(config=None, *, path="run", roles=None, **changed):
    service = METHODS["rri"](
      config or fakes.config(),
      roles=roles or fakes.roles(**changed),
      store=Store(tmp_path / f"{path}.sqlite"),
      checks=fakes.CHECKS,
      verifiers=fakes.CHECKS.describe(),
    )
    opened.append(service)
    return service

  yield make
  for service in opened:
    service.close()


def answered(tasks: list[Task], step: int) -> list:
  return [(task, fakes.rollouts(task, step)) for task in tasks]


def hacked(task: Task) -> tuple[Task, list]:
  """A task with a list that is overpaid and a better story."""
  words = fakes.words_of(task.prompt[-1].content)
  texts = [fakes.listing(words), fakes.story(words[:1])]
  return task, [fakes.rollout(task, i, text) for i, text in enumerate(texts)]


def run_step(service: GenerationService, step: int) -> dict:
  tasks = service.poll(step, 4)
  groups = service.grade(step, answered(tasks, step))
  metrics = service.report(step, groups)
  return {
    "tasks": to_json(tasks),
    "groups": to_json(groups),
    "metrics": metrics,
  }


def logged(service: GenerationService) -> list:
  return [
    (event.uid, event.step, event.kind, event.payload)
    for event in service._store.events()
  ]


def test_a_run_finds_repairs_evolves_and_measures(open_service):
  service = open_service()
  metrics = [run_step(service, step)["metrics"] for step in range(12)]
  total = {
    key: sum(m.get(key, 0) for m in metrics) for m in metrics for key in m
  }
  for key in (
    "exploit/cases",
    "exploit/queued",
    "patch/accepted_positive",
    "patch/accepted_negative",
    "patch/tasks",
    "patch/sealed",
    "pool/evicted",
    "pool/served_replay",
    "admission/exploitable",
    "admission/repaired",
    "referee/decisive_pairs",
  ):
    assert total[key] > 0, key
  assert metrics[-1]["guidance/version"] == 6
  assert any("patch/revisited_after" in m for m in metrics)
  patched = [m for m in metrics if "patch/group_before" in m]
  assert patched
  assert all(m["patch/lead_after"] < m["patch/lead_before"] for m in patched)
  assert all(m["patch/group_after"] < m["patch/group_before"] for m in patched)
  leads = [m for m in metrics if "admission/lead_before" in m]
  assert leads
  for m in leads:
    assert m["admission/lead_after"] < m["admission/lead_before"]
  assert all(math.isfinite(v) for m in metrics for v in m.values())


def test_replies_that_stay_wrong_are_counted(open_service):
  def generator(reading):
    if reading.rng.random() < 0.6:
      return "No task."
    return fakes.generator(reading)

  service = open_service(generator=generator)
  metrics = [run_step(service, step)["metrics"] for step in range(2)]
  assert sum(m["pool/rejected_replies"] for m in metrics) > 0


def test_rewinding_and_going_on_gives_the_undisturbed_run(open_service):
  whole = open_service(path="whole")
  expected = [run_step(whole, step) for step in range(6)]
  broken = open_service(path="broken")
  found = [run_step(broken, step) for step in range(3)]
  remembered = broken.event_number()
  run_step(broken, 3)
  tasks = broken.poll(4, 4)
  broken.grade(4, answered(tasks, 4))
  broken.close()
  resumed = open_service(path="broken")
  resumed.rewind(remembered)
  assert resumed.event_number() == remembered
  found += [run_step(resumed, step) for step in range(3, 6)]
  assert found == expected
  assert logged(resumed) == logged(whole)
  assert resumed.history() == whole.history()
  assert resumed.cases(3) == whole.cases(3)


def test_a_reopened_service_goes_on_without_rewinding(open_service):
  whole = open_service(path="whole")
  expected = [run_step(whole, step) for step in range(4)]
  found = []
  for step in range(4):
    service = open_service(path="pieces")
    found.append(run_step(service, step))
    service.close()
  assert found == expected


def test_repeated_calls_give_the_recorded_results(open_service):
  service = open_service()
  tasks = service.poll(0, 4)
  assert service.poll(0, 4) == tasks
  groups = service.grade(0, answered(tasks, 0))
  metrics = service.report(0, groups)
  number = service.event_number()
  assert service.report(0, groups) == metrics
  assert service.event_number() == number


def test_a_batch_holds_each_task_once_and_half_of_it_repaired(open_service):
  service = open_service()
  for step in range(5):
    tasks = service.poll(step, 4)
    assert len({task.task_id for task in tasks}) == 4
    groups = service.grade(step, answered(tasks, step))
    replay = service.report(step, groups)["pool/served_replay"]
    assert replay <= 2


def test_a_patch_reaches_the_next_serving_only(open_service):
  service = open_service()
  versions: dict[str, list[int]] = {}
  for step in range(6):
    tasks = service.poll(step, 4)
    groups = service.grade(step, answered(tasks, step))
    for task in tasks:
      versions.setdefault(task.task_id, []).append(task.patches)
    assert [g.task for g in groups] == tasks
    service.report(step, groups)
  assert any(seen[-1] > seen[0] for seen in versions.values())


def test_answers_of_the_adversary_are_never_served(open_service):
  exploits = []

  def adversary(reading):
    answer = fakes.adversary(reading) + f" {len(exploits)}x"
    exploits.append(answer)
    return answer

  service = open_service(adversary=adversary)
  served = []
  for step in range(4):
    result = run_step(service, step)
    served.append(json.dumps(result["tasks"]))
  assert len(exploits) > 8
  assert not any(answer in text for answer in exploits for text in served)


def test_truncated_answers_are_not_judged_and_take_part(open_service):
  asked = []

  def judge(reading):
    asked.append(reading.blocks["ANSWER"])
    return fakes.judge(reading)

  service = open_service(judge=judge)
  task = fakes.task(("Speaks of 'fox' in it.", 8, None))
  rollouts = [fakes.rollout(task, 0, "The fox."), fakes.rollout(task, 1, None)]
  group = service.grade(0, [(task, rollouts)])[0]
  assert [a.score for a in group.answers] == [1.0, 0.0]
  assert group.answers[1].truncated and group.answers[1].verdicts == ()
  assert set(asked) == {"The fox."}


@pytest.mark.parametrize(
  ("rule", "score"), [("group_min", -1.0), ("unscorable", None), ("zero", 0.0)]
)
def test_the_score_of_truncated_answers_is_a_setting(open_service, rule, score):
  service = open_service(fakes.config(reward__truncated_score=rule))
  task = fakes.task(
    ("Brings it in.", 8, "has(fox)"), ("Lists things.", -8, "bare_list()")
  )
  rollouts = [fakes.rollout(task, 0, "lamp"), fakes.rollout(task, 1, None)]
  group = service.grade(0, [(task, rollouts)])[0]
  assert [a.score for a in group.answers] == [-1.0, score]


def test_length_costs_one_sidedly_in_training(open_service):
  task = fakes.task(("Brings it in.", 8, "has(fox)"))
  texts = ["fox", "fox " + "x" * 2496, "fox"]
  rollouts = [fakes.rollout(task, i, text) for i, text in enumerate(texts)]
  for adjusted, scores in ((True, [1.0, 0.9853, 1.0]), (False, [1.0] * 3)):
    service = open_service(fakes.config(reward__length_adjusted=adjusted))
    group = service.grade(0, [(task, rollouts)])[0]
    assert [a.score for a in group.answers] == pytest.approx(scores)
    assert [a.raw for a in group.answers] == [1.0] * 3
    service.close()


def test_undetermined_answers_have_no_score_and_too_few_requeue(open_service):
  def judge(reading):
    if "torn" in reading.blocks["ANSWER"]:
      raise ChatError("timeout", "Too slow.")
    return fakes.judge(reading)

  service = open_service(fakes.config(judge__max_failure_rate=1.0), judge=judge)
  first = service.poll(0, 4)[0]
  criterion = fakes.task(("Speaks of 'fox' in it.", 8, None)).rubric
  task = dataclasses.replace(first, rubric=criterion)
  rollouts = [
    fakes.rollout(task, i, text) for i, text in enumerate(["fox", "torn"])
  ]
  groups = service.grade(0, [(task, rollouts)])
  assert [a.score for a in groups[0].answers] == [1.0, None]
  metrics = service.report(0, groups)
  assert metrics["pool/requeued"] == 1
  assert metrics["judge/undetermined_rate"] == 0.5
  assert metrics["judge/failures"] == 3
  assert service.poll(1, 4)[0].task_id == first.task_id


def test_too_many_failed_votes_stop_the_run_with_its_state_saved(open_service):
  def judge(reading):
    raise ChatError("unavailable", "Down.")

  service = open_service(judge=judge)
  tasks = service.poll(0, 4)
  task = fakes.task(("Speaks of 'fox' in it.", 8, None))
  with pytest.raises(ServiceFailure, match="100% of the judge's votes"):
    service.grade(0, [(task, fakes.rollouts(task, 0))])
  service.close()
  again = open_service()
  assert again.poll(0, 4) == tasks


def test_a_used_up_quota_stops_the_run(open_service):
  def broke(reading):
    raise ChatError("quota", "Nothing left.")

  with pytest.raises(ServiceFailure, match="quota"):
    open_service(path="a", generator=broke).poll(0, 4)
  service = open_service(path="b", judge=broke)
  task = fakes.task(("Speaks of 'fox' in it.", 8, None))
  with pytest.raises(ServiceFailure, match="Nothing left"):
    service.grade(0, [(task, [fakes.rollout(task, 0, "fox")])])


@pytest.mark.parametrize("barrier", [True, False])
def test_invalid_tasks_are_asked_for_again_and_then_dropped(
  open_service, barrier
):
  asked = []

  def generator(reading):
    asked.append(reading)
    reply = json.loads(fakes.generator(reading))
    reply["rubric_items"][0]["criterion_text"] = "The answer names it."
    return json.dumps(reply)

  service = open_service(
    fakes.config(admission__barrier=barrier), generator=generator
  )
  with pytest.raises(ServiceFailure, match="requests were dropped"):
    service.poll(0, 2)
  names = {
    e.payload["task_id"] for e in service._store.events() if e.kind == "task"
  }
  assert len(asked) >= 4 * len(names) > 0
  assert all(
    event.payload["rejected"] == ["invalid"] * 4
    for event in service._store.events()
    if event.kind == "task"
  )


def test_the_generator_hears_of_the_solver(open_service):
  means = []

  def generator(reading):
    means.append(reading.blocks["SOLVER MEAN"])
    assert reading.blocks["TARGET BAND"] == "0.4-0.6"
    return fakes.generator(reading)

  service = open_service(generator=generator)
  run_step(service, 0)
  assert set(means) == {"unknown"}
  means.clear()
  run_step(service, 1)
  assert means and all(re.fullmatch(r"0\.\d{3}", mean) for mean in means)


def test_evolved_guidance_and_memo_reach_their_readers(open_service):
  seen = {"proposer": set(), "generator": set(), "memo": set()}

  def proposer(reading):
    seen["proposer"].add(reading.blocks["GUIDANCE"])
    return fakes.proposer(reading)

  def generator(reading):
    seen["generator"].add(reading.blocks["GUIDANCE"])
    seen["memo"].add(reading.blocks["MEMO"])
    return fakes.generator(reading)

  service = open_service(
    fakes.config(pool__capacity=200), proposer=proposer, generator=generator
  )
  for step in range(10):
    run_step(service, step)
  assert seen["generator"] == {"", "Ask for what happens."}
  assert len(seen["proposer"]) > 2
  assert len(seen["memo"]) > 1
  history = service.history()
  assert [entry["version"] for entry in history.guidance] == [1, 2, 3, 4, 5]
  assert history.guidance[0]["snapshot"]["inputs"]["formula"]
  assert [entry["step"] for entry in history.guidance] == [1, 3, 5, 7, 9]
  assert len(history.memos) > 1
  assert history.memos[0]["step"] is None and history.memos[0]["memo"] == ""
  assert history.memos[1]["step"] is not None and history.memos[1]["memo"]
  assert history.memos[0]["status"] == "kept" and history.memos[0]["honest"]


def test_the_service_takes_no_validation_score():
  public = {
    name: inspect.signature(value)
    for name, value in inspect.getmembers(GenerationService, callable)
    if not name.startswith("_")
  }
  assert set(public) == {
    "poll",
    "grade",
    "grade_canary",
    "give_up_when",
    "report",
    "prompts_for",
    "rankings",
    "rewards_for",
    "run",
    "event_number",
    "rewind",
    "cases",
    "history",
    "export_evidence",
    "step",
    "loop_lag",
    "close",
  }
  taken = {p for sig in public.values() for p in sig.parameters}
  assert taken == {
    "self",
    "step",
    "count",
    "task",
    "groups",
    "suspicion",
    "seq",
    "limit",
    "repaired",
    "path",
    "asked",
    "work",
    "learner",
    "others",
  }


@dataclasses.dataclass
class SlowChat:
  """A scripted model that yields now and then and counts what is in flight."""

  inner: ScriptedChat
  name: str = "slow"
  now: int = 0
  most: int = 0

  async def complete(self, request: ChatRequest) -> ChatReply:
    watched = request.role == "repairer"
    self.now += watched
    self.most = max(self.most, self.now)
    await asyncio.sleep(0.001)
    self.now -= watched
    return await self.inner.complete(request)


def test_in_the_background_a_bounded_number_is_admitted_at_once(open_service):
  slow = SlowChat(inner=fakes.chat())
  config = fakes.config(
    admission={"barrier": False, "concurrency": 2}, pool__capacity=12
  )
  roles = make_roles(slow, "story", config.judge, fakes.CHECKS)
  service = open_service(config, roles=roles)
  for step in range(3):
    run_step(service, step)
  assert 1 <= slow.most <= 2
  free = [e for e in service._store.events() if e.kind in ("requests", "task")]
  assert free and {event.step for event in free} == {None}


def test_rewinding_keeps_background_work_and_finishes_open_orders(open_service):
  config = fakes.config(admission__barrier=False, pool__capacity=12)
  service = open_service(config)
  remembered = service.event_number()
  tasks = service.poll(0, 4)
  service.close()
  again = open_service(config)
  again.rewind(remembered)
  kinds = [event.kind for event in again._store.events()]
  assert "served" not in kinds and kinds.count("task") >= 4
  assert again.poll(0, 4) == tasks
  for step in range(1, 3):
    run_step(again, step)


def test_a_background_failure_is_raised_at_the_next_poll(open_service):
  calls = []

  def generator(reading):
    calls.append(reading)
    if len(calls) > 4:
      raise ChatError("quota", "Nothing left.")
    return json.dumps(
      json.loads(fakes.generator(reading))
      | {
        "rubric_items": [
          {"criterion_text": "Brings it in.", "points": 8, "check": "has(fox)"}
        ]
      }
    )

  service = open_service(
    fakes.config(admission__barrier=False), generator=generator
  )
  tasks = service.poll(0, 4)
  # The orders of the next batch are being written while this one is graded.
  service.report(0, service.grade(0, answered(tasks, 0)))
  with pytest.raises(ServiceFailure, match="quota"):
    service.poll(1, 4)


def test_closing_ends_the_thread_and_the_lock(open_service):
  before = threading.active_count()
  service = open_service()
  service.poll(0, 4)
  service.close()
  service.close()
  assert threading.active_count() == before
  with pytest.raises(RuntimeError, match="closed"):
    service.poll(1, 4)
  open_service().close()


def test_rewinding_another_runs_store_is_refused(open_service):
  with pytest.raises(StoreError, match="not the store of that run"):
    open_service().rewind(500)


def test_cases_of_a_stale_rubric_are_not_repaired(open_service):
  service = open_service()
  tasks = service.poll(0, 4)
  stale = [
    dataclasses.replace(
      task, rubric=dataclasses.replace(task.rubric, version=7)
    )
    for task in tasks
  ]
  for served, queued in ((tasks, True), (stale, False)):
    groups = service.grade(0, [hacked(task) for task in served])
    review = asyncio.run(service._reporter.refereeing.review(groups))
    assert review.cases
    assert all(
      service._reporter._current(case) == queued for case in review.cases
    )
