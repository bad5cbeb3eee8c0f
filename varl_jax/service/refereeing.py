"""The blind referee over a step's groups, and the cases it uncovers."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.config import PatchConfig
from varl_jax.llm.chat import ChatError
from varl_jax.roles.referee import Ranking, Referee
from varl_jax.service.calls import attempt
from varl_jax.service.exploits import find_exploit
from varl_jax.service.referee_stats import Ranked
from varl_jax.types import ExploitCase, GradedGroup

# Groups a step that are ranked again in reversed order, to see how much the
# order of the answers matters; each costs one call more.
REVERSED_GROUPS: Final = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
  """What the referee said of a step.

  Attributes:
    refereed: groups shown to it.
    ranked: its usable rankings.
    cases: exploit cases, one a group at most, in the order of the groups.
    failures: kinds of failed replies.
  """

  refereed: int
  ranked: tuple[Ranked, ...]
  cases: tuple[ExploitCase, ...]
  failures: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refereeing:
  """Ranks groups without their rubric and compares with their scores.

  Attributes:
    referee: the ranking role.
    config: epsilon.
    seed: the run's seed.
  """

  referee: Referee
  config: PatchConfig
  seed: int

  async def review(self, groups: Sequence[GradedGroup]) -> Review:
    """Ranks every group with two answers to compare."""
    shown = [group for group in groups if len(_comparable(group)) > 1]
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
      ranked=tuple(ranked for ranked, _ in found if ranked),
      cases=tuple(cases),
      failures=tuple(kind for _, kinds in found for kind in kinds),
    )

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


def _comparable(group: GradedGroup) -> list[tuple[int, str]]:
  """(index, text) of the answers that have both a text and a score."""
  return [
    (index, answer.answer)
    for index, answer in enumerate(group.answers)
    if answer.answer is not None and answer.score is not None
  ]
