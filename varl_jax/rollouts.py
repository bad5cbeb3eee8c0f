"""Task -> rollouts: prompts rendered, answers sampled, texts taken out."""

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import Any

from varl_jax.llm.final_answer import CLOSE, OPEN, final_answer
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.sampling.sampler import Sample, Sampler
from varl_jax.types import Message, Rollout, Task


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
  """

  sampler: Sampler
  tokenizer: Tokenizer
  system: Message
  max_prompt: int
  reasoning: bool = False

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
    prompts = [
      tuple(
        self.tokenizer.encode_chat(
          (*self._before(), *task.prompt), reasoning=self.reasoning
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
    drawn = self.sampler.generate(
      [prompt for _, prompt in fitting],
      n,
      params=params,
      step=step,
      tasks=[zlib.crc32(task.task_id.encode()) for task, _ in fitting],
    )
    return [
      Group(
        task=task,
        prompt=prompt,
        rollouts=tuple(
          self._rollout(task, index, sample)
          for index, sample in enumerate(samples)
        ),
      )
      for (task, prompt), samples in zip(fitting, drawn, strict=True)
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
