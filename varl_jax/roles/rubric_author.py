"""What a trained rubric generator is asked and how its replies are read.

It is no role of a frozen model: the trainer samples it, and what it writes
comes back as rollouts. Language models write JSON; a domain whose policy cannot
has a language of its own (`story.rubric_words`).
"""

import dataclasses
from typing import Final, Protocol

from varl_jax.llm.chat import ChatError
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import optional, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.roles.writing import ITEMS_SCHEMA, read_criteria
from varl_jax.types import Criterion, Message

ROLE: Final = "rubric_author"
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {"rubric_items": ITEMS_SCHEMA},
    "required": ["rubric_items"],
    "additionalProperties": False,
  }
)


class RubricLanguage(Protocol):
  """How rubric sets are asked for and read."""

  def conversation(self, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """What the generator is shown for a task's conversation."""
    ...

  def read(
    self, reply: str, prompt: tuple[Message, ...]
  ) -> tuple[Criterion, ...]:
    """The criteria of a set, not validated yet.

    Raises:
      ValueError: the reply is no set.
    """
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonRubrics:
  """Rubric sets as JSON.

  Attributes:
    prompts: of the domain.
    verifiers: one line a form of programmatic check, "" for none.
  """

  prompts: PromptSet
  verifiers: str = ""

  def conversation(self, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """The role's rules, then the task in a block."""
    user = user_message(
      {
        "TASK": conversation_text(prompt),
        "VERIFIERS": optional(self.verifiers),
      }
    )
    return (self.prompts.system(ROLE), user)

  def read(
    self, reply: str, prompt: tuple[Message, ...]
  ) -> tuple[Criterion, ...]:
    """See `RubricLanguage.read`."""
    try:
      found = _FORM.parse(reply, finish="stop")
    except ChatError as error:
      raise ValueError(str(error)) from error
    return read_criteria(found["rubric_items"], source=ROLE)
