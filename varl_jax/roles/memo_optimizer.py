"""The memo optimizer: lessons on exploits for the author of rubrics."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import cut_chars

ROLE: Final = "memo_optimizer"
MAX_CHARS: Final = 2400
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "memo": {"type": "string", "minLength": 1, "maxLength": 8000}
    },
    "required": ["memo"],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> str:
  return cut_chars(reply["memo"], MAX_CHARS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoOptimizer:
  """Rewrites the memo (Appendix D); whether it stays is measured later."""

  chat: ChatModel
  prompts: PromptSet

  async def rewrite(
    self,
    *,
    memo: str,
    exploits: str,
    patches: str,
    history: str,
    op: str,
    seed: int,
  ) -> str:
    """Rewrites the memo; one over 2,400 characters is cut at a sentence.

    Args:
      memo: the present text, "" at first.
      exploits: answers that were overpaid.
      patches: criteria accepted as repairs.
      history: earlier versions with their scores and flags.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "MEMO": memo,
        "EXPLOITS": exploits,
        "PATCHES": patches,
        "HISTORY": history,
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
