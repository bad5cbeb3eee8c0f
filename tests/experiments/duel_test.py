"""Samples in turns, and what is made of them; nothing here is timed."""

import pytest

from experiments.speed import duel


class Scripted:
  """A contestant whose samples take what it is told."""

  def __init__(self, seconds, calls, name, **more):
    self.seconds, self.calls, self.name, self.more = seconds, calls, name, more

  def sample(self, number):
    self.calls.append((self.name, number))
    return {"seconds": self.seconds, **self.more}


def test_samples_alternate_behind_a_first_one_that_does_not_count():
  calls = []
  ours, peer, ceilings = duel.take_turns(
    Scripted(2.0, calls, "a"),
    Scripted(3.0, calls, "b"),
    Scripted(0.5, calls, "m", work=10.0),
    samples=2,
  )
  turns = [call for call in calls if call[0] != "m"]
  assert turns == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
  assert len(ours) == len(peer) == 2
  assert (ceilings.flops, ceilings.bytes) == (20.0, 20.0)


def test_ratio_is_above_one_where_ours_is_faster():
  line = duel.compared([1.0, 2.0, 4.0], [3.0, 4.0, 5.0], work=8.0)
  assert (line["ours"], line["peer"], line["ratio"]) == (4.0, 2.0, 2.0)
  assert line["samples"] == 3
  neighbours = line["spread"]["ratio_of_neighbours"]
  assert neighbours == {"median": 2.0, "min": 1.25, "max": 3.0}


def test_a_floor_is_the_slower_of_arithmetic_and_memory():
  ceilings = duel.Ceilings(flops=4.0, bytes=2.0)
  assert ceilings.floor_s(flops=8.0) == 2.0
  assert ceilings.floor_s(flops=8.0, bytes=6.0) == 3.0


def test_a_contestant_that_ends_is_an_error_and_not_an_answer():
  with pytest.raises(duel.PeerError, match="nobody ended with exit code 1"):
    duel.Contestant("nobody", {})
