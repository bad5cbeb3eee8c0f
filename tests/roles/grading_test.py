"""Programs and judge together, and the limit on calls."""

import asyncio
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.llm.chat import ChatReply
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.grading import Grader
from varl_jax.roles.judge import Judge
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.types import Criterion, Message, Rubric

PROMPTS = load_prompts("story")
PROMPT = (Message(role="user", content="write a story"),)
TRUE = json.dumps({"explanation": "there", "criteria_met": True})


def names(answer: str, word: str) -> bool:
  """Whether the word is there."""
  return word in answer.split()


CHECKS = CheckRegistry(checks={"names": names})
RUBRIC = Rubric(
  criteria=(
    Criterion(text="Names the rope.", points=8, check="names(rope)"),
    Criterion(text="Ends well.", points=6),
    Criterion(text="Names the key.", points=-5, check="names(key)"),
    Criterion(text="Has a broken check.", points=5, check="nothing(at, all)"),
  )
)


def grader(chat, **kwargs):
  judge = Judge(chat=chat, prompts=PROMPTS)
  return Grader(judge=judge, checks=CHECKS, **kwargs)


def test_one_verdict_a_criterion():
  chat = FakeChat(lambda _: TRUE)
  verdicts = asyncio.run(
    grader(chat).grade(
      PROMPT, "the rope held", RUBRIC, strict=True, op="g", seed=0
    )
  )
  assert [verdict.met for verdict in verdicts] == [True, True, False, None]
  judges = [verdict.judge for verdict in verdicts]
  assert judges == ["check", "fake", "check", "check"]
  assert verdicts[3].failures == ("malformed",)
  assert verdicts[0].votes == (True,)
  operations = [request.operation for request in chat.requests]
  assert operations == [f"g/criterion1/vote{index}" for index in range(3)]


class SlowChat:
  """Counts how many calls are in flight."""

  name = "slow"

  def __init__(self):
    self.now = self.most = 0

  async def complete(self, request):
    self.now += 1
    self.most = max(self.most, self.now)
    await asyncio.sleep(0.001)
    self.now -= 1
    return ChatReply(text=TRUE, finish="stop", model=self.name)


@pytest.mark.parametrize(("concurrency", "most"), [(6, 6), (7, 6), (1, 3)])
def test_calls_in_flight_are_bounded_over_answers(concurrency, most):
  rubric = Rubric(
    criteria=tuple(Criterion(text=f"c{i}", points=5) for i in range(4))
  )
  chat = SlowChat()
  role = grader(chat, concurrency=concurrency)

  async def many():
    await asyncio.gather(
      *(
        role.grade(PROMPT, "a", rubric, strict=False, op=f"g{i}", seed=0)
        for i in range(3)
      )
    )

  # Twice: each run has a loop of its own.
  asyncio.run(many())
  asyncio.run(many())
  assert chat.most == most
