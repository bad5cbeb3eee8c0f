"""The adversary: the highest score for the least real work."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_text, user_message
from varl_jax.roles.texts import conversation_text, rubric_text
from varl_jax.types import Message, Rubric

ROLE: Final = "adversary"
# What the prompt asks for. Not every benchmark charges for length, so a longer
# answer is asked for again and then refused.
MAX_CHARS: Final = 2500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adversary:
  """Attacks a rubric it can read, supplying no content (Appendix C)."""

  chat: ChatModel
  prompts: PromptSet

  async def attack(
    self, *, prompt: Sequence[Message], rubric: Rubric, op: str, seed: int
  ) -> str:
    """Writes the exploit answer.

    Raises:
      ChatError: no usable reply, or two beyond `MAX_CHARS`.
    """
    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "RUBRIC": rubric_text(rubric),
      }
    )
    return await ask_text(
      self.chat,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user),
      op=op,
      seed=seed,
      max_chars=MAX_CHARS,
    )
