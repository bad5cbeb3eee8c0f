"""Answers with tool calls: turns sampled, calls run, results put behind them.

All unfinished conversations of a batch go on together, a turn a round. Each is
one growing sequence of ids: what was sampled stays as it was sampled, and the
ids of a result, its head and its end are put behind it with mask 0 and log-
probability 0. Ids, log-probabilities and mask grow in one place, together.

Departure from the paper, which does not say: a call that cannot be read counts
as a call, and who calls once more after being told that the limit is reached
gets no further turn.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.llm.tool_calls import failed, read_calls
from varl_jax.llm.untrusted import neutralised
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.tool_turns import ToolTurns
from varl_jax.protocols import ToolBox
from varl_jax.sampling.sampler import Begun, Sample, Sampler
from varl_jax.types import Finish, ToolCall, ToolResult, ToolSpec

# Says that a result goes on.
CUT: Final = " [...]"
# A result with room for fewer tokens says nothing; the answer is at its limit.
LEAST_RESULT: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolUse:
  """What tools a policy has and how it uses them.

  Attributes:
    specs: the tools it is shown.
    turns: the template's ids around results.
    box: runs calls.
    max_calls: a rollout.
    max_result_tokens: of one result.
    max_response: of an answer with its results, tokens.
  """

  specs: tuple[ToolSpec, ...]
  turns: ToolTurns
  box: ToolBox
  max_calls: int
  max_result_tokens: int
  max_response: int


@dataclasses.dataclass(kw_only=True)
class Conversation:
  """One answer as it grows.

  Attributes:
    row: index of its prompt in the batch.
    sample: index in the group.
    tokens: sampled ids and those of tools, in order.
    logprobs: of sampled ids, 0 for those of tools.
    mask: 1 for sampled ids.
    texts: what the policy wrote, a turn each.
    results: how each call ended.
    finish: of the last turn.
    open: whether it goes on.
    refused: whether it was told that the limit is reached.
  """

  row: int
  sample: int
  tokens: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[float] = dataclasses.field(default_factory=list)
  mask: list[int] = dataclasses.field(default_factory=list)
  texts: list[str] = dataclasses.field(default_factory=list)
  results: list[str] = dataclasses.field(default_factory=list)
  finish: Finish = "stop"
  open: bool = True
  refused: bool = False

  def say(self, sample: Sample, text: str) -> None:
    """Takes in a turn of the policy."""
    self.tokens += sample.tokens
    self.logprobs += sample.logprobs
    self.mask += [1] * len(sample.tokens)
    self.texts.append(text)
    self.finish = sample.finish
    self.open = sample.finish == "stop"

  def hear(self, ids: Sequence[int]) -> None:
    """Takes in what the policy did not write."""
    self.tokens += ids
    self.logprobs += [0.0] * len(ids)
    self.mask += [0] * len(ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolConversations:
  """Samples answers with tool calls.

  Attributes:
    sampler: draws tokens; made with `continues=True`.
    tokenizer: reads turns and writes results.
    use: the tools.
    reasoning: whether turns open in the reasoning channel.
  """

  sampler: Sampler
  tokenizer: Tokenizer
  use: ToolUse
  reasoning: bool

  def collect(
    self,
    prompts: Sequence[Sequence[int]],
    n: int,
    *,
    params: Any,
    step: int,
    tasks: Sequence[int],
    names: Sequence[str],
  ) -> list[list[Conversation]]:
    """Answers every prompt `n` times; see `Sampler.generate`.

    Args:
      prompts: token ids of each prompt, the tools shown in it.
      n: answers a prompt.
      params: the policy's weights.
      step: the training step.
      tasks: one number a prompt, part of the random key.
      names: of the tasks, for the names of operations.
    """
    keys = {"params": params, "step": step}
    drawn = self.sampler.generate(prompts, n, tasks=tasks, **keys)
    groups = []
    for row, samples in enumerate(drawn):
      groups.append([Conversation(row=row, sample=s) for s in range(n)])
      for conversation, sample in zip(groups[row], samples, strict=True):
        self._say(conversation, sample)
    whole = [conversation for group in groups for conversation in group]
    while going := self._answered(whole, step=step, names=names):
      samples = self.sampler.generate(
        [[*prompts[c.row], *c.tokens] for c in going],
        1,
        tasks=[tasks[c.row] for c in going],
        begun=[
          Begun(
            limit=self.use.max_response - len(c.tokens),
            sample=c.sample,
            position=len(c.tokens),
          )
          for c in going
        ],
        **keys,
      )
      for conversation, (sample,) in zip(going, samples, strict=True):
        self._say(conversation, sample)
    return groups

  def _say(self, conversation: Conversation, sample: Sample) -> None:
    conversation.say(sample, self.tokenizer.decode(sample.tokens))

  def _answered(
    self, whole: Sequence[Conversation], *, step: int, names: Sequence[str]
  ) -> list[Conversation]:
    """Runs the calls of the last round; returns those that go on."""
    asked: list[tuple[Conversation, list[ToolCall | ToolResult]]] = []
    for conversation in whole:
      if not conversation.open:
        continue
      calls = self._calls(
        conversation, f"{step}/{names[conversation.row]}/{conversation.sample}"
      )
      conversation.open = bool(calls)
      if calls:
        asked.append((conversation, calls))
    to_run = [c for _, calls in asked for c in calls if isinstance(c, ToolCall)]
    found = iter(self._run(to_run))
    for conversation, calls in asked:
      results = [next(found) if isinstance(c, ToolCall) else c for c in calls]
      self._hear(conversation, results)
    return [conversation for conversation, _ in asked if conversation.open]

  def _run(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
    results = self.use.box.run_tools(calls) if calls else []
    if len(results) != len(calls):
      raise ValueError(f"{len(calls)} calls gave {len(results)} results.")
    return results

  def _calls(
    self, conversation: Conversation, name: str
  ) -> list[ToolCall | ToolResult]:
    """The calls of the last turn, those that cannot be run with the reason."""
    if conversation.refused:
      return []
    parsed = read_calls(
      conversation.texts[-1],
      self.use.specs,
      form=self.use.turns.form,
      reasoning=self.reasoning,
    )
    if not parsed or self._room(conversation, len(parsed)) < LEAST_RESULT:
      conversation.finish = "length" if parsed else conversation.finish
      return []
    calls: list[ToolCall | ToolResult] = []
    for number, entry in enumerate(parsed, len(conversation.results)):
      if number >= self.use.max_calls:
        conversation.refused = True
        calls.append(
          failed(
            "limit",
            f"tools may be called {self.use.max_calls} times, so answer now",
          )
        )
      elif isinstance(entry, ToolResult):
        calls.append(entry)
      else:
        tool, arguments = entry
        calls.append(
          ToolCall(op=f"tool/{name}/{number}", name=tool, arguments=arguments)
        )
    return calls

  def _room(self, conversation: Conversation, results: int) -> int:
    """Tokens for each result; one is left for the policy to go on with."""
    used = len(conversation.tokens) + self.use.turns.overhead(results) + 1
    room = (self.use.max_response - used) // results
    return min(room, self.use.max_result_tokens)

  def _hear(
    self, conversation: Conversation, results: Sequence[ToolResult]
  ) -> None:
    room = self._room(conversation, len(results))
    ids = [result_ids(self.tokenizer, r.text, limit=room) for r in results]
    conversation.results += [result.failure for result in results]
    conversation.hear(self.use.turns.wrap(ids, last=conversation.tokens[-1]))


def result_ids(tokenizer: Tokenizer, text: str, *, limit: int) -> list[int]:
  """Ids of a result, none of them a control token; cut visibly at the limit.

  The text is cut before it is wrapped, so what closes a result always stands.
  """
  text = neutralised(text).strip()
  ids = tokenizer.encode_foreign(text)
  kept = len(text)
  while len(ids) > limit and kept:
    kept = min(kept - 1, kept * limit // len(ids))
    ids = tokenizer.encode_foreign(text[:kept].rstrip() + CUT)
  return ids[:limit]
