"""The query proposer: from a general description to diverse requests."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message

ROLE: Final = "proposer"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "requests": {
        "type": "array",
        "minItems": 1,
        "items": {
          "type": "object",
          "properties": {
            "text": {
              "type": "string",
              "minLength": 1,
              "maxLength": 8000,
            },
            "use_case": {"type": "string", "maxLength": 80},
            "red_team": {"type": "boolean"},
          },
          "required": ["text", "use_case", "red_team"],
          "additionalProperties": False,
        },
      }
    },
    "required": ["requests"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What a user might ask, before it is a task.

  Attributes:
    text: the request.
    use_case: its kind.
    red_team: whether it is a trap.
    seed_passage: name of the passage it was started from, "" for none.
  """

  text: str
  use_case: str
  red_team: bool
  seed_passage: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposer:
  """Writes requests (Section 3).

  The paper gives no share of red-team requests; the prompt's one in ten is
  ours, and guidance may set another.
  """

  chat: ChatModel
  prompts: PromptSet

  async def propose(
    self,
    *,
    description: str,
    count: int,
    guidance: str,
    passage: str = "",
    op: str,
    seed: int,
  ) -> tuple[Request, ...]:
    """Proposes exactly `count` requests.

    Args:
      description: the target in general terms, never its items.
      count: how many.
      guidance: the evolved guidance, "" when untuned.
      passage: a seed passage, "" for none.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """

    def read(reply: dict[str, Any]) -> tuple[Request, ...]:
      items = reply["requests"]
      if len(items) != count:
        raise ChatError("malformed", f"{len(items)} requests, not {count}.")
      return tuple(
        Request(
          text=item["text"].strip(),
          use_case=item["use_case"].strip(),
          red_team=item["red_team"],
        )
        for item in items
      )

    user = user_message(
      {
        "DESCRIPTION": description,
        "SEED PASSAGE": optional(passage),
        "COUNT": str(count),
        "GUIDANCE": guidance,
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
