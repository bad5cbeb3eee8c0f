"""The loop in one process: its order, its invariants, its restarts."""

import contextlib
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from tests.policies import with_own_weights
from varl_jax import build
from varl_jax.checkpoints import CheckpointError, Checkpoints
from varl_jax.config import Config, MethodConfig, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.metrics import MetricsWriter, Progress
from varl_jax.service.calls import ServiceFailure
from varl_jax.story import world
from varl_jax.trainer import Trainer, TrainingFailure
from varl_jax.types import Task, to_json


@dataclasses.dataclass
class Recorder:
  """The scripted model, with every request and reply kept."""

  name: str = world.CHAT.name
  requests: list[ChatRequest] = dataclasses.field(default_factory=list)
  replies: list[str] = dataclasses.field(default_factory=list)

  async def complete(self, request: ChatRequest) -> ChatReply:
    reply = await world.CHAT.complete(request)
    self.requests.append(request)
    self.replies.append(reply.text)
    return reply

  def of(self, role):
    return [
      reply
      for request, reply in zip(self.requests, self.replies, strict=True)
      if request.role == role
    ]


@dataclasses.dataclass
class Spy:
  """A service that notes the calls it passes on."""

  inner: object
  calls: list[str] = dataclasses.field(default_factory=list)
  served: list[Task] = dataclasses.field(default_factory=list)
  graded: list = dataclasses.field(default_factory=list)
  suspicions: list = dataclasses.field(default_factory=list)
  unscorable: bool = False
  fail_at: int = 0

  def poll(self, step, count):
    self.calls.append("poll")
    tasks = self.inner.poll(step, count)
    self.served += tasks
    return tasks

  def grade(self, step, groups, others):
    self.calls.append("grade")
    assert others == {}
    if step == self.fail_at:
      raise ServiceFailure("The judge is down.")
    graded = self.inner.grade(step, groups, others)
    if self.unscorable:
      graded = [_without_scores(group) for group in graded]
    self.graded += graded
    return graded

  def report(self, step, groups, suspicion=None):
    self.calls.append("report")
    self.suspicions.append(suspicion)
    return self.inner.report(step, groups, suspicion)

  def rankings(self, step):
    self.calls.append("rankings")
    return self.inner.rankings(step)

  def measures(self, step):
    return self.inner.measures(step)

  def event_number(self):
    return self.inner.event_number()

  def rewind(self, seq):
    self.inner.rewind(seq)


def _without_scores(group):
  """Leaves three scorable answers, fewer than the least that trains."""
  answers = tuple(
    dataclasses.replace(answer, score=None, raw=None)
    if answer.sample >= 3
    else answer
    for answer in group.answers
  )
  return dataclasses.replace(group, answers=answers)


@dataclasses.dataclass
class SpyLearner:
  inner: object
  calls: list[str]
  batches: list = dataclasses.field(default_factory=list)

  def init(self, params):
    return self.inner.init(params)

  def update(self, state, batch):
    self.calls.append("update")
    self.batches.append(batch)
    return self.inner.update(state, batch)


@dataclasses.dataclass
class FakeValidator:
  value: float
  fails_at: int = 0
  asked: int = 0

  @property
  def tasks(self):
    return []

  def score(self, tasks, answers):
    self.asked += 1
    if self.asked == self.fails_at:
      raise ServiceFailure("The judge of the validation is down.")
    return {"eval/score": self.value}


CONFIG = from_config_dict(
  {
    "domain": "story",
    "model": {"path": "story", "max_prompt": 48, "max_response": 64},
    "train": {
      "steps": 3,
      "tasks_per_step": 12,
      "minibatch_tasks": 6,
      "learning_rate": 1e-3,
    },
    "admission": {"barrier": True},
    "evolution": {"interval": 1, "cases": 4},
    "eval": {"interval": 1},
    "checkpoint": {"interval": 1},
  }
)


@pytest.fixture(scope="module")
def policy():
  """One worker and one learner: they hold no state, and compile once."""
  return build.make_policy(CONFIG)


def train(
  folder,
  policy,
  *,
  value=0.5,
  stop_after=None,
  judge_fails_at=0,
  params=None,
  **spying,
):
  """Trains in `folder`; returns the spies and the final state."""
  worker = policy.worker
  params = params or with_own_weights(policy).params
  chat = Recorder()
  domain = dataclasses.replace(load_domain(CONFIG), chat=chat)
  service = build.make_service(CONFIG, domain, folder / "service.sqlite")
  spy = Spy(service, **spying)
  spied = SpyLearner(policy.learner, spy.calls)
  metrics = MetricsWriter(folder)
  trainer = Trainer(
    config=CONFIG,
    service=spy,
    worker=worker,
    examiner=policy.examiner,
    learner=spied,
    checkpoints=Checkpoints(folder=folder / "checkpoints", interval=2),
    metrics=metrics,
    progress=Progress(total=3),
    validator=FakeValidator(value, fails_at=judge_fails_at),
    interrupted=lambda: len(spied.batches) == stop_after,
  )
  with contextlib.closing(metrics), contextlib.closing(service):
    state, done = trainer.run(params)
  return chat, spy, spied, state, done


