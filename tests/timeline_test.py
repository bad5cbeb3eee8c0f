"""What is noted of stages, and what the watchdog says of it."""

import json
import threading

import pytest

from varl_jax.timeline import FILE_NAME, Span, Timeline, read_timeline
from varl_jax.watchdog import Watchdog


class Clock:
  """Seconds that pass when told."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def test_stages_are_written_when_they_end(tmp_path, clock):
  timeline = Timeline(tmp_path / FILE_NAME, clock=clock)
  with timeline.stage("sample", 2):
    clock.now = 101.5
    with timeline.stage("judge", 1):
      clock.now = 103
  with pytest.raises(OSError), timeline.stage("update", 1):
    raise OSError
  lines = (tmp_path / FILE_NAME).read_text().splitlines()
  assert list(map(json.loads, lines)) == [
    {"step": 1, "stage": "judge", "start": 101.5, "end": 103},
    {"step": 2, "stage": "sample", "start": 100, "end": 103},
  ]
  assert [s.stage for s in read_timeline(tmp_path)] == ["sample", "judge"]
  assert timeline.seconds(2) == {"sample": 3}
  assert timeline.seconds(1) == {"judge": 1.5}
  timeline.forget(2)
  assert timeline.seconds(1) == timeline.seconds(2) == {}


def test_a_step_done_again_has_its_last_times(tmp_path):
  (tmp_path / FILE_NAME).write_text(
    '{"step": 1, "stage": "judge", "start": 1, "end": 2}\n'
    '{"step": 1, "stage": "jud\n'
    '{"step": 1, "stage": "judge", "start": 5, "end": 6}\n'
    '{"step": 2, "stage": "judge", "sta'
  )
  assert read_timeline(tmp_path) == [
    Span(step=1, stage="judge", start=5, end=6)
  ]
  assert read_timeline(tmp_path / "nowhere") == []


def test_the_watchdog_names_what_everyone_waits_for(clock):
  timeline = Timeline(clock=clock)
  said = []
  watchdog = Watchdog(timeline, seconds=60, say=said.append)
  with (
    timeline.stage("judge", 3),
    timeline.waiting("the verdicts of step 3"),
  ):
    clock.now += 10
    with timeline.stage("repair", 2):
      clock.now += 59
      assert watchdog.look() is None
      clock.now += 1
      assert watchdog.look() == (
        "Nothing has moved for 60 s: the training waits for the verdicts of"
        " step 3 while the judge grades step 3 (70 s) and the service repairs"
        " rubrics after step 2 (60 s)."
      )
      clock.now += 59
      assert watchdog.look() is None
      clock.now += 1
      assert "for 120 s" in (watchdog.look() or "")
    # Something moved.
    clock.now += 59
    assert watchdog.look() is None
  clock.now += 1000
  assert watchdog.look() == (
    "Nothing has moved for 1000 s; no stage is under way."
  )


def test_it_looks_by_itself_and_ends():
  heard = threading.Event()
  timeline = Timeline()
  with (
    timeline.stage("update", 7),
    Watchdog(timeline, seconds=0.01, say=lambda said: heard.set()),
  ):
    assert heard.wait(60)
  with Watchdog(timeline, seconds=0, say=lambda said: pytest.fail(said)):
    pass
