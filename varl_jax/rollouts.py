"""Task -> rollouts: prompts rendered, answers sampled, texts taken out."""

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import Any

from varl_jax.llm.final_answer import CLOSE, OPEN, final_answer
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.sampling.sampler import Sample, Sampler
from varl_jax.tool_rollouts import Conversation, ToolConversations, ToolUse
from varl_jax.types import Message, Rollout, Task

Prompted = tuple[Task, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
  """The n rollouts of one serving of a task, with the prompt they share."""

  task: Task
  prompt: tuple[int, ...]
  rollouts: tuple[Rollout, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutWorker:
  """Samples groups of answers with the weights it is given.

  Attributes:
    sampler: draws tokens.
    tokenizer: renders prompts and reads answers.
    system: the solver's system message; an empty one is left out.
    max_prompt: tokens; a task whose rendered prompt is longer is left out.
    reasoning: whether answers open with a reasoning channel.
    tools: what answers may call, None for nothing.
  """

  sampler: Sampler
  tokenizer: Tokenizer
  system: Message
  max_prompt: int
  reasoning: bool = False
  tools: ToolUse | None = None

  def collect(
    self, tasks: Sequence[Task], *, n: int, params: Any, step: int
  ) -> list[Group]:
    """Answers every task `n` times.

    Args:
      tasks: each is answered under the conversation it carries.
      n: rollouts a task.
      params: the policy's weights.
      step: the training step; part of the random key together with the task's
        id and the sample's index, so a restart draws the same tokens.

    Returns:
      One group a task whose prompt fits, in order.
    """
    shown = {}
    if self.tools is not None:
      shown = {"tools": [spec.schema() for spec in self.tools.specs]}
    prompts = [
      tuple(
        self.tokenizer.encode_chat(
          (*self._before(), *task.prompt), reasoning=self.reasoning, **shown
        )
      )
      for task in tasks
    ]
    fitting = [
      (task, prompt)
      for task, prompt in zip(tasks, prompts, strict=True)
      if len(prompt) <= self.max_prompt
    ]
    if not fitting:
      return []
    draw = self._plain if self.tools is None else self._with_tools
    rollouts = draw(fitting, n, params=params, step=step)
    return [
      Group(task=task, prompt=prompt, rollouts=tuple(found))
      for (task, prompt), found in zip(fitting, rollouts, strict=True)
    ]

  def _plain(
    self, fitting: Sequence[Prompted], n: int, *, params: Any, step: int
  ) -> list[list[Rollout]]:
    drawn = self.sampler.generate(
      [prompt for _, prompt in fitting],
      n,
      params=params,
      step=step,
      tasks=[task_number(task) for task, _ in fitting],
    )
    return [
      [self._rollout(task, index, s) for index, s in enumerate(samples)]
      for (task, _), samples in zip(fitting, drawn, strict=True)
    ]

  def _with_tools(
    self, fitting: Sequence[Prompted], n: int, *, params: Any, step: int
  ) -> list[list[Rollout]]:
    assert self.tools is not None
    drawn = ToolConversations(
      sampler=self.sampler,
      tokenizer=self.tokenizer,
      use=self.tools,
      reasoning=self.reasoning,
    ).collect(
      [prompt for _, prompt in fitting],
      n,
      params=params,
      step=step,
      tasks=[task_number(task) for task, _ in fitting],
      names=[task.task_id for task, _ in fitting],
    )
    return [
      [self._conversation(task, found) for found in group]
      for (task, _), group in zip(fitting, drawn, strict=True)
    ]

  def _before(self) -> tuple[Message, ...]:
    return (self.system,) if self.system.content else ()

  def _rollout(self, task: Task, index: int, sample: Sample) -> Rollout:
    text = self.tokenizer.decode(sample.tokens)
    answer = final_answer(text, finish=sample.finish, reasoning=self.reasoning)
    return Rollout(
      task_id=task.task_id,
      sample=index,
      answer=answer,
      tokens=sample.tokens,
      logprobs=sample.logprobs,
      mask=(1,) * len(sample.tokens),
      finish=sample.finish,
      reasoning_chars=reasoning_chars(text, answer, finish=sample.finish),
    )

  def _conversation(self, task: Task, found: Conversation) -> Rollout:
    """The answer is what the last turn says; reasoning is that of all turns."""
    *before, last = found.texts
    answer = final_answer(last, finish=found.finish, reasoning=self.reasoning)
    count = reasoning_chars(last, answer, finish=found.finish)
    for text in before:
      said = final_answer(text, finish="stop", reasoning=self.reasoning)
      count += reasoning_chars(text, said, finish="stop")
    return Rollout(
      task_id=task.task_id,
      sample=found.sample,
      answer=answer,
      tokens=tuple(found.tokens),
      logprobs=tuple(found.logprobs),
      mask=tuple(found.mask),
      finish=found.finish,
      reasoning_chars=count,
      tool_results=tuple(found.results),
    )


def task_number(task: Task) -> int:
  """A task's part of the random key."""
  return zlib.crc32(task.task_id.encode())


def reasoning_chars(text: str, answer: str | None, *, finish: str) -> int:
  """Characters of a generated text's reasoning, the tags not counted.

  Args:
    text: the generated text.
    answer: what `final_answer` makes of it; None says that all of the text is
      reasoning.
    finish: why generation ended.
  """
  end = len(text) if answer is None else 0
  # The channel's last closing tag; one inside a tool span leaves another rest.
  for tag in re.finditer(re.escape(CLOSE), text):
    rest = final_answer(text[tag.end() :], finish=finish, reasoning=False)
    if answer is not None and rest == answer:
      end = tag.start()
  reasoning = text[:end].replace(OPEN, "").replace(CLOSE, "")
  return len(reasoning.strip())