def rows(folder):
  return [
    {
      k: v
      for k, v in json.loads(line).items()
      if not k.startswith(("time/", "service/")) and not k.endswith("_per_s")
    }
    for line in (folder / "metrics.jsonl").read_text().splitlines()
  ]


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("trained")
  return folder, *train(folder, policy)


def test_stages_come_in_the_stated_order(trained):
  _, _, spy, _, _, done = trained
  assert done == 3
  assert spy.calls == ["poll", "grade", "update", "report"] * 3


def test_validation_scores_reach_no_role(trained, policy, tmp_path):
  """Another validation score changes no request to any role."""
  _, chat, *_ = trained
  other, *_ = train(tmp_path, policy, value=0.123456)
  assert [r.messages for r in other.requests] == [
    r.messages for r in chat.requests
  ]
  assert not any(
    "0.123456" in m.content for r in other.requests for m in r.messages
  )


def test_every_role_of_the_method_was_asked(trained):
  _, chat, *_ = trained
  assert {r.role for r in chat.requests} == {
    "proposer",
    "generator",
    "adversary",
    "honest",
    "judge",
    "referee",
    "repairer",
    "patcher",
    "analyst",
    "meta_optimizer",
    "memo_optimizer",
  }


def test_adversary_text_reaches_no_training_batch(trained, policy):
  _, chat, spy, spied, *_ = trained
  attacks = set(chat.of("adversary"))
  assert attacks
  served = json.dumps(to_json(spy.served))
  assert not any(attack in served for attack in attacks)
  tokenizer = policy.worker.tokenizer
  for batch in spied.batches:
    for row, length in zip(batch.tokens, batch.lengths, strict=True):
      text = tokenizer.decode(row[:length].tolist())
      assert not any(attack in text for attack in attacks)


def test_batches_hold_the_graded_rollouts_alone(trained, policy):
  _, _, spy, spied, *_ = trained
  tokenizer = policy.worker.tokenizer
  trained_texts = [
    tokenizer.decode(target[mask].tolist())
    for batch in spied.batches
    for target, mask in zip(batch.targets, batch.mask, strict=True)
  ]
  graded = [a.answer for group in spy.graded for a in group.answers]
  assert trained_texts == graded


def test_judge_is_named_on_every_verdict(trained):
  _, _, spy, *_ = trained
  named = {
    verdict.judge
    for group in spy.graded
    for answer in group.answers
    for verdict in answer.verdicts
  }
  assert named == {"check", world.CHAT.name}


def test_one_rubric_version_inside_a_group(trained):
  _, _, spy, *_ = trained
  versions = {
    (group.task.task_id, group.step): len(group.task.rubric.criteria)
    for group in spy.graded
  }
  for group in spy.graded:
    for answer in group.answers:
      assert len(answer.verdicts) == versions[group.task.task_id, group.step]


def test_stopped_and_resumed_ends_bit_equal(trained, policy, tmp_path):
  folder, *_, state, _ = trained
  *_, done = train(tmp_path, policy, stop_after=1)
  assert done == 1
  *_, resumed, done = train(tmp_path, policy)
  assert done == 3
  assert rows(tmp_path) == rows(folder)
  for one, two in zip(
    _leaves(state.params), _leaves(resumed.params), strict=True
  ):
    np.testing.assert_array_equal(one, two)


def test_weights_are_held_once_and_given_up_for_a_checkpoints(policy, tmp_path):
  """A run takes over the weights it is given; one that goes on needs none."""
  for stop_after in (1, None):
    given = with_own_weights(policy)
    leaves = jax.tree.leaves(given.params)
    *_, state, _ = train(
      tmp_path, policy, params=given.params, stop_after=stop_after
    )
    assert all(leaf.is_deleted() for leaf in leaves)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def _leaves(tree):
  if isinstance(tree, dict):
    return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
  return [np.asarray(tree)]


def test_too_few_scorable_answers_train_nothing(policy, tmp_path):
  _, spy, spied, state, _ = train(tmp_path, policy, unscorable=True)
  assert not spied.batches
  assert int(state.updates) == 0
  last = rows(tmp_path)[-1]
  assert last["reward/untrained"] == 12 * 8
  assert last["pool/requeued"] == 12


def _damage(folder, *steps):
  for step in steps:
    (folder / "checkpoints" / str(step) / "meta" / "metadata").write_bytes(b"")


