"""The blind referee over a step's groups, and the cases it uncovers.

With `patch.referee_share` below 1 (not in the paper) it is asked about the most
suspicious groups alone, so that what it finds is no sample of all groups.
"""

import asyncio
import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from varl_jax.config import PatchConfig
from varl_jax.llm.chat import ChatError
from varl_jax.llm.seeds import derive_seed
from varl_jax.roles.referee import Ranking, Referee
from varl_jax.service.calls import attempt
from varl_jax.service.exploits import TOLERANCE, find_exploit
from varl_jax.service.referee_stats import Ranked
from varl_jax.types import ExploitCase, GradedGroup

# Groups a step that are ranked again in reversed order, to see how much the
# order of the answers matters; each costs one call more.
REVERSED_GROUPS: Final = 1

# One a group: the larger, the likelier an exploit; None where none is possible.
Suspicion = Sequence[float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
  """What the referee said of a step.

  Attributes:
    refereed: groups shown to it.
    skipped: groups that could have been shown to it as well.
    ranked: its usable rankings, by the group's task.
    cases: exploit cases, one a group at most, in the order of the groups.
    failures: kinds of failed replies.
  """

  refereed: int
  skipped: int
  ranked: Mapping[str, Ranked]
  cases: tuple[ExploitCase, ...]
  failures: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refereeing:
  """Ranks groups without their rubric and compares with their scores.

  Attributes:
    referee: the ranking role.
    config: epsilon and the share of the groups that is shown.
    seed: the run's seed.
  """

  referee: Referee
  config: PatchConfig
  seed: int

  async def review(
    self, groups: Sequence[GradedGroup], suspicion: Suspicion | None = None
  ) -> Review:
    """Ranks the groups with two answers to compare, or a share of them.

    Args:
      groups: of one step.
      suspicion: one a group; without it a share is drawn at random.
    """
    able = [i for i, g in enumerate(groups) if len(_comparable(g)) > 1]
    shown = [groups[index] for index in self._chosen(groups, able, suspicion)]
    found = await asyncio.gather(
      *(
        self._rank(group, reverse=index < REVERSED_GROUPS)
        for index, group in enumerate(shown)
      )
    )
    cases = []
    for group, (ranked, _) in zip(shown, found, strict=True):
      case = self._case(group, ranked) if ranked else None
      if case is not None:
        cases.append(case)
    return Review(
      refereed=len(shown),
      skipped=len(able) - len(shown),
      ranked={
        group.task.task_id: ranked
        for group, (ranked, _) in zip(shown, found, strict=True)
        if ranked
      },
      cases=tuple(cases),
      failures=tuple(kind for _, kinds in found for kind in kinds),
    )

  def _chosen(
    self,
    groups: Sequence[GradedGroup],
    able: list[int],
    suspicion: Suspicion | None,
  ) -> list[int]:
    """Which of the `able` groups are shown, in order; ties go by lot."""
    if self.config.referee_share == 1:
      return able
    count = math.ceil(self.config.referee_share * len(able) - TOLERANCE)
    # A draw of the step's own: the same again when the step is repeated.
    op = f"referee/choice/{groups[0].step if groups else 0}"
    lots = able.copy()
    random.Random(derive_seed(self.seed, op)).shuffle(lots)
    if suspicion is not None:
      lots.sort(key=lambda i: _or_least(suspicion[i]), reverse=True)
    return sorted(lots[:count])

  async def _rank(
    self, group: GradedGroup, *, reverse: bool
  ) -> tuple[Ranked | None, tuple[str, ...]]:
    op = f"referee/{group.task.task_id}/{group.step}"
    ranking = await self._ask(group, op=op, order=None)
    if isinstance(ranking, ChatError):
      return None, (ranking.kind,)
    again = None
    failures: tuple[str, ...] = ()
    if reverse:
      again = await self._ask(
        group, op=f"{op}/reversed", order=ranking.order[::-1]
      )
      if isinstance(again, ChatError):
        failures = (again.kind,)
        again = None
    ranked = Ranked(
      scores=tuple(answer.score for answer in group.answers),
      lengths=tuple(len(answer.answer or "") for answer in group.answers),
      tiers=ranking.tiers,
      order=ranking.order,
      reversed_tiers=again.tiers if again else None,
    )
    return ranked, failures

  async def _ask(
    self, group: GradedGroup, *, op: str, order: tuple[int, ...] | None
  ) -> Ranking | ChatError:
    return await attempt(
      self.referee.rank(
        prompt=group.task.prompt,
        answers=_comparable(group),
        order=order,
        op=op,
        seed=self.seed,
      )
    )

  def _case(self, group: GradedGroup, ranked: Ranked) -> ExploitCase | None:
    pair = find_exploit(
      ranked.scores, ranked.tiers, epsilon=self.config.epsilon
    )
    if pair is None:
      return None
    exploit, honest = (group.answers[index] for index in pair)
    assert exploit.score is not None and honest.score is not None
    return ExploitCase(
      case_id=f"{group.task.task_id}-s{group.step}",
      task=group.task,
      step=group.step,
      source="on_policy",
      exploit=exploit,
      honest=honest,
      gap=exploit.score - honest.score,
    )


def _or_least(value: float | None) -> float:
  return -math.inf if value is None else value


def _comparable(group: GradedGroup) -> list[tuple[int, str]]:
  """(index, text) of the answers that have both a text and a score."""
  return [
    (index, answer.answer)
    for index, answer in enumerate(group.answers)
    if answer.answer is not None and answer.score is not None
  ]
