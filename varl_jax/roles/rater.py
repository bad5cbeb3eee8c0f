"""The rater: one number for a whole answer under a whole checklist (RaR)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.rubrics import checklists
from varl_jax.types import Message, Rubric

ROLE: Final = "rater"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "explanation": {"type": "string", "maxLength": 4000},
      "rating": {
        "type": "integer",
        "minimum": checklists.LOWEST,
        "maximum": checklists.HIGHEST,
      },
    },
    "required": ["explanation", "rating"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rating:
  """A rating of 1 to 10 with its reason."""

  rating: int
  explanation: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rater:
  """Rates answers."""

  chat: ChatModel
  prompts: PromptSet

  async def rate(
    self,
    *,
    prompt: Sequence[Message],
    answer: str,
    rubric: Rubric,
    pitfalls: checklists.Pitfalls,
    op: str,
    seed: int,
  ) -> Rating:
    """Rates an answer in one call.

    Args:
      prompt: the conversation that was answered.
      answer: the final answer.
      rubric: a checklist, see `rubrics.checklists`.
      pitfalls: how its items of that category are worded.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """

    def read(reply: dict[str, Any]) -> Rating:
      return Rating(
        rating=int(reply["rating"]), explanation=reply["explanation"]
      )

    user = user_message(
      {
        "CONVERSATION": conversation_text(prompt),
        "ANSWER": answer,
        "CHECKLIST": checklist_text(rubric),
        "PITFALLS": pitfalls,
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


def checklist_text(rubric: Rubric) -> str:
  """`Essential | text` a line, and ` | check` where there is one."""
  lines = []
  for category, item in checklists.categorized(rubric):
    check = f" | {item.check}" if item.check else ""
    lines.append(f"{category} | {' '.join(item.text.split())}{check}")
  return "\n".join(lines)
