"""Two learners on one trunk: what moves which, and what a restart restores."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from tests import fakes
from tests.policies import with_own_weights
from varl_jax import build, checkpoint_answers
from varl_jax.checkpoints import CheckpointError, Checkpoints
from varl_jax.config import from_config_dict
from varl_jax.methods.co_grading import GENERATOR
from varl_jax.metrics import MetricsWriter, Progress
from varl_jax.models.loading import load_model
from varl_jax.suspicion import RunState
from varl_jax.trainer import Trainer, TrainingFailure
from varl_jax.types import GradedGroup, Message

CONFIG = from_config_dict(
  {
    "method": {"name": "evo_rubrics"},
    "model": {"path": "story", "max_prompt": 48, "max_response": 8},
    "lora": {"rank": 4},
    "train": {
      "steps": 2,
      "tasks_per_step": 2,
      "minibatch_tasks": 2,
      "samples": 2,
      "min_graded": 2,
      "learning_rate": 1e-2,
    },
    "evo": {"sets": 2},
    "eval": {"interval": 0},
    "checkpoint": {"interval": 1},
  }
)


@dataclasses.dataclass
class FakeService:
  """Pays the second sample of each group, and no text.

  Attributes:
    pays: whose groups have unequal scores.
    scale: of the generator's rewards.
  """

  pays: tuple[str, ...] = ("policy", GENERATOR)
  scale: float = 1.0
  graded: dict = dataclasses.field(default_factory=dict)

  def poll(self, step, count):
    return [
      dataclasses.replace(
        fakes.task(task_id=f"t{step}{n}"),
        prompt=(Message(role="user", content="write a story about mia ."),),
      )
      for n in range(count)
    ]

  def prompts_for(self, step, learner):
    assert learner == GENERATOR
    return [
      dataclasses.replace(task, task_id=f"r/{task.task_id}")
      for task in self.poll(step, 2)
    ]

  def grade(self, step, groups, others):
    assert [len(rollouts) for _, rollouts in others[GENERATOR]] == [2, 2]
    self.graded[step] = others[GENERATOR]
    return [
      GradedGroup(
        task=task,
        step=step,
        answers=tuple(
          fakes.graded(self._score("policy", rollout), sample=rollout.sample)
          for rollout in rollouts
        ),
      )
      for task, rollouts in groups
    ]

  def rewards_for(self, step, learner):
    return [
      [self.scale * self._score(learner, rollout) for rollout in rollouts]
      for _, rollouts in self.graded[step]
    ]

  def _score(self, learner, rollout):
    return float(rollout.sample) if learner in self.pays else 0.5

  def report(self, step, groups, suspicion=None):
    return {}

  def measures(self, step):
    return {}

  def event_number(self):
    return 0

  def rewind(self, seq):
    pass


@pytest.fixture(scope="module")
def policy():
  return build.make_policy(CONFIG)


def trainer(folder, policy, service, *, metrics, stop_after=0):
  stops = iter(range(1, 99))
  return Trainer(
    config=CONFIG,
    service=service,
    worker=policy.worker,
    examiner=policy.examiner,
    learner=policy.learner,
    checkpoints=Checkpoints(folder=folder / "checkpoints", interval=1),
    metrics=metrics,
    progress=Progress(total=2),
    companions=policy.companions,
    interrupted=lambda: next(stops) == stop_after,
  )


def fresh(policy):
  """The state before the first step; the policy keeps its weights."""
  return with_own_weights(policy).fresh()


def train(folder, policy, *, stop_after=0, **service):
  own = with_own_weights(policy)
  """Trains, or goes on; returns the whole state."""
  with contextlib.closing(MetricsWriter(folder)) as metrics:
    made = trainer(
      folder,
      own,
      FakeService(**service),
      stop_after=stop_after,
      metrics=metrics,
    )
    _, done = made.run(own.params)
  found, _ = made.checkpoints.restore(done, fresh(policy).saved())
  return RunState.restored(found)


def leaves(state):
  return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def equal(one, two):
  return all(
    np.array_equal(a, b) for a, b in zip(leaves(one), leaves(two), strict=True)
  )


@pytest.fixture(scope="module")
def both(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("both")
  return folder, train(folder, policy)


def test_both_adapters_move_and_the_trunk_does_not(policy, both):
  _, state = both
  start = fresh(policy)
  assert not equal(state.policy, start.policy)
  assert not equal(state.others[GENERATOR], start.others[GENERATOR])
  assert set(state.policy.params) == {"lora"}
  _, trunk, _ = load_model("story")
  for learner, own in (
    (policy.learner, state.policy),
    (policy.companions[0].learner, state.others[GENERATOR]),
  ):
    kept = learner.whole(own.params)["params"]
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, trunk["params"]))
  one, two = (
    jax.tree.leaves(c.learner.whole(s.params)["params"])
    for c, s in (
      (policy, state.policy),
      (policy.companions[0], state.others[GENERATOR]),
    )
  )
  assert all(a is b for a, b in zip(one, two, strict=True))  # one trunk


@pytest.mark.parametrize("paid", ["policy", GENERATOR])
def test_neither_moves_by_the_others_reward(policy, both, tmp_path, paid):
  """Without advantages of its own a learner's gradient is exactly zero."""
  _, state = both
  found, start = (
    train(tmp_path, policy, pays=(paid,)),
    fresh(policy),
  )
  own = {"policy": found.policy, **found.others}
  before = {"policy": start.policy, **start.others}
  unpaid = GENERATOR if paid == "policy" else "policy"
  assert equal(own[unpaid], before[unpaid])
  # What the other earns does not reach the one that is paid.
  assert equal(own[paid], {"policy": state.policy, **state.others}[paid])
  last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
  norms = {
    "policy": last["train/grad_norm"],
    GENERATOR: last[f"{GENERATOR}/train/grad_norm"],
  }
  assert norms[unpaid] == 0 < norms[paid]


