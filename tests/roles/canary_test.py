"""An empty answer is worth nothing, or somebody is told."""

import asyncio
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.llm.chat import ChatError
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.canary import canary_alarm, grade_canary
from varl_jax.roles.grading import Grader
from varl_jax.roles.judge import Judge
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.types import Criterion, Message, Rubric, Task, Verdict


def wordless(answer: str) -> bool:
  """Nothing is said."""
  return not answer.split()


CHECKS = CheckRegistry(checks={"wordless": wordless})
GOOD = Criterion(text="Names the rope.", points=8)
TRAP = Criterion(text="Says nothing.", points=-5, check="wordless()")
FREE = Criterion(text="Is short.", points=5, check="wordless()")


def canary(reply, *criteria):
  chat = FakeChat(lambda _: reply)
  grader = Grader(
    judge=Judge(chat=chat, prompts=load_prompts("story")), checks=CHECKS
  )
  task = Task(
    task_id="t",
    prompt=(Message(role="user", content="write"),),
    rubric=Rubric(criteria=criteria),
  )
  return chat, asyncio.run(grade_canary(grader, task, op="canary", seed=0))


def vote(met):
  return json.dumps({"explanation": "e", "criteria_met": met})


def test_a_sound_judge_raises_no_alarm():
  chat, found = canary(vote(False), GOOD)
  assert (found.score, found.alarm) == (0.0, None)
  assert chat.blocks()["ANSWER"] == ""
  assert [r.operation for r in chat.requests] == [
    f"canary/criterion0/vote{index}" for index in range(3)
  ]


def test_a_trap_met_by_silence_is_no_alarm():
  _, found = canary(vote(False), GOOD, TRAP)
  assert found.score == pytest.approx(-5 / 8)
  assert found.alarm is None


def test_a_judge_that_credits_nothing_is_named():
  _, found = canary(vote(True), GOOD, TRAP)
  assert found.score == pytest.approx(3 / 8)
  assert "scored 0.38" in found.alarm
  assert "fake calls 'Names the rope.' met" in found.alarm
  assert "\n" not in found.alarm


def test_a_verifier_that_pays_nothing_is_named():
  _, found = canary(vote(False), GOOD, FREE)
  assert "check calls 'Is short.' met" in found.alarm


def test_no_verdict_says_nothing():
  _, found = canary("?", GOOD)
  assert (found.score, found.alarm) == (None, None)


def test_a_fatal_failure_is_passed_on():
  with pytest.raises(ChatError, match="spent"):
    canary(ChatError("quota", "spent"), GOOD)


def test_the_pure_part():
  met = Verdict(met=True, votes=(True,), explanation="", judge="m")
  unmet = Verdict(met=False, votes=(False,), explanation="", judge="m")
  rubric = Rubric(criteria=(GOOD, TRAP))
  assert canary_alarm(rubric, [unmet, met]) is None
  assert canary_alarm(rubric, [unmet, unmet]) is None
  assert canary_alarm(rubric, [met, unmet]) is not None
