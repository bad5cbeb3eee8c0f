"""The item writer: rubrics led by remembered items (SibylSense)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.roles.writing import ITEM_PROPERTIES, MAX_ITEMS
from varl_jax.types import Criterion, Message

ROLE: Final = "item_writer"
CATEGORIES: Final = ("substance", "reasoning", "delivery", "fault")
_FAULT: Final = "fault"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "items": {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_ITEMS,
        "items": {
          "type": "object",
          "properties": {
            "category": {"type": "string", "enum": list(CATEGORIES)},
            **ITEM_PROPERTIES,
          },
          "required": ["category", "criterion_text", "points"],
          "additionalProperties": False,
        },
      }
    },
    "required": ["items"],
    "additionalProperties": False,
  }
)


def source_of(category: str) -> str:
  """`Criterion.source` of an item of this category."""
  return f"{ROLE}/{category}"


def category_of(criterion: Criterion) -> str | None:
  """The category an item was written in, None for another's criterion."""
  role, _, category = criterion.source.partition("/")
  return category if role == ROLE and category in CATEGORIES else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemWriter:
  """Writes rubrics; it is frozen, and the memory is all that changes."""

  chat: ChatModel
  prompts: PromptSet

  async def write(
    self,
    *,
    prompt: Sequence[Message],
    positives: int,
    negatives: int,
    memory: str,
    verifiers: str = "",
    op: str,
    seed: int,
  ) -> tuple[Criterion, ...]:
    """Writes the items of a task's rubric; counts are checked by the caller.

    Args:
      prompt: the conversation.
      positives: how many items above zero.
      negatives: how many below.
      memory: items that proved themselves, "" at first.
      verifiers: one line a form of programmatic check, "" for none.
      op: unique name of the operation.
      seed: the run's seed.

    Returns:
      Criteria whose category is found by `category_of`.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "POSITIVE COUNT": str(positives),
        "NEGATIVE COUNT": str(negatives),
        "MEMORY": memory,
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


def _read(reply: dict[str, Any]) -> tuple[Criterion, ...]:
  for item in reply["items"]:
    if (item["category"] == _FAULT) != (item["points"] < 0):
      raise ChatError(
        "malformed", "Items below zero are faults, and no others are."
      )
  return tuple(
    Criterion(
      text=item["criterion_text"].strip(),
      points=float(item["points"]),
      check=(item.get("check") or "").strip() or None,
      source=source_of(item["category"]),
    )
    for item in reply["items"]
  )
