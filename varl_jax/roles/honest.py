"""The honest answerer: the task alone, under the solver's system prompt.

It gets the conversation as turns, not in blocks, as the solver does; their
texts are neutralised, so that none can end its turn.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.untrusted import neutralised
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_text
from varl_jax.types import Message

ROLE: Final = "honest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HonestAnswerer:
  """Writes a plain good answer and never sees a rubric (Appendix C)."""

  chat: ChatModel
  prompts: PromptSet

  async def answer(
    self, *, prompt: Sequence[Message], op: str, seed: int
  ) -> str:
    """Answers the conversation.

    Raises:
      ChatError: no usable reply.
    """
    turns = [
      Message(role=turn.role, content=neutralised(turn.content))
      for turn in prompt
    ]
    return await ask_text(
      self.chat,
      role=ROLE,
      messages=(self.prompts.system("solver"), *turns),
      op=op,
      seed=seed,
    )
