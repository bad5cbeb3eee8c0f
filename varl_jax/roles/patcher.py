"""The repair step: new criteria where a rubric paid the worse answer."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.texts import conversation_text, rubric_text
from varl_jax.roles.writing import ITEM_PROPERTIES, read_criteria
from varl_jax.types import Criterion, Message, Rubric

ROLE: Final = "patcher"
MAX_CRITERIA: Final = 5
NO_EXPLOIT: Final = "none"
# Bookkeeping only: no rule depends on the label but `none`.
EXPLOIT_LABELS: Final = (
  "hedge_namedrop",
  "task_restatement",
  "breadth_padding",
  "disjunction_cheapest",
  "keyword_stuffing",
  "unhedged_confidence",
  "format_compliance",
  "safety_boilerplate",
  "negative_absent",
  "criterion_ambiguous",
  "other",
  NO_EXPLOIT,
)
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "mode": {"type": "string", "enum": EXPLOIT_LABELS},
      "items": {
        "type": "array",
        "maxItems": MAX_CRITERIA,
        "items": {
          "type": "object",
          "properties": {
            **ITEM_PROPERTIES,
            "why_separates": {"type": "string", "maxLength": 1000},
          },
          "required": ["criterion_text", "points", "why_separates"],
          "additionalProperties": False,
        },
      },
    },
    "required": ["mode", "items"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
  """Criteria proposed for one case, none of them validated.

  Attributes:
    label: of `EXPLOIT_LABELS`.
    criteria: 1-5, empty when the label is `none`.
    reasons: why each separates the pair.
  """

  label: str
  criteria: tuple[Criterion, ...]
  reasons: tuple[str, ...] = ()


def _read(reply: dict[str, Any]) -> Proposal:
  label, items = reply["mode"], reply["items"]
  if bool(items) != (label != NO_EXPLOIT):
    raise ChatError("malformed", f"Label {label!r} with {len(items)} criteria.")
  return Proposal(
    label=label,
    criteria=read_criteria(items, source="patch"),
    reasons=tuple(item["why_separates"] for item in items),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patcher:
  """Proposes criteria from an exploit pair (Section 3, Appendix C)."""

  chat: ChatModel
  prompts: PromptSet

  async def propose(
    self,
    *,
    prompt: Sequence[Message],
    rubric: Rubric,
    exploit: str,
    honest: str,
    verifiers: str = "",
    op: str,
    seed: int,
  ) -> Proposal:
    """Proposes criteria; whether they separate the pair is measured later.

    Args:
      prompt: the task.
      rubric: the rubric that was wrong.
      exploit: answer A, overpaid.
      honest: answer B, the better one.
      verifiers: one line a form of programmatic check, "" for none.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "RUBRIC": rubric_text(rubric),
        "ANSWER A": exploit,
        "ANSWER B": honest,
        "VERIFIERS": optional(verifiers),
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
