"""The discriminator in the loop: what it is told, and exact restarts."""

import contextlib
import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from tests import fakes
from tests.policies import with_own_weights
from tests.trainer_test import Spy
from varl_jax import build
from varl_jax.checkpoints import CheckpointError, Checkpoints
from varl_jax.config import DiscriminatorConfig, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.metrics import MetricsWriter, Progress
from varl_jax.rl.batch import pack
from varl_jax.rl.discriminator import Discriminator
from varl_jax.rl.train_step import TrainState
from varl_jax.suspicion import RunState, Suspecting
from varl_jax.trainer import Trainer
from varl_jax.types import GradedGroup, GroupRanking

TREE = {
  "domain": "story",
  "model": {"path": "story", "max_prompt": 48, "max_response": 64},
  "train": {
    "steps": 4,
    "tasks_per_step": 8,
    "samples": 4,
    "minibatch_tasks": 4,
    "learning_rate": 1e-3,
  },
  "patch": {"referee_share": 0.5},
  "discriminator": {"on": True, "warmup_updates": 2},
  "admission": {"barrier": True},
  "evolution": {"interval": 2, "cases": 4},
  "eval": {"interval": 0},
  "checkpoint": {"interval": 1},
}
CONFIG = from_config_dict(TREE)


@pytest.fixture(scope="module")
def policy():
  return build.make_policy(CONFIG)


def train(folder, policy, *, config=CONFIG, stop_after=None, fail_at=0):
  """Trains in `folder`; returns the spy, what was saved last, and the steps."""
  service = build.make_service(
    config, load_domain(config), folder / "service.sqlite"
  )
  spy = Spy(service, fail_at=fail_at)
  checkpoints = Checkpoints(folder=folder / "checkpoints", interval=2)
  metrics = MetricsWriter(folder)
  trainer = Trainer(
    config=config,
    service=spy,
    worker=policy.worker,
    examiner=policy.examiner,
    learner=policy.learner,
    checkpoints=checkpoints,
    metrics=metrics,
    progress=Progress(total=4),
    suspecting=policy.suspecting if config.discriminator.on else None,
    interrupted=lambda: spy.calls.count("report") == stop_after,
  )
  with contextlib.closing(metrics), contextlib.closing(service):
    _, done = trainer.run(with_own_weights(policy).params)
    number = service.event_number()
  return spy, saved(checkpoints, policy, config), (done, number)


def saved(checkpoints, policy, config=CONFIG):
  state = RunState(policy=policy.learner.init(with_own_weights(policy).params))
  if config.discriminator.on:
    state = dataclasses.replace(state, head=policy.suspecting.init())
  step = checkpoints.latest()
  return checkpoints.restore(step, state.saved())[0]


def rows(folder):
  return [
    {
      k: v
      for k, v in json.loads(line).items()
      if not k.startswith(("time/", "service/")) and not k.endswith("_per_s")
    }
    for line in (folder / "metrics.jsonl").read_text().splitlines()
  ]


def assert_bit_equal(one, two):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("trained")
  return folder, *train(folder, policy)


def test_it_has_its_say_after_its_warm_up(trained):
  _, spy, state, _ = trained
  assert spy.calls == ["poll", "grade", "report", "rankings"] * 4
  assert spy.suspicions[:2] == [None, None]
  assert all(len(given) == 8 for given in spy.suspicions[2:])
  assert int(state.head.updates) == 4
  assert np.abs(np.asarray(state.head.head["kernel"])).max() > 0


def test_the_most_suspicious_groups_are_refereed(trained):
  folder, spy, *_ = trained
  for row in rows(folder):
    assert row["referee/groups"] == row["referee/skipped"] == 4
    assert "exploit/rate" not in row
  # A group is suspected where an exploit is possible, and nowhere else.
  groups = spy.graded[-8:]
  for group, given in zip(groups, spy.suspicions[-1], strict=True):
    scores = [a.score for a in group.answers if a.answer is not None]
    assert (given is not None) == (max(scores) - min(scores) >= 0.15 - 1e-9)


def test_metrics_tell_how_well_it_foretold_the_referee(trained):
  folder, *_ = trained
  found = rows(folder)
  assert [row["discriminator/in_use"] for row in found] == [0, 0, 1, 1]
  assert found[0]["discriminator/loss"] == pytest.approx(math.log(2), rel=1e-5)
  assert found[0]["discriminator/brier"] == pytest.approx(0.25)
  assert found[0]["discriminator/accuracy"] == 0.5
  for row in found:
    assert row["discriminator/pairs"] > 0


def test_stopped_and_resumed_ends_bit_equal(trained, policy, tmp_path):
  folder, _, state, ended = trained
  *_, (done, _) = train(tmp_path, policy, stop_after=3)
  assert done == 3
  spy, resumed, again = train(tmp_path, policy)
  assert again == ended
  assert rows(tmp_path) == rows(folder)
  assert_bit_equal(resumed, state)
  assert spy.suspicions == trained[1].suspicions[3:]


def test_a_service_that_failed_loses_nothing_of_it(trained, policy, tmp_path):
  from varl_jax.service.calls import ServiceFailure

  folder, _, state, ended = trained
  with pytest.raises(ServiceFailure):
    train(tmp_path, policy, fail_at=4)
  assert (
    saved(Checkpoints(folder=tmp_path / "checkpoints"), policy).head.updates
    == 3
  )
  _, resumed, again = train(tmp_path, policy)
  assert again == ended
  assert rows(tmp_path) == rows(folder)
  assert_bit_equal(resumed, state)


