"""The pair checker: whether the better answer of an exploit case is better.

A role that the paper asks of successors and its arms do not have. Unlike the
blind referee, who ranks a whole group, it is shown two answers alone and asked
to confirm what they state.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Literal

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.types import Message

ROLE: Final = "pair_checker"
Better = Literal["first", "second", "equal"]
CHOICES: Final[tuple[Better, ...]] = ("first", "second", "equal")
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "better": {"type": "string", "enum": CHOICES},
      "reason": {"type": "string", "minLength": 1, "maxLength": 2000},
    },
    "required": ["better", "reason"],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> Better:
  return reply["better"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairChecker:
  """Compares two answers without their rubric and their scores."""

  chat: ChatModel
  prompts: PromptSet

  async def compare(
    self,
    *,
    prompt: Sequence[Message],
    first: str,
    second: str,
    op: str,
    seed: int,
  ) -> Better:
    """Which of two answers to `prompt` is the better one.

    Args:
      prompt: the conversation that was answered.
      first: the answer that is shown first.
      second: the other.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "REQUEST": conversation_text(prompt),
        "FIRST": first,
        "SECOND": second,
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
