"""The meta-optimizer: new guidance for proposer and generator."""

import dataclasses
from typing import Any, Final

from varl_jax.llm.chat import ChatModel
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import ask_json, optional, user_message
from varl_jax.roles.texts import cut_words

ROLE: Final = "meta_optimizer"
MAX_WORDS: Final = 300
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "query_proposer_guidance": {
        "type": "string",
        "minLength": 1,
        "maxLength": 8000,
      },
      "task_rubric_generator_guidance": {
        "type": "string",
        "minLength": 1,
        "maxLength": 8000,
      },
      "summary": {"type": "string", "maxLength": 4000},
    },
    "required": [
      "query_proposer_guidance",
      "task_rubric_generator_guidance",
      "summary",
    ],
    "additionalProperties": False,
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewGuidance:
  """Guidance for the proposer and the generator, and what changed."""

  proposer: str
  generator: str
  summary: str


def _read(reply: dict[str, Any]) -> NewGuidance:
  return NewGuidance(
    proposer=cut_words(reply["query_proposer_guidance"], MAX_WORDS),
    generator=cut_words(reply["task_rubric_generator_guidance"], MAX_WORDS),
    summary=reply["summary"].strip(),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaOptimizer:
  """Rewrites both guidance blocks in one call (Section 3, Appendix D).

  Of scores it is given the mean over training tasks and nothing else: what is
  measured in validation has no way in.
  """

  chat: ChatModel
  prompts: PromptSet

  async def rewrite(
    self,
    *,
    formula: str,
    statistics: str,
    reference: str,
    diagnoses: str,
    exploits: str,
    patches: str,
    train_mean: float | None,
    proposer_guidance: str,
    generator_guidance: str,
    history: str,
    hackability: str = "",
    op: str,
    seed: int,
  ) -> NewGuidance:
    """Rewrites the guidance; blocks over 300 words are cut at a sentence.

    Args:
      formula: how a score is computed.
      statistics: measured on the tasks of the present guidance.
      reference: the same statistics of the benchmark.
      diagnoses: counts and gaps.
      exploits: confirmed exploit cases.
      patches: accepted criteria.
      train_mean: mean training score under the present guidance, None when
        nothing was graded.
      proposer_guidance: the present text.
      generator_guidance: the present text.
      history: earlier versions with their train means.
      hackability: what a fixed adversary reached, "" when not measured.
      op: unique name of the operation.
      seed: the run's seed.

    Raises:
      ChatError: no usable reply.
    """
    user = user_message(
      {
        "FORMULA": formula,
        "STATISTICS": statistics,
        "REFERENCE": reference,
        "DIAGNOSES": diagnoses,
        "EXPLOITS": exploits,
        "PATCHES": patches,
        "TRAIN MEAN": "unknown" if train_mean is None else f"{train_mean:.3f}",
        "PROPOSER GUIDANCE": proposer_guidance,
        "GENERATOR GUIDANCE": generator_guidance,
        "HISTORY": history,
        "HACKABILITY": optional(hackability),
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