def test_the_head_leaves_the_policy_alone(policy, tmp_path):
  """Where every group is refereed, the head changes nothing but itself."""
  plain = dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(CONFIG.train, steps=2),
    patch=dataclasses.replace(CONFIG.patch, referee_share=1.0),
    discriminator=DiscriminatorConfig(),
  )
  watched = dataclasses.replace(
    plain, discriminator=DiscriminatorConfig(on=True)
  )
  found = {}
  for config in (plain, watched):
    folder = tmp_path / str(config.discriminator.on)
    folder.mkdir()
    spy, state, _ = train(folder, policy, config=config)
    found[config.discriminator.on] = state
    assert ("rankings" in spy.calls) == config.discriminator.on
  # Without it a checkpoint is the policy's alone, as it ever was.
  assert isinstance(found[False], TrainState)
  assert_bit_equal(found[True].policy, found[False])
  without, with_it = (rows(tmp_path / str(on)) for on in (False, True))
  for row in with_it:
    for name in [name for name in row if name.startswith("discriminator/")]:
      del row[name]
  assert with_it == without


def test_a_checkpoint_without_the_head_is_refused(policy, tmp_path):
  checkpoints = Checkpoints(folder=tmp_path)
  state = RunState(policy=policy.learner.init(with_own_weights(policy).params))
  checkpoints.save(1, state.saved(), {})
  wanted = dataclasses.replace(state, head=policy.suspecting.init())
  with pytest.raises(CheckpointError, match="it lacks"):
    checkpoints.restore(1, wanted.saved())


def suspecting(**settings):
  """A head whose trunk gives every token the state of its id."""
  table = jax.random.normal(jax.random.key(0), (16, 8))
  return Suspecting(
    discriminator=Discriminator(
      hidden_fn=lambda params, tokens, lengths: params[tokens]
    ),
    whole=lambda params: params,
    width=8,
    rows=2,
    epsilon=0.15,
    config=DiscriminatorConfig(on=True, **settings),
  ), table


def looked(parts, table, *, groups, head):
  answers = [a for group in groups for a in group.answers]
  rollouts = [
    dataclasses.replace(
      fakes.rollout(group.task, a.sample, a.answer), tokens=(3 + i, 4)
    )
    for group in groups
    for i, a in enumerate(group.answers)
  ]
  batch = pack(
    [(1, 2)] * len(answers),
    rollouts,
    advantages=np.zeros(len(answers)),
    group_ids=[i for i, group in enumerate(groups) for _ in group.answers],
  )
  state = RunState(
    policy=TrainState(params=table, opt_state=(), updates=np.int32(0)),
    head=head,
  )
  return parts.look(state, batch, groups)


def graded_group(name, scores, texts=None):
  texts = texts or [f"Text {i}." for i in range(len(scores))]
  return GradedGroup(
    task=fakes.task(task_id=name),
    step=1,
    answers=tuple(
      fakes.graded(score, text, sample=i)
      for i, (score, text) in enumerate(zip(scores, texts, strict=True))
    ),
  )


def test_groups_of_any_size_and_truncated_answers():
  parts, table = suspecting(warmup_updates=0)
  groups = [
    graded_group("a", [0.9, 0.5, 0.5]),
    graded_group("b", [0.5, 0.5]),
    # The only answer that was paid less is none the referee could prefer.
    graded_group("c", [0.9, 0.0], ["Text.", None]),
    graded_group("d", [None, 0.2, 0.9, 0.1]),
  ]
  look = looked(parts, table, groups=groups, head=parts.init())
  assert look.suspicion == (0.0, None, None, 0.0)
  assert look.features.shape == (11, 8)


def test_rankings_are_learnt_row_by_row():
  parts, table = suspecting(warmup_updates=1, repaired_weight=0.5)
  groups = [graded_group("a", [0.9, 0.5, 0.1]), graded_group("b", [0.9, 0.5])]
  look = looked(parts, table, groups=groups, head=parts.init())
  assert look.suspicion is None
  head, found = parts.learn(
    parts.init(),
    look,
    [GroupRanking(task_id="a", tiers=((2,), (0, 1)), repaired=(2, 0))],
  )
  # Two pairs of the tiers and that of the case; group b was not ranked.
  assert found["discriminator/pairs"] == 3
  assert found["discriminator/in_use"] == 0
  again = looked(parts, table, groups=groups, head=head)
  assert again.quality[2] > max(again.quality[:2])
  assert again.suspicion is not None and again.suspicion[0] > 0


def test_a_step_without_rankings_teaches_nothing():
  parts, table = suspecting()
  groups = [graded_group("a", [0.9, 0.5])]
  look = looked(parts, table, groups=groups, head=parts.init())
  head, found = parts.learn(parts.init(), look, [])
  assert int(head.updates) == 0
  assert found == {"discriminator/pairs": 0, "discriminator/in_use": 0}


def test_qualities_that_are_not_finite_say_nothing():
  parts, _ = suspecting()
  groups = [graded_group("a", [0.9, 0.5])]
  assert parts.suspicions(np.array([0.1, 0.2]), groups) is not None
  assert parts.suspicions(np.array([np.nan, 0.2]), groups) is None
