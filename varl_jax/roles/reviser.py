"""The reviser: an answer made better by a rubric set (EvoRubrics).

What the answer gains says whether the set is of use; nobody is trained on it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_text, user_message
from varl_jax.roles.texts import conversation_text, rubric_text
from varl_jax.types import Criterion, Message

ROLE: Final = "reviser"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reviser:
  """Revises answers; it is frozen."""

  chat: ChatModel
  prompts: PromptSet

  async def revise(
    self,
    *,
    prompt: Sequence[Message],
    answer: str,
    criteria: Sequence[Criterion],
    op: str,
    seed: int,
  ) -> str:
    """The answer after it was revised.

    Args:
      prompt: the conversation.
      answer: to it.
      criteria: of the set.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "ANSWER": answer,
        "RUBRIC": rubric_text(criteria),
      }
    )
    return await ask_text(
      self.chat,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user),
      op=op,
      seed=seed,
    )
