"""The author of checklists: weighted items from a reference answer (RaR)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.roles.writing import MAX_ITEM_CHARS
from varl_jax.rubrics import checklists
from varl_jax.types import Criterion, Message

ROLE: Final = "checklist"
SOURCE: Final = "checklist"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "items": {
        "type": "array",
        "minItems": checklists.MIN_ITEMS,
        "maxItems": checklists.MAX_ITEMS,
        "items": {
          "type": "object",
          "properties": {
            "title": {"type": "string", "minLength": 1, "maxLength": 80},
            "description": {
              "type": "string",
              "minLength": 1,
              "maxLength": MAX_ITEM_CHARS,
            },
            "category": {
              "type": "string",
              "enum": list(checklists.WEIGHTS),
            },
            "weight": {"type": "number"},
            "check": {"type": ["string", "null"], "maxLength": 200},
          },
          "required": ["title", "description", "category", "weight"],
          "additionalProperties": False,
        },
      }
    },
    "required": ["items"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChecklistAuthor:
  """Writes 7 to 20 items of four categories in one call."""

  chat: ChatModel
  prompts: PromptSet

  async def write(
    self,
    *,
    prompt: Sequence[Message],
    reference: str,
    pitfalls: checklists.Pitfalls,
    verifiers: str = "",
    op: str,
    seed: int,
  ) -> tuple[Criterion, ...]:
    """Writes a checklist; its points are those of `checklists.points_of`.

    Args:
      prompt: the conversation.
      reference: a good answer to it.
      pitfalls: how items of that category are worded.
      verifiers: one line a form of programmatic check, "" for none.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """

    def read(reply: dict[str, Any]) -> tuple[Criterion, ...]:
      return tuple(
        Criterion(
          text=item["description"].strip(),
          points=checklists.points_of(item["category"], pitfalls),
          check=(item.get("check") or "").strip() or None,
          source=SOURCE,
        )
        for item in reply["items"]
      )

    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "REFERENCE": reference,
        "PITFALLS": pitfalls,
        "VERIFIERS": optional(verifiers),
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
