"""The blind referee: ranks answers by quality without seeing a rubric."""

import dataclasses
import random
import string
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.seeds import derive_seed
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.types import Message

ROLE: Final = "referee"
LABELS: Final = string.ascii_uppercase
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "tiers": {
        "type": "array",
        "minItems": 1,
        "maxItems": len(LABELS),
        "items": {
          "type": "array",
          "minItems": 1,
          "maxItems": len(LABELS),
          "items": {"type": "string", "maxLength": 1},
        },
      },
      "notes": {"type": "string", "maxLength": 2000},
    },
    "required": ["tiers", "notes"],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
  """Answers in tiers.

  Attributes:
    tiers: sample indices, the best tier first; each answer in exactly one.
    order: sample indices in the order the referee saw them.
    notes: the referee's reason.
  """

  tiers: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]
  notes: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Referee:
  """Ranks the answers to one task (Section 3)."""

  chat: ChatModel
  prompts: PromptSet

  async def rank(
    self,
    *,
    prompt: Sequence[Message],
    answers: Sequence[tuple[int, str]],
    order: Sequence[int] | None = None,
    op: str,
    seed: int,
  ) -> Ranking:
    """Ranks `answers` by trust in real use.

    Args:
      prompt: the conversation that was answered.
      answers: (sample index, text), two or more.
      order: sample indices in the order to show them, such as an earlier
        ranking's order reversed; None shuffles by `op` and `seed`.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply; a label left out, repeated or unknown is
        `malformed`.
      ValueError: too few or too many answers, or `order` is not theirs.
    """
    texts = dict(answers)
    if not 2 <= len(answers) <= len(LABELS) or len(texts) < len(answers):
      raise ValueError(f"Cannot rank {len(answers)} answers.")
    shown = self._order(list(texts), order, op, seed)

    def read(reply: dict[str, Any]) -> Ranking:
      return Ranking(
        tiers=_samples(reply["tiers"], shown),
        order=shown,
        notes=reply["notes"].strip(),
      )

    blocks = {"REQUEST": conversation_text(prompt)}
    for label, sample in zip(LABELS, shown, strict=False):
      blocks[f"ANSWER {label}"] = texts[sample]
    return await ask_json(
      self.chat,
      read,
      role=ROLE,
      messages=(self.prompts.system(ROLE), user_message(blocks)),
      form=_FORM,
      op=op,
      seed=seed,
    )

  def _order(
    self, samples: list[int], order: Sequence[int] | None, op: str, seed: int
  ) -> tuple[int, ...]:
    if order is None:
      random.Random(derive_seed(seed, f"{op}/order")).shuffle(samples)
      return tuple(samples)
    if sorted(order) != sorted(samples):
      raise ValueError(f"order {tuple(order)} does not list the answers.")
    return tuple(order)


def _samples(
  tiers: Sequence[Sequence[str]], shown: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
  """Turns tiers of labels into tiers of sample indices."""
  by_label = dict(zip(LABELS, shown, strict=False))
  labels = [label for tier in tiers for label in tier]
  if sorted(labels) != sorted(by_label):
    raise ChatError(
      "malformed",
      f"The tiers hold {labels}, not each of {list(by_label)} once.",
    )
  return tuple(tuple(by_label[label] for label in tier) for tier in tiers)