def test_lost_checkpoints_do_not_start_the_run_over(policy, tmp_path):
  train(tmp_path, policy)
  before = rows(tmp_path)
  _damage(tmp_path, 2, 3)
  with pytest.raises(CheckpointError, match=r"step 3 .* so are all others"):
    train(tmp_path, policy)
  shutil.rmtree(tmp_path / "checkpoints")
  with pytest.raises(CheckpointError, match=r"step 2 .* so are all others"):
    train(tmp_path, policy)
  assert rows(tmp_path) == before


def test_damaged_newest_checkpoint_falls_back_and_says_so(
  trained, policy, tmp_path, capsys
):
  folder, *_ = trained
  train(tmp_path, policy)
  _damage(tmp_path, 3)
  train(tmp_path, policy)
  assert "step 3" in (said := capsys.readouterr().err)
  assert "going on from step 2" in said
  assert rows(tmp_path) == rows(folder)


def test_checkpoint_of_another_config_is_refused(policy, tmp_path, monkeypatch):
  train(tmp_path, policy)
  other = dataclasses.replace(CONFIG, seed=99)
  monkeypatch.setitem(globals(), "CONFIG", other)
  with pytest.raises(CheckpointError, match="another config"):
    train(tmp_path, policy)


def test_prompts_that_never_fit_stop_the_run(policy, tmp_path, monkeypatch):
  short = dataclasses.replace(policy.worker, max_prompt=5)
  cramped = dataclasses.replace(policy, worker=short)
  with pytest.raises(TrainingFailure, match=r"longer than model\.max_prompt"):
    train(tmp_path, cramped)


def test_infinite_steps_stop_the_run_with_its_weights_kept(tmp_path):
  config = dataclasses.replace(
    CONFIG, train=dataclasses.replace(CONFIG.train, learning_rate=1e38)
  )
  with pytest.raises(TrainingFailure, match=r"train\.learning_rate"):
    train(tmp_path, build.make_policy(config))
  assert Checkpoints(folder=tmp_path / "checkpoints").latest() is None


def test_service_failure_saves_the_last_whole_step(trained, policy, tmp_path):
  folder, *_, state, _ = trained
  with pytest.raises(ServiceFailure):
    train(tmp_path, policy, fail_at=2)
  checkpoints = Checkpoints(folder=tmp_path / "checkpoints", interval=1)
  assert checkpoints.latest() == 1
  *_, resumed, done = train(tmp_path, policy)
  assert done == 3
  assert rows(tmp_path) == rows(folder)
  for one, two in zip(
    _leaves(state.params), _leaves(resumed.params), strict=True
  ):
    np.testing.assert_array_equal(one, two)


def test_a_failed_validation_keeps_the_step_and_its_record(
  trained, policy, tmp_path
):
  folder, *_, state, _ = trained
  with pytest.raises(ServiceFailure, match="of the validation"):
    train(tmp_path, policy, judge_fails_at=2)
  assert Checkpoints(folder=tmp_path / "checkpoints").latest() == 1
  assert [row["step"] for row in rows(tmp_path)] == [0]
  _, spy, _, resumed, done = train(tmp_path, policy)
  assert done == 3
  assert spy.calls.count("update") == 2
  assert rows(tmp_path) == rows(folder)
  for one, two in zip(
    _leaves(state.params), _leaves(resumed.params), strict=True
  ):
    np.testing.assert_array_equal(one, two)


@dataclasses.dataclass(frozen=True)
class DeadJudge:
  """The scripted model, but every judge call times out."""

  name: str = "dead"

  async def complete(self, request: ChatRequest) -> ChatReply:
    if request.role == "judge":
      raise ChatError("timeout", "No reply in time.")
    return await world.CHAT.complete(request)


def test_dead_judge_stops_with_its_own_exit_code(
  policy, tmp_path, monkeypatch, capsys
):
  config = dataclasses.replace(
    CONFIG,
    method=MethodConfig(
      name="generation_only", admission_repair=False, memo=False
    ),
  )
  alive = load_domain(config)
  dead = dataclasses.replace(alive, chat=DeadJudge())
  monkeypatch.setattr(
    build, "make_policy", lambda config: with_own_weights(policy)
  )
  monkeypatch.setattr(build, "load_domain", lambda config: dead)
  assert build.run(config, tmp_path) == build.JUDGE_FAILED
  assert "same command goes on" in capsys.readouterr().err
  monkeypatch.setattr(build, "load_domain", lambda config: alive)
  assert build.run(config, tmp_path) == build.DONE
  assert [r["step"] for r in rows(tmp_path)] == [0, 1, 2, 3]
  assert all(r["reward/unscorable"] == 0 for r in rows(tmp_path)[1:])


def test_config_of_the_test_is_the_papers_elsewhere():
  assert CONFIG.patch == Config().patch
