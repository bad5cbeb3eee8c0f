"""What a rollout keeps of a generated text beside its answer."""

import asyncio
import dataclasses

import pytest

from tests import fakes
from varl_jax.llm.final_answer import final_answer
from varl_jax.methods.parts import Workshop
from varl_jax.rollouts import RolloutWorker, reasoning_chars
from varl_jax.sampling.sampler import Sample
from varl_jax.types import Message


@pytest.mark.parametrize(
  ("text", "finish", "reasoning", "count"),
  [
    ("so 4</think>\n\nFour.", "stop", True, 4),
    ("<think>so 4 </think>Four.", "stop", True, 4),
    ("never ends", "length", True, 10),
    ("Four.", "stop", False, 0),
    ("<think>a</think>draft<think>bc</think>Four.", "stop", False, 8),
    ("ab</think>one<tool_call>x</think></tool_call>two", "stop", True, 2),
    ("ab</think>", "length", True, 2),
  ],
)
def test_reasoning_is_measured_up_to_the_tag_that_closes_it(
  text, finish, reasoning, count
):
  answer = final_answer(text, finish=finish, reasoning=reasoning)
  assert reasoning_chars(text, answer, finish=finish) == count


class Words:
  """A tokenizer whose only text is the one that was sampled."""

  def encode_chat(self, turns, *, reasoning):
    return (1,)

  def decode(self, tokens):
    return "hm so</think>fox lamp."


class OneText:
  """A sampler that draws the same every time."""

  def generate(self, prompts, n, **keys):
    return [
      [Sample(tokens=(1,), logprobs=(0.0,), finish="length")] * n
      for _ in prompts
    ]


def test_what_was_measured_reaches_the_graded_answer():
  worker = RolloutWorker(
    sampler=OneText(),  # pyright: ignore[reportArgumentType]
    tokenizer=Words(),  # pyright: ignore[reportArgumentType]
    system=Message(role="system", content="s"),
    max_prompt=4,
    reasoning=True,
  )
  (group,) = worker.collect([fakes.task()], n=2, params=None, step=1)
  assert [r.reasoning_chars for r in group.rollouts] == [5, 5]
  assessor = Workshop(
    config=fakes.config(), roles=fakes.roles(), checks=fakes.CHECKS
  ).assessor()
  task = fakes.task()
  for answer in (group.rollouts[0].answer, None):
    rollout = dataclasses.replace(group.rollouts[0], answer=answer)
    graded = asyncio.run(
      assessor.assess_rollout(task.prompt, rollout, task.rubric, op="o")
    )
    assert (graded.finish, graded.reasoning_chars) == ("length", 5)
