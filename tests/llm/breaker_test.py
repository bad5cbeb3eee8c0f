"""The gate on a clock of its own: nothing here waits for real time."""

import asyncio
import itertools
import random

import pytest

from varl_jax.llm import breaker
from varl_jax.llm.breaker import Gate, OutageError
from varl_jax.llm.retries import Backoff


class World:
  """A gate whose waits advance its clock."""

  def __init__(self, outage_s=100.0):
    self.now = 0.0
    self.notes = []
    self.gate = Gate(
      name="m at host",
      outage_s=outage_s,
      backoff=Backoff(first_s=1.0, cap_s=8.0),
      rng=random.Random(0),
      notify=self.notes.append,
      clock=lambda: self.now,
    )
    self.gate._wait = self.wait

  async def wait(self, seconds):
    await asyncio.sleep(0)
    self.now += max(seconds, 0.001)

  def enter(self, call, patience=1000.0):
    asyncio.run(self.gate.enter(call, patience_s=patience))

  def go_down(self):
    for call in range(breaker.DOWN_IN_A_ROW):
      self.gate.failed(call, "down", "connection refused")
    assert self.gate.shut


def test_an_open_gate_lets_everybody_through():
  world = World()
  world.enter("a")
  assert world.now == 0 and not world.gate.shut and world.notes == []


def test_a_success_in_between_keeps_it_open():
  world = World()
  for call in range(20):
    world.gate.failed(call, "down", "reset")
    world.gate.failed(call, "ill", "status 500")
    world.gate.succeeded()
  assert not world.gate.shut


def test_one_request_that_a_server_stumbles_over_does_not_shut_it():
  world = World()
  for _ in range(50):
    world.gate.failed("poison", "ill", "status 500")
  assert not world.gate.shut
  for call in range(breaker.ILL_CALLS - 1):
    world.gate.failed(call, "ill", "status 500")
  assert world.gate.shut


def test_probes_go_one_at_a_time_ever_more_rarely_until_one_succeeds():
  world = World()
  world.go_down()
  assert len(world.notes) == 1
  assert "m at host does not answer (connection refused)" in world.notes[0]
  times = []
  for probe in range(6):
    world.enter(probe)
    times.append(world.now)
    world.gate.failed(probe, "down", "connection refused")
  gaps = [b - a for a, b in itertools.pairwise(times)]
  assert all(gap >= 0.5 for gap in gaps) and max(gaps) <= 8.1
  assert gaps[-1] >= 4.0
  world.enter("last")
  world.gate.succeeded()
  assert not world.gate.shut
  assert world.notes[1:] == [f"m at host is back after {world.now:.0f} s."]


def test_others_wait_while_a_probe_is_under_way():
  world = World(outage_s=50.0)
  world.go_down()
  world.enter("probe")
  with pytest.raises(OutageError, match="connection refused"):
    world.enter("other")
  world.gate.left("probe")
  world.enter("other")


def test_an_outage_ends_in_a_failure_and_then_each_call_may_probe_once():
  world = World(outage_s=20.0)
  world.go_down()

  def ask_on():
    for call in range(100):
      world.enter(call)
      world.gate.failed(call, "down", "connection refused")

  with pytest.raises(OutageError, match="waited up to 20 s"):
    ask_on()
  assert 12.0 <= world.now <= 20.1
  world.now += 1000.0
  world.enter("later")
  world.gate.succeeded()
  world.enter("others")


def fail_on(world, health, reason, *, astray=False):
  """One call after the other, until they are no longer let through."""
  for call in range(10_000):
    world.enter(call, patience=5000.0)
    world.gate.failed(call, health, reason, astray=astray)


def test_what_has_never_been_there_is_waited_for_shortly():
  world = World(outage_s=1800.0)
  with pytest.raises(OutageError, match=r"check base_url\).*up to 60 s"):
    fail_on(world, "ill", "an HTML page", astray=True)
  assert 40 <= world.now <= breaker.UNSEEN_S + 0.1
  assert "wait up to 60 s" in world.notes[0]
  world.gate.succeeded()
  begun = world.now
  with pytest.raises(OutageError, match=r"page\).*up to 1800 s"):
    fail_on(world, "ill", "an HTML page", astray=True)
  assert world.now - begun > 1500


def test_a_server_that_is_down_from_the_start_is_waited_for():
  world = World(outage_s=1800.0)
  with pytest.raises(OutageError, match=r"check base_url\).*up to 1800 s"):
    fail_on(world, "down", "connection refused")
  assert world.now > 1500


def test_it_says_when_calls_wait_for_long():
  world = World()
  assert not world.gate.away
  world.gate.pause("a", breaker.QUIET_S / 2, "status 429")
  assert world.gate.shut and not world.gate.away
  world.gate.pause("a", breaker.QUIET_S * 2, "status 429")
  assert world.gate.away
  world.enter("a")
  world.gate.succeeded()
  world.go_down()
  assert world.gate.away


def test_a_pause_holds_for_all_and_ends_by_itself():
  world = World()
  world.gate.pause("a", 60.0, "status 429")
  world.gate.succeeded()  # An answer to what was sent before.
  assert world.gate.shut
  assert "asked to wait 60 s (status 429)" in world.notes[0]
  world.enter("b")
  assert world.now == pytest.approx(60.0, abs=0.01)
  world.enter("c")
  world.gate.succeeded()
  assert world.notes[1] == "m at host is back after 60 s."


def test_the_longest_pause_counts():
  world = World()
  world.gate.pause("a", 30.0, "status 429")
  world.gate.pause("b", 3.0, "status 429")
  world.enter("c")
  assert world.now == pytest.approx(30.0, abs=0.01)
  assert len(world.notes) == 1


def test_a_pause_beyond_the_outage_limit_fails_at_once():
  world = World(outage_s=100.0)
  world.gate.pause("a", 600.0, "status 429")
  with pytest.raises(OutageError):
    world.enter("b")
  assert world.now == 0


def test_pauses_that_follow_one_another_are_one_outage():
  world = World(outage_s=100.0)

  def ask_on():
    for _ in range(100):
      world.gate.pause("a", 7.0, "status 429")
      world.enter("a")

  with pytest.raises(OutageError):
    ask_on()
  assert world.now <= 100.1


def test_short_pauses_are_no_news():
  world = World()
  world.gate.pause("a", breaker.QUIET_S / 2, "status 429")
  world.enter("a")
  world.gate.succeeded()
  assert world.notes == []


def test_a_calls_own_patience_ends_its_wait():
  world = World(outage_s=100.0)
  world.gate.pause("a", 60.0, "status 429")
  with pytest.raises(OutageError):
    world.enter("b", patience=10.0)


def test_waiting_ends_when_the_gate_opens_in_real_time():
  async def run():
    gate = Gate(
      name="m",
      outage_s=1000.0,
      backoff=Backoff(first_s=500.0, cap_s=500.0),
      rng=random.Random(0),
      notify=lambda text: None,
      clock=asyncio.get_running_loop().time,
    )
    for call in range(3):
      gate.failed(call, "down", "reset")
    waiting = asyncio.create_task(gate.enter("a", patience_s=1000.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.succeeded()
    await asyncio.wait_for(waiting, 10.0)

  asyncio.run(run())
