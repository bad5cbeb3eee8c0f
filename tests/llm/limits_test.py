import pytest

from varl_jax.llm.limits import BURST_S, Bucket


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def test_no_limit_never_waits():
  bucket = Bucket(0, clock=Clock())
  assert {bucket.reserve(1e9) for _ in range(10)} == {0.0}


def test_a_rate_holds_over_every_window():
  """However calls come, a minute sees little more than the limit."""
  clock = Clock()
  bucket = Bucket(120, clock=clock)
  starts = [clock.now + bucket.reserve(1) for _ in range(300)]
  clock.now += 1000
  starts += [clock.now + bucket.reserve(1) for _ in range(300)]
  assert starts == sorted(starts)
  for start in starts:
    inside = sum(start <= other < start + 60 for other in starts)
    assert inside <= 120 + 2 * BURST_S + 1
  assert starts[299] - starts[0] == pytest.approx(299 / 2 - BURST_S)


def test_a_request_beyond_the_burst_passes_and_the_next_pays():
  clock = Clock()
  bucket = Bucket(6000, clock=clock)
  assert bucket.reserve(3000) == 0.0
  assert bucket.reserve(10) == pytest.approx(30 - BURST_S)


def test_settling_gives_back_what_was_not_used():
  clock = Clock()
  bucket = Bucket(6000, clock=clock)
  bucket.reserve(3000)
  bucket.settle(-2900)
  assert bucket.reserve(1) == pytest.approx(0.0)
  bucket.settle(5900)
  assert bucket.reserve(1) == pytest.approx(60 + 0.01 - BURST_S, abs=0.02)
