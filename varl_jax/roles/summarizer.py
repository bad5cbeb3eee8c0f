"""The summarizer: search hits to one evidence brief for a tool turn."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message

ROLE: Final = "summarizer"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "brief": {"type": "string", "minLength": 1, "maxLength": 8000}
    },
    "required": ["brief"],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> str:
  return reply["brief"].strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summarizer:
  """Writes the brief that a knowledge-base search returns (Appendix E)."""

  chat: ChatModel
  prompts: PromptSet

  async def summarize(
    self, *, query: str, hits: str, op: str, seed: int
  ) -> str:
    """Summarizes `hits`, passages with their sources, for `query`.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message({"QUERY": query, "HITS": hits})
    return await ask_json(
      self.chat,
      _read,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user),
      form=_FORM,
      op=op,
      seed=seed,
    )
