import contextlib

from varl_jax.llm.chat import ChatReply
from varl_jax.llm.usage import Usage


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


def test_counts_by_role():
  usage = Usage(clock=Clock())
  reply = ChatReply(
    text="",
    finish="stop",
    model="m",
    prompt_tokens=5,
    reply_tokens=2,
    mode="json_object",
    cost=0.25,
  )
  usage.called("judge", calls=3)
  usage.attempted("judge")
  usage.replied("judge", [reply, reply])
  usage.retried("judge", "timeout")
  usage.failed("judge", "quota", calls=3)
  usage.lacked_usage("judge")
  usage.called("patcher")
  assert usage.numbers()["judge"] == {
    "calls": 3,
    "attempts": 1,
    "prompt_tokens": 10,
    "reply_tokens": 4,
    "cost": 0.5,
    "without_usage": 1,
    "paused_s": 0,
    "failed_quota": 3,
    "retried_timeout": 1,
    "mode_json_object": 2,
  }
  assert usage.numbers()["patcher"]["calls"] == 1


def test_overlapping_pauses_of_a_role_count_once():
  clock = Clock()
  usage = Usage(clock=clock)
  with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
    first.enter_context(usage.pausing("judge"))
    clock.now = 2.0
    second.enter_context(usage.pausing("judge"))
    clock.now = 3.0
    first.close()
    clock.now = 5.0
    second.close()
    clock.now = 50.0
  assert usage.numbers()["judge"]["paused_s"] == 5.0
