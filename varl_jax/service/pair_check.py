"""Exploit pairs checked before they are repaired; both switches are ours.

The paper asks successors to verify a flagged pair before its rubric is repaired
and to stop at pairs of equally good answers (spec section 12); its arms do
neither. A pair is shown in both orders, and only an answer that is preferred in
both is the better one; a preference that goes with the order is none.

`patch.verify_pairs` repairs confirmed pairs alone. `patch.stop_equal` leaves
out equal ones and ends the repair of their task, whose rubric then stands.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from varl_jax.config import PatchConfig
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.roles.pair_checker import Better, PairChecker
from varl_jax.service.calls import attempt
from varl_jax.service.exploits import largest_disagreements
from varl_jax.types import ExploitCase

Outcome = Literal["confirmed", "equal", "refuted", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = (
  "confirmed",
  "equal",
  "refuted",
  "failed",
)


def outcome_of(honest_first: Better, honest_second: Better) -> Outcome:
  """What both orders say of a pair.

  Args:
    honest_first: the reply to the honest answer shown first.
    honest_second: to the same pair, the honest answer shown second.
  """
  if (honest_first, honest_second) == ("first", "second"):
    return "confirmed"
  if (honest_first, honest_second) == ("second", "first"):
    return "refuted"
  return "equal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairCheck:
  """Chooses the cases that go to repair.

  Attributes:
    checker: compares two answers.
    config: the switches, and how many cases a step repairs.
    seed: the run's seed.
  """

  checker: PairChecker
  config: PatchConfig
  seed: int

  async def chosen(
    self, cases: Sequence[ExploitCase]
  ) -> tuple[list[ExploitCase], Mapping[str, Outcome]]:
    """The cases to repair, the largest disagreements first.

    Cases are checked until enough may be repaired.

    Returns:
      The cases, and the outcome of each that was checked, by its name.
    """
    limit = self.config.cases_per_step
    waiting = largest_disagreements(cases, len(cases))
    kept: list[ExploitCase] = []
    outcomes: dict[str, Outcome] = {}
    while waiting and len(kept) < limit:
      missing = limit - len(kept)
      batch, waiting = waiting[:missing], waiting[missing:]
      found = await together(self._outcome(case) for case in batch)
      for case, outcome in zip(batch, found, strict=True):
        outcomes[case.case_id] = outcome
        if self._repairs(outcome):
          kept.append(case)
    return kept, outcomes

  def _repairs(self, outcome: Outcome) -> bool:
    if self.config.verify_pairs:
      return outcome == "confirmed"
    return outcome != "equal"

  async def _outcome(self, case: ExploitCase) -> Outcome:
    op = f"pair/{case.case_id}"
    exploit, honest = case.exploit.answer or "", case.honest.answer or ""
    replies = await together(
      attempt(
        self.checker.compare(
          prompt=case.task.prompt,
          first=first,
          second=second,
          op=f"{op}/{order}",
          seed=self.seed,
        )
      )
      for order, first, second in (
        ("honest_first", honest, exploit),
        ("honest_second", exploit, honest),
      )
    )
    one, two = replies
    if isinstance(one, ChatError) or isinstance(two, ChatError):
      return "failed"
    return outcome_of(one, two)
