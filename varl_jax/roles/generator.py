"""The task and rubric generator: one request to one graded task."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.proposer import Request
from varl_jax.roles.writing import ITEMS_SCHEMA, GeneratedTask, read_criteria

ROLE: Final = "generator"
# The solver's mean score is meant to lie here (Appendix B).
TARGET_BAND: Final = (0.4, 0.6)

_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "question": {"type": "string", "minLength": 1, "maxLength": 24000},
      "use_case": {"type": "string", "maxLength": 80},
      "specialty": {"type": ["string", "null"], "maxLength": 80},
      "rubric_items": ITEMS_SCHEMA,
    },
    "required": ["question", "use_case", "rubric_items"],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> GeneratedTask:
  return GeneratedTask(
    question=reply["question"].strip(),
    use_case=reply["use_case"].strip(),
    specialty=" ".join((reply.get("specialty") or "").split()),
    criteria=read_criteria(reply["rubric_items"], source="generator"),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
  """Writes task and rubric together (Section 3, Appendix B)."""

  chat: ChatModel
  prompts: PromptSet

  async def generate(
    self,
    *,
    request: Request,
    positives: int,
    negatives: int,
    solver_mean: float | None,
    guidance: str,
    memo: str,
    passages: str = "",
    verifiers: str = "",
    op: str,
    seed: int,
  ) -> GeneratedTask:
    """Generates one task; whether it keeps the counts is checked by the caller.

    Args:
      request: what to build on.
      positives: how many positive criteria, told as a hard number.
      negatives: 0 or 1.
      solver_mean: the solver's rolling mean score, None before there is one.
      guidance: the evolved guidance, "" when untuned.
      memo: the memo on exploits, "" for none.
      passages: retrieved passages, "" for none.
      verifiers: one line a form of programmatic check, "" for none.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    low, high = TARGET_BAND
    user = user_message(
      {
        "REQUEST": request.text,
        "USE CASE": request.use_case,
        "RED TEAM": "yes" if request.red_team else "no",
        "PASSAGES": optional(passages),
        "POSITIVE COUNT": str(positives),
        "NEGATIVE COUNT": str(negatives),
        "SOLVER MEAN": "unknown"
        if solver_mean is None
        else f"{solver_mean:.3f}",
        "TARGET BAND": f"{low:g}-{high:g}",
        "GUIDANCE": guidance,
        "MEMO": memo,
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
