"""Learners beside the policy: sampled and trained in the same step.

A run may train several sets of weights on one trunk (`methods.learners`). The
policy is the trainer's own; each other one is a `Companion` here. What they are
asked and what they earn, the service says.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from varl_jax.config import TrainConfig
from varl_jax.rl.advantages import group_advantages
from varl_jax.rl.batch import Batch, pack
from varl_jax.rl.train_step import Learner, TrainState
from varl_jax.rollouts import Group, RolloutWorker
from varl_jax.step_measures import length_metrics, score_metrics
from varl_jax.types import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Companion:
  """A learner beside the policy; holds no state of the run.

  Attributes:
    name: as its method calls it.
    worker: samples it.
    learner: updates its weights.
    params: what it begins with, on the trunk of the policy.
    train: samples a prompt, least number of scores a group.
    max_response: tokens it may write.
  """

  name: str
  worker: RolloutWorker
  learner: Learner
  params: Any
  train: TrainConfig
  max_response: int

  def collect(
    self, tasks: Sequence[Task], state: TrainState, *, step: int
  ) -> list[Group]:
    """Samples what it writes to each prompt that fits."""
    return self.worker.collect(
      tasks, n=self.train.samples, params=state.params, step=step
    )

  def batch(
    self, groups: Sequence[Group], rewards: Sequence[Sequence[float | None]]
  ) -> tuple[Batch | None, dict[str, float]]:
    """What its update needs, and metrics under its name.

    Args:
      groups: of the step.
      rewards: one a rollout.

    Returns:
      None without a rollout to train on.
    """
    batch, measured = scored_batch(
      groups,
      rewards,
      raws=rewards,
      min_graded=self.train.min_graded,
      max_prompt=self.worker.max_prompt,
      max_response=self.max_response,
    )
    measured |= length_metrics([r for g in groups for r in g.rollouts])
    return batch, self.named(measured)

  def named(self, measured: Mapping[str, float]) -> dict[str, float]:
    """Metrics under its name."""
    return {f"{self.name}/{key}": value for key, value in measured.items()}


def scored_batch(
  groups: Sequence[Group],
  rewards: Sequence[Sequence[float | None]],
  *,
  raws: Sequence[Sequence[float | None]],
  min_graded: int,
  max_prompt: int,
  max_response: int,
) -> tuple[Batch | None, dict[str, float]]:
  """Scores -> advantages, packed with the rollouts they belong to.

  Args:
    groups: of one step.
    rewards: one a rollout of each group, None for what could not be scored.
    raws: the same as they are reported.
    min_graded: a group with fewer scores is not trained on.
    max_prompt: tokens.
    max_response: tokens.

  Returns:
    The batch, None without a rollout to train on, and `reward/...`.
  """
  scores, valid, ids = [], [], []
  for index, found in enumerate(rewards):
    enough = sum(score is not None for score in found) >= min_graded
    for score in found:
      scores.append(np.nan if score is None else score)
      valid.append(enough and score is not None)
      ids.append(index)
  flat = [raw for row in raws for raw in row]
  measured = score_metrics(scores, flat, ids, valid)
  if not any(valid):
    return None, measured
  batch = pack(
    [g.prompt for g in groups for _ in g.rollouts],
    [r for g in groups for r in g.rollouts],
    advantages=group_advantages(
      np.array(scores), np.array(ids), np.array(valid)
    ),
    group_ids=ids,
    valid=valid,
    max_prompt=max_prompt,
    max_response=max_response,
  )
  return batch, measured


def fresh_states(companions: Sequence[Companion]) -> dict[str, TrainState]:
  """The state of each before the first step."""
  return {c.name: c.learner.init(c.params) for c in companions}
