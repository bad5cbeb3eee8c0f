"""The judge: one criterion on one answer, by several independent votes."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.chat import ChatError, ChatModel, ChatRequest
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.seeds import derive_seed
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import user_message
from varl_jax.roles.texts import conversation_text
from varl_jax.types import Criterion, Message, Verdict

ROLE: Final = "judge"
MIN_AGREEING: Final = 2
_FORM: Final = ReplyFormat(
  {
    "type": "object",
    "properties": {
      "explanation": {"type": "string", "maxLength": 4000},
      "criteria_met": {"type": "boolean"},
    },
    "required": ["explanation", "criteria_met"],
    "additionalProperties": False,
  }
)

# (criteria_met, explanation), or the kind of failure.
_Vote = tuple[bool, str] | str


def decide(votes: Sequence[bool], *, needed: int = MIN_AGREEING) -> bool | None:
  """The majority of the readable votes.

  Returns:
    None when fewer than `needed` agree, or as many say yes as no.
  """
  met = sum(votes)
  unmet = len(votes) - met
  if met == unmet or max(met, unmet) < needed:
    return None
  return met > unmet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
  """Grades criteria by majority (Section 3, Appendix G).

  The judge reads the conversation, the answer and one criterion's text, never
  its points. A vote that cannot be read is no vote and is not repeated; its
  kind stands in the verdict.

  Attributes:
    chat: the model; its name stands on every verdict.
    prompts: the domain's texts.
    votes: calls a criterion; 1 makes the single vote decide.
    max_tokens: limit of a reply.
  """

  chat: ChatModel
  prompts: PromptSet
  votes: int = 3
  max_tokens: int = 1024

  def __post_init__(self):
    if self.votes < 1:
      raise ValueError(f"votes is at least 1, got {self.votes}.")
    if not self.chat.name:
      raise ValueError("The judge's model needs a name.")

  async def judge(
    self,
    *,
    prompt: Sequence[Message],
    answer: str,
    criterion: Criterion,
    strict: bool,
    op: str,
    seed: int,
  ) -> Verdict:
    """Decides whether `criterion` is met.

    Args:
      prompt: the conversation that was answered.
      answer: the final answer.
      criterion: what to look for.
      strict: whether to append the strict note (probes, patch validation).
      op: unique name of the operation; votes are `op/vote0`, ...
      seed: the run's seed.

    Returns:
      The verdict; `met` is None when the votes were undetermined.

    Raises:
      ChatError: kind `quota` only, after which no call can succeed.
    """
    messages = self._messages(prompt, answer, criterion, strict)
    cast = await asyncio.gather(
      *(
        self._vote(messages, f"{op}/vote{index}", seed)
        for index in range(self.votes)
      )
    )
    read = [vote for vote in cast if not isinstance(vote, str)]
    needed = min(MIN_AGREEING, self.votes)
    met = decide([vote for vote, _ in read], needed=needed)
    reasons = [reason for vote, reason in read if vote is met]
    return Verdict(
      met=met,
      votes=tuple(vote for vote, _ in read),
      explanation=reasons[0] if reasons else "",
      judge=self.chat.name,
      failures=tuple(vote for vote in cast if isinstance(vote, str)),
    )

  def _messages(
    self,
    prompt: Sequence[Message],
    answer: str,
    criterion: Criterion,
    strict: bool,
  ) -> tuple[Message, ...]:
    user = user_message(
      {
        "CONVERSATION": conversation_text(prompt),
        "ANSWER": answer,
        "CRITERION": criterion.text,
      }
    )
    if strict:
      note = f"{user.content}\n\n{self.prompts.strict_note}"
      user = Message(role="user", content=note)
    return (self.prompts.system(ROLE), user)

  async def _vote(
    self, messages: tuple[Message, ...], operation: str, seed: int
  ) -> _Vote:
    request = ChatRequest(
      role=ROLE,
      messages=messages,
      operation=operation,
      seed=derive_seed(seed, operation),
      schema=_FORM.schema,
      max_tokens=self.max_tokens,
    )
    try:
      reply = await self.chat.complete(request)
      found = _FORM.parse(reply.text, finish=reply.finish)
    except ChatError as error:
      if error.kind == "quota":
        raise
      return error.kind
    return found["criteria_met"], found["explanation"]
