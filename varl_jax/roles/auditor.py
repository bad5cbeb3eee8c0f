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
      "reason": {"type": "string", "minLength": 1, "maxLength": 2000},
    },
    "required": ["category", "second_choice", "reason"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
  """A case's category of `CATEGORIES`, a second or `none`, and the reason."""

  category: str
  second_choice: str
  reason: str


def _read(reply: dict[str, Any]) -> Audit:
  if reply["category"] == reply["second_choice"]:
    raise ChatError("malformed", "The second choice repeats the category.")
  return Audit(**reply)


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

  Cases that collect leftovers of an earlier repair are set apart before, by
  the ledger of patches, and are not audited.
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
    user = user_message(
      {
        "TASK": conversation_text(case.task.prompt),
        "RUBRIC": rubric_text(case.task.rubric),
        "EXPLOIT ANSWER": case.exploit.answer or "",
        "HONEST ANSWER": case.honest.answer or "",
        "VERDICTS": _verdict_lines(case),
        "ADDED CRITERIA": rubric_text(added),
      }
    )
    return await ask_json(
      self.chat,
      _read,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user),
      form=_FORM,
      op=op,
      seed=seed,
    )
