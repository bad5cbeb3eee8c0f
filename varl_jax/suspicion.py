"""The discriminator beside the loop: suspicion before, learning after a report.

A step looks at its graded groups with the weights that wrote them, tells the
service which of them are suspicious, and learns from the referee's rankings of
those that were refereed. What it is measured by in a step it has not learnt
from yet.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from varl_jax.config import DiscriminatorConfig
from varl_jax.rl.batch import Batch
from varl_jax.rl.discriminator import (
  Comparisons,
  Discriminator,
  DiscriminatorState,
  pair_metrics,
  suspicion,
  tier_comparisons,
)
from varl_jax.rl.train_step import TrainState
from varl_jax.types import GradedAnswer, GradedGroup, GroupRanking

_POLICY: Final = "policy"
_HEAD: Final = "head"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
  """All weights that a run trains.

  Attributes:
    policy: the solver's.
    head: the discriminator's, None without one.
    others: those of learners beside the policy, by name.
  """

  policy: TrainState
  head: DiscriminatorState | None = None
  others: dict[str, TrainState] = dataclasses.field(default_factory=dict)

  def saved(self) -> Any:
    """What a checkpoint holds: the policy alone where there is nothing else.

    With other learners it is a dict by name, the head's being `head`.
    """
    if self.others:
      head = {} if self.head is None else {_HEAD: self.head}
      return {_POLICY: self.policy, **head, **self.others}
    return self.policy if self.head is None else self

  @classmethod
  def restored(cls, found: Any) -> "RunState":
    """The state of what `saved` gave."""
    if isinstance(found, cls):
      return found
    if not isinstance(found, dict):
      return cls(policy=found)
    others = dict(found)
    policy, head = others.pop(_POLICY), others.pop(_HEAD, None)
    return cls(policy=policy, head=head, others=others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
  """What the head thinks of a step's answers.

  Attributes:
    groups: of the step, in the order of the rows.
    features: [B, D], of the answers.
    quality: float32 [B].
    suspicion: one a group; None while the head has no say.
  """

  groups: tuple[GradedGroup, ...]
  features: Any
  quality: np.ndarray
  suspicion: tuple[float | None, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suspecting:
  """Looks at groups and learns from rankings; holds no state of the run.

  Attributes:
    discriminator: trains and reads the head.
    whole: a state's parameters to the tree that the trunk takes.
    width: D of the trunk.
    rows: that go through the trunk at a time, 0 for all.
    epsilon: least gap of scores of an exploit case.
    config: warm-up and weights.
  """

  discriminator: Discriminator
  whole: Callable[[Any], Any]
  width: int
  rows: int
  epsilon: float
  config: DiscriminatorConfig

  def init(self) -> DiscriminatorState:
    """A head that has learnt nothing."""
    return self.discriminator.init(self.width)

  def look(
    self, state: RunState, batch: Batch, groups: Sequence[GradedGroup]
  ) -> Look:
    """Compares what the head thinks of a batch with what it was paid.

    Args:
      state: read only.
      batch: the answers of all groups, one row each and in their order.
      groups: of one step.
    """
    assert state.head is not None
    features = self.discriminator.features(
      self.whole(state.policy.params), batch, rows=self.rows
    )
    quality = self.discriminator.quality(state.head, features)
    learnt = int(state.head.updates) >= self.config.warmup_updates
    return Look(
      groups=tuple(groups),
      features=features,
      quality=quality,
      suspicion=self.suspicions(quality, groups) if learnt else None,
    )

  def suspicions(
    self, quality: np.ndarray, groups: Sequence[GradedGroup]
  ) -> tuple[float | None, ...] | None:
    """One a group, see `discriminator.suspicion`.

    Returns:
      None when a quality is not finite: then nothing can be said.
    """
    if not np.isfinite(quality).all():
      return None
    found, values = [], iter(quality.tolist())
    for group in groups:
      own = list(itertools.islice(values, len(group.answers)))
      scores = [comparable_score(answer) for answer in group.answers]
      found.append(suspicion(own, scores, epsilon=self.epsilon))
    return tuple(found)

  def learn(
    self, head: DiscriminatorState, look: Look, rankings: Sequence[GroupRanking]
  ) -> tuple[DiscriminatorState, dict[str, float]]:
    """One update on a step's rankings.

    Args:
      head: consumed.
      look: of the step.
      rankings: of its groups, or of some.

    Returns:
      The new head and `discriminator/...` of the one before.
    """
    tiers, pairs = _comparisons(look.groups, rankings)
    measured = pair_metrics(look.quality, tiers)
    head, found = self.discriminator.update(
      head,
      look.features,
      tiers.plus(pairs, weight=self.config.repaired_weight),
    )
    measured["discriminator/in_use"] = float(look.suspicion is not None)
    return head, measured | found


def comparable_score(answer: GradedAnswer) -> float | None:
  """The score of an answer that the referee would be shown."""
  return None if answer.answer is None else answer.score


def _comparisons(
  groups: Sequence[GradedGroup], rankings: Sequence[GroupRanking]
) -> tuple[Comparisons, list[tuple[int, int]]]:
  """Rows of the batch in their tiers, and the pairs of repaired cases."""
  by_task = {ranking.task_id: ranking for ranking in rankings}
  tiers: list[int | None] = []
  ids: list[int] = []
  pairs = []
  for index, group in enumerate(groups):
    first = len(tiers)
    tiers += [None] * len(group.answers)
    ids += [index] * len(group.answers)
    ranking = by_task.get(group.task.task_id)
    if ranking is None:
      continue
    for place, tier in enumerate(ranking.tiers):
      for answer in tier:
        tiers[first + answer] = place
    if ranking.repaired:
      better, worse = ranking.repaired
      pairs.append((first + better, first + worse))
  return tier_comparisons(tiers, ids), pairs
