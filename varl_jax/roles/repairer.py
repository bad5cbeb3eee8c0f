"""The admission repairer: rewrites a task and its rubric together."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.texts import conversation_text, rubric_text
from varl_jax.roles.writing import ITEMS_SCHEMA, GeneratedTask, read_criteria
from varl_jax.types import Message, Rubric

ROLE: Final = "repairer"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "question": {"type": "string", "minLength": 1, "maxLength": 24000},
      "rubric_items": ITEMS_SCHEMA,
      "why_farmer_fails": {"type": "string", "maxLength": 1000},
      "why_honest_passes": {"type": "string", "maxLength": 1000},
    },
    "required": [
      "question",
      "rubric_items",
      "why_farmer_fails",
      "why_honest_passes",
    ],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> GeneratedTask:
  return GeneratedTask(
    question=reply["question"].strip(),
    use_case="",
    criteria=read_criteria(reply["rubric_items"], source="admission"),
    reasons=(reply["why_farmer_fails"], reply["why_honest_passes"]),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repairer:
  """Proposes a rewrite after a failed probe (Appendix C)."""

  chat: ChatModel
  prompts: PromptSet

  async def rewrite(
    self,
    *,
    prompt: Sequence[Message],
    rubric: Rubric,
    exploit: str,
    honest: str,
    verifiers: str = "",
    op: str,
    seed: int,
  ) -> GeneratedTask:
    """Rewrites task and rubric; clamping and acceptance are the caller's.

    Args:
      prompt: the task as it is.
      rubric: its rubric as it is.
      exploit: the answer without content that scored high.
      honest: the answer with content that scored lower.
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
        "EXPLOIT ANSWER": exploit,
        "HONEST ANSWER": honest,
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