def test_a_stopped_run_ends_bit_equal(policy, both, tmp_path):
  folder, state = both
  half = train(tmp_path, policy, stop_after=1)
  assert not equal(half.policy, state.policy)
  resumed = train(tmp_path, policy)
  assert equal(resumed.policy, state.policy)
  assert equal(resumed.others[GENERATOR], state.others[GENERATOR])
  assert rows(tmp_path) == rows(folder)


def rows(folder):
  timed = ("time/", "rollout/new_tokens_per_s", "train/tokens_per_s")
  return [
    {k: v for k, v in json.loads(line).items() if not k.startswith(timed)}
    for line in (folder / "metrics.jsonl").read_text().splitlines()
  ]


def test_metrics_of_each_stand_under_its_name(both):
  folder, _ = both
  last = rows(folder)[-1]
  assert last["reward/mean"] == last[f"{GENERATOR}/reward/mean"] == 0.5
  assert last[f"{GENERATOR}/train/updates"] == 1
  assert last[f"{GENERATOR}/rollout/length"] > 0


def test_a_checkpoint_is_a_dict_by_name(policy, both):
  folder, state = both
  checkpoints = Checkpoints(folder=folder / "checkpoints")
  assert set(state.saved()) == {"policy", GENERATOR}
  with pytest.raises(CheckpointError, match=GENERATOR):
    checkpoints.restore(2, {"policy": fresh(policy).policy})


def test_an_update_that_is_not_finite_stops_the_run(policy, tmp_path):
  with pytest.raises(TrainingFailure, match=r"train\.learning_rate"):
    train(tmp_path, policy, scale=1e38)


def test_an_evaluation_reads_the_policy_of_two(policy, both):
  folder, state = both
  params, step, files = checkpoint_answers._restored(policy, folder)
  assert step == 2
  assert files
  assert equal(dataclasses.replace(state.policy, params=params), state.policy)
