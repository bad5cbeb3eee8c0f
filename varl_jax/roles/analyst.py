"""The analyst: what one graded case says about solver, task and rubric."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, user_message
from varl_jax.roles.texts import conversation_text, rubric_text, verdict_word
from varl_jax.types import Diagnosis, GradedAnswer, Task

ROLE: Final = "analyst"
MAX_GAP_WORDS: Final = 15
FAILURE_MODES: Final = (
  "knowledge_factual",
  "knowledge_specificity",
  "hallucinated_specifics",
  "safety_miss",
  "premise_uncaught",
  "incompleteness",
  "calculation",
  "instruction_format",
  "language_fidelity",
  "verbosity",
  "non_answer",
  "none",
)
RUBRIC_DEFECTS: Final = (
  "none",
  "gameable_restates_task",
  "untestable_vague",
  "conjunctive_overloaded",
  "off_domain",
  "targets_format_not_medicine",
  "missing_safety_negative",
  "mis_scaled_points",
)
TASK_DEFECTS: Final = (
  "none",
  "unrealistic",
  "ambiguous_underspecified",
  "template_generic",
  "reveals_rubric",
  "too_easy",
  "wrong_use_case",
)
VERDICTS: Final = (
  "model_failed_fair_task",
  "generator_at_fault",
  "model_succeeded",
)
# A cut answer says nothing about task or rubric, so nobody is asked about it.
CUT: Final = Diagnosis(
  failure_mode="non_answer",
  rubric_defect="none",
  task_defect="none",
  verdict="model_failed_fair_task",
  gap="",
)
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "failure_mode": {"type": "string", "enum": FAILURE_MODES},
      "rubric_defect": {"type": "string", "enum": RUBRIC_DEFECTS},
      "task_defect": {"type": "string", "enum": TASK_DEFECTS},
      "verdict": {"type": "string", "enum": VERDICTS},
      "gap": {"type": "string", "maxLength": 400},
    },
    "required": [
      "failure_mode",
      "rubric_defect",
      "task_defect",
      "verdict",
      "gap",
    ],
    "additionalProperties": False,
  }
)


def _read(reply: dict[str, Any]) -> Diagnosis:
  gap = " ".join(reply["gap"].split()[:MAX_GAP_WORDS])
  return Diagnosis(**{**reply, "gap": gap})


def reasoning_text(answer: GradedAnswer) -> str:
  """The REASONING block: numbers, since the words are never kept."""
  closed = answer.answer is not None and not answer.truncated
  cut = answer.finish == "length"
  return (
    f"closed: {'yes' if closed else 'no'}\n"
    f"characters: {answer.reasoning_chars}\n"
    f"answer ran into the token limit: {'yes' if cut else 'no'}"
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analyst:
  """Diagnoses one case with closed vocabularies (Appendix D)."""

  chat: ChatModel
  prompts: PromptSet

  async def diagnose(
    self,
    *,
    task: Task,
    answer: GradedAnswer,
    op: str,
    seed: int,
  ) -> Diagnosis:
    """Diagnoses an answer; a truncated one without a call.

    Args:
      task: the task under the rubric the answer was graded by.
      answer: the graded answer.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    if answer.truncated or answer.answer is None:
      return CUT
    score = "undetermined" if answer.score is None else f"{answer.score:.3f}"
    user = user_message(
      {
        "TASK": conversation_text(task.prompt),
        "ANSWER": answer.answer,
        "RUBRIC": rubric_text(task.rubric),
        "MET": "\n".join(map(verdict_word, answer.verdicts)),
        "SCORE": score,
        "REASONING": reasoning_text(answer),
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
