"""Programs and judge together, and the limit on calls."""

import asyncio
import contextlib
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.config import ConfigError, JudgeConfig
from varl_jax.llm.chat import ChatError, ChatReply
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.bundle import make_roles
from varl_jax.roles.grading import Grader
from varl_jax.roles.judge import Judge
from varl_jax.rubrics.check_pool import CheckPool
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


REGISTRY = "tests.rubrics.pool_checks:CHECKS"
MIXED = Rubric(
  criteria=(
    Criterion(text="Names the rope.", points=8, check="has(rope)"),
    Criterion(text="Ends well.", points=6),
    Criterion(text="Hangs.", points=-5, check="hangs()"),
    Criterion(text="Dies.", points=5, check="dies()"),
    Criterion(text="Is kind.", points=5),
    Criterion(text="Names the key.", points=-5, check="has(key)"),
  )
)


def test_verifiers_in_processes_and_judged_criteria_mix():
  chat = FakeChat(lambda _: TRUE)
  pool = CheckPool(REGISTRY, workers=1, timeout_s=1.0)
  with contextlib.closing(grader(chat, pool=pool)) as role:
    verdicts = asyncio.run(
      role.grade(PROMPT, "the rope held", MIXED, strict=False, op="g", seed=0)
    )
  met = [verdict.met for verdict in verdicts]
  assert met == [True, True, None, None, True, False]
  judges = [verdict.judge for verdict in verdicts]
  assert judges == ["check", "fake", "check", "check", "fake", "check"]
  failures = [verdict.failures for verdict in verdicts]
  assert failures == [(), (), ("timeout",), ("unavailable",), (), ()]
  operations = {request.operation for request in chat.requests}
  assert operations == {
    f"g/criterion{i}/vote{j}" for i in (1, 4) for j in range(3)
  }


class FailsOnce:
  """One criterion's votes fail for good, the others wait for ever."""

  name = "fails once"

  def __init__(self):
    self.begun, self.ended = 0, 0

  async def complete(self, request):
    self.begun += 1
    if "criterion2" in request.operation:
      raise ChatError("quota", "Nothing is left to spend.")
    try:
      await asyncio.Event().wait()
    finally:
      await asyncio.sleep(0)
      self.ended += 1


def test_a_fatal_failure_leaves_no_call_running():
  rubric = Rubric(
    criteria=tuple(Criterion(text=f"c{i}", points=5) for i in range(4))
  )
  chat = FailsOnce()

  async def grade():
    with pytest.raises(ChatError, match="left to spend"):
      await grader(chat).grade(
        PROMPT, "a", rubric, strict=False, op="g", seed=0
      )
    assert asyncio.all_tasks() == {asyncio.current_task()}

  asyncio.run(grade())
  assert chat.ended >= 6
  assert chat.begun - chat.ended <= 3  # the failing criterion's own votes


def roles_with(workers, registry, checks=CHECKS):
  return make_roles(
    FakeChat([]),
    "story",
    JudgeConfig(check_workers=workers),
    checks,
    registry=registry,
  )


def test_the_bundle_opens_and_closes_the_pool():
  with contextlib.closing(roles_with(1, REGISTRY)) as roles:
    assert isinstance(roles.grader.pool, CheckPool)
  roles.close()
  without = roles_with(0, "")
  assert without.grader.pool is None
  without.close()
  assert roles_with(2, "", CheckRegistry()).grader.pool is None


@pytest.mark.parametrize(
  ("registry", "reason"),
  [("", "set it to 0"), ("nowhere:CHECKS", "cannot be imported")],
)
def test_a_pool_without_an_importable_registry_is_refused(registry, reason):
  with pytest.raises(ConfigError, match=reason):
    roles_with(1, registry)
