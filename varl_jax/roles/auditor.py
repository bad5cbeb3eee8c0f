"""The auditor: why one exploit case could happen."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import (
  conversation_text,
  criterion_line,
  rubric_text,
  verdict_word,
)
from varl_jax.rubrics.scoring import by_criterion
from varl_jax.types import Criterion, ExploitCase

ROLE: Final = "auditor"
# In the order they are tried: the first that applies is taken.
CATEGORIES: Final = (
  "incorrect_pair",
  "faulty_answer_key",
  "fabricated_citations",
  "missed_negatives",
  "ambiguous_rubrics",
  "missed_positives",
)
NO_SECOND: Final = "none"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "category": {"type": "string", "enum": CATEGORIES},
      "second_choice": {"type": "string", "enum": (*CATEGORIES, NO_SECOND)},
      "leftover": {"type": "boolean"},
      "reason": {"type": "string", "minLength": 1, "maxLength": 2000},
    },
    "required": ["category", "second_choice", "leftover", "reason"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
  """What an auditor says of a case.

  Attributes:
    category: of `CATEGORIES`.
    second_choice: another of them, or `none`.
    leftover: whether criteria of an earlier repair pay the exploit; such cases
      are left out of the shares.
    reason: for the category.
  """

  category: str
  second_choice: str
  leftover: bool
  reason: str


def earlier_repairs(case: ExploitCase) -> tuple[Criterion, ...]:
  """Criteria that an earlier repair of the rubric added and the exploit gains.

  It does by a positive that it alone meets, and by a negative that the honest
  answer alone meets.
  """
  rubric = case.task.rubric
  found = []
  for criterion, exploit, honest in zip(
    rubric.criteria,
    by_criterion(rubric, case.exploit.verdicts),
    by_criterion(rubric, case.honest.verdicts),
    strict=True,
  ):
    if criterion.source != "patch" or exploit is None or honest is None:
      continue
    gains, loses = bool(exploit.met), bool(honest.met)
    if criterion.points < 0:
      gains, loses = loses, gains
    if gains and not loses:
      found.append(criterion)
  return tuple(found)


def _verdict_lines(case: ExploitCase) -> str:
  lines, rubric = [], case.task.rubric
  for criterion, exploit, honest in zip(
    rubric.criteria,
    by_criterion(rubric, case.exploit.verdicts),
    by_criterion(rubric, case.honest.verdicts),
    strict=True,
  ):
    lines.append(
      f"{criterion_line(criterion)} | exploit {verdict_word(exploit)}"
      f" | honest {verdict_word(honest)}"
    )
  return "\n".join(lines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Auditor:
  """Sorts exploit cases into categories, as the exploit analysis does.

  Whether an exploit collects leftovers of an earlier repair is asked with it;
  the answer counts only where the rubric has such criteria (`earlier_repairs`).
  """

  chat: ChatModel
  prompts: PromptSet

  async def audit(
    self,
    *,
    case: ExploitCase,
    added: Sequence[Criterion] = (),
    op: str,
    seed: int,
  ) -> Audit:
    """Audits one case of two solver answers.

    Args:
      case: the pair with its verdicts.
      added: the criteria its repair added.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
      ValueError: the case is a re-attack, which no solver wrote, or its
        verdicts do not fit the rubric.
    """
    if case.source != "on_policy":
      raise ValueError(f"Case {case.case_id!r} is no pair of the solver.")
    earlier = earlier_repairs(case)

    def read(reply: dict[str, Any]) -> Audit:
      if reply["category"] == reply["second_choice"]:
        raise ChatError("malformed", "The second choice repeats the category.")
      if reply["leftover"] and not earlier:
        raise ChatError("malformed", "A leftover without an earlier repair.")
      return Audit(**reply)

    user = user_message(
      {
        "TASK": conversation_text(case.task.prompt),
        "RUBRIC": rubric_text(case.task.rubric),
        "EXPLOIT ANSWER": case.exploit.answer or "",
        "HONEST ANSWER": case.honest.answer or "",
        "VERDICTS": _verdict_lines(case),
        "EARLIER REPAIRS": rubric_text(earlier),
        "ADDED CRITERIA": rubric_text(added),
      }
    )
    return await ask_json(
      self.chat,
      read,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user),
      form=_FORM,
      op=op,
      seed=seed,
    )
