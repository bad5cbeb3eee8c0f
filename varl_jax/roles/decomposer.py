"""The decomposer: one request split into smaller ones (RaR's arm)."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message

ROLE: Final = "decomposer"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "parts": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "string", "minLength": 1, "maxLength": 8000},
      }
    },
    "required": ["parts"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decomposer:
  """Splits requests."""

  chat: ChatModel
  prompts: PromptSet

  async def split(
    self, *, request: str, count: int, op: str, seed: int
  ) -> tuple[str, ...]:
    """Splits a request into exactly `count` smaller ones.

    Raises:
      ChatError: no usable reply.
    """

    def read(reply: dict[str, Any]) -> tuple[str, ...]:
      parts = tuple(dict.fromkeys(part.strip() for part in reply["parts"]))
      if len(parts) != count or "" in parts:
        raise ChatError(
          "malformed", f"{len(parts)} different parts, not {count}."
        )
      return parts

    return await ask_json(
      self.chat,
      read,
      role=ROLE,
      messages=(
        self.prompts.system(ROLE),
        user_message({"TASK": request, "COUNT": str(count)}),
      ),
      form=_FORM,
      op=op,
      seed=seed,
    )
