"""The judge: one criterion on one answer, by several independent votes."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.chat import (
  ChatError,
  ChatModel,
  ChatReply,
  ChatRequest,
  SamplingChatModel,
)
from varl_jax.llm.final_answer import final_answer
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.seeds import derive_seed
from varl_jax.llm.together import together
from varl_jax.prompts.loader import PromptSet
from varl_jax.roles.calls import check_finish, user_message
from varl_jax.roles.judge_template import JudgeTemplate, read_yes_no
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
  its points, unless a published template shows them. A vote that cannot be read
  is no vote and is not repeated; its kind stands in the verdict.

  Attributes:
    chat: the model.
    prompts: the domain's texts.
    votes: calls a criterion; 1 makes the single vote decide.
    max_tokens: limit of a reply.
    one_request: ask for all votes as samples of one request, where the model
      can; the votes are named and seeded alike either way.
    template: a published template in place of our prompt, None for ours.
  """

  chat: ChatModel
  prompts: PromptSet
  votes: int = 3
  max_tokens: int = 1024
  one_request: bool = False
  template: JudgeTemplate | None = None

  def __post_init__(self):
    if self.votes < 1:
      raise ValueError(f"votes is at least 1, got {self.votes}.")
    if not self.chat.name:
      raise ValueError("The judge's model needs a name.")

  @functools.cached_property
  def name(self) -> str:
    """The model and, if it is not ours, the template; on every verdict."""
    if self.template is None:
      return self.chat.name
    manner = ", faithful" if self.template.faithful else ""
    return f"{self.chat.name} [{self.template.label}{manner}]"

  @property
  def description(self) -> dict[str, Any]:
    """Which judge this is, for reports and saved scores.

    `strict` says where the strict note is appended.
    """
    template = self.template
    return {
      "model": self.chat.name,
      "template": "varl_jax" if template is None else template.label,
      "votes": self.votes,
      "strict": "probes and patch validation",
      "faithful": template is not None and template.faithful,
    }

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
      ChatError: a fatal one only, after which no call can succeed; the other
        votes have ended by then.
    """
    messages = self._messages(prompt, answer, criterion, strict)
    cast = await self._cast(
      [
        self._request(messages, f"{op}/vote{index}", seed)
        for index in range(self.votes)
      ]
    )
    read = [vote for vote in cast if not isinstance(vote, str)]
    needed = min(MIN_AGREEING, self.votes)
    met = decide([vote for vote, _ in read], needed=needed)
    reasons = [reason for vote, reason in read if vote is met]
    return Verdict(
      met=met,
      votes=tuple(vote for vote, _ in read),
      explanation=reasons[0] if reasons else "",
      judge=self.name,
      failures=tuple(vote for vote in cast if isinstance(vote, str)),
    )

  def _messages(
    self,
    prompt: Sequence[Message],
    answer: str,
    criterion: Criterion,
    strict: bool,
  ) -> tuple[Message, ...]:
    if self.template is not None:
      *before, user = self.template.messages(prompt, answer, criterion)
    else:
      before = [self.prompts.system(ROLE)]
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
    return (*before, user)

  def _request(
    self, messages: tuple[Message, ...], operation: str, seed: int
  ) -> ChatRequest:
    template = self.template
    by_schema = template is None or (template.json and not template.faithful)
    return ChatRequest(
      role=ROLE,
      messages=messages,
      operation=operation,
      seed=derive_seed(seed, operation),
      schema=_FORM.schema if by_schema else None,
      max_tokens=self.max_tokens,
    )

  async def _cast(self, requests: list[ChatRequest]) -> list[_Vote]:
    if (
      self.one_request
      and len(requests) > 1
      and isinstance(self.chat, SamplingChatModel)
    ):
      replies = await self.chat.complete_samples(requests)
      if len(replies) != len(requests):
        raise ValueError(f"{len(replies)} replies to {len(requests)} requests.")
      return [self._vote(reply) for reply in replies]
    return await together(self._ask(request) for request in requests)

  async def _ask(self, request: ChatRequest) -> _Vote:
    try:
      return self._vote(await self.chat.complete(request))
    except ChatError as error:
      return self._vote(error)

  def _vote(self, reply: ChatReply | ChatError) -> _Vote:
    """Reads a reply; raises a fatal failure, returns the kind of another."""
    try:
      if isinstance(reply, ChatError):
        raise reply
      return self._read(reply)
    except ChatError as error:
      if error.fatal:
        raise
      return error.kind

  def _read(self, reply: ChatReply) -> tuple[bool, str]:
    if self.template is None or self.template.json:
      found = _FORM.parse(reply.text, finish=reply.finish)
      return found["criteria_met"], found["explanation"]
    check_finish(reply)
    text = final_answer(reply.text, finish="stop", reasoning=False) or ""
    met = read_yes_no(text)
    if met is None:
      raise ChatError("malformed", f"Neither Yes nor No: {text[:80]!r}.")
    return met, text
