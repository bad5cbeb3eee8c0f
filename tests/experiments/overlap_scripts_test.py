"""What the scripts on overlapping steps make of what runs leave."""

import contextlib
import itertools
import random

import pytest

from experiments import kill_run, soak, story_staleness
from varl_jax.service.store import Event, Store
from varl_jax.timeline import Span


def spans(step, start, **seconds):
  """Stages one after another."""
  ends = itertools.accumulate(seconds.values(), initial=start)
  return [
    Span(step=step, stage=stage, start=end - long, end=end)
    for (stage, long), end in zip(seconds.items(), [*ends][1:], strict=True)
  ]


def test_times_of_a_step_and_its_longest_stage():
  """Steps of 4 s, of which the judge takes 3 and the device 1."""
  run = [
    span
    for step in range(1, 9)
    for span in spans(step, 4.0 * step, sample=0.5, judge=3.0, update=0.5)
  ]
  found = story_staleness.times(run)
  assert found["wall"] == found["device"] + found["judge"] == 4
  assert found["longest"] == found["judge"] == 3
  assert found["tasks"] == found["repair"] == 0
  assert found["ratio"] == pytest.approx(4 / 3)


def test_a_pause_is_no_step():
  """The run was stopped for a while between steps 4 and 5."""
  run = [
    span
    for step in range(1, 9)
    for span in spans(
      step, 2.0 * step + 1000 * (step > 4), judge=1.0, update=1.0
    )
  ]
  assert story_staleness.times(run)["wall"] == 2


def test_the_table_has_a_column_a_level():
  row = {key: [1.0, 3.0] for key, *_ in story_staleness._ROWS}
  result = {
    "levels": {"0": row, "1": row},
    "paired": {"1 - 0": {"mean": 0.01, "standard_error": 0.02}},
    "judge_s": 3.0,
    "seeds": [600, 601],
    "steps": 40,
  }
  text = story_staleness.table(result)
  assert "| staleness | 0 | 1 |" in text
  assert "| steps a minute | 2.00 +- 1.00 | 2.00 +- 1.00 |" in text
  assert "1 - 0, paired: +0.010 +- 0.020." in text


def test_moments_are_spread_over_the_run():
  found = kill_run.moments(20, 30, random.Random(0))
  assert found == sorted(found)
  assert 0 <= found[0] < found[-1] <= 30
  assert found == kill_run.moments(20, 30, random.Random(0))


def events(steps, *, again=False):
  """A run that reports `steps`, each with a case and its repair."""
  for step in steps:
    case = f"{step}/t0"
    yield Event(uid=f"windows/{step}", step=step, kind="windows", payload={})
    for number in range(1 + again):
      yield Event(
        uid=f"case/{case}/{number}",
        step=step,
        kind="case",
        payload={"case": {"case_id": case}},
      )
      yield Event(
        uid=f"patch/{case}/{number}",
        step=step,
        kind="patch",
        payload={"patch": {"case_id": case, "round": 1}},
      )
    yield Event(uid=f"reported/{step}", step=step, kind="reported", payload={})


@pytest.fixture
def left(tmp_path, monkeypatch):
  """Makes a run's folder of events; projections are not what is tested."""
  monkeypatch.setattr(
    "varl_jax.service.projections.project", lambda *arguments: None
  )

  def make(found, *, records=(1, 2), lines=2):
    with contextlib.closing(Store(tmp_path / "service.sqlite")) as store:
      store.commit(found)
    (tmp_path / "metrics.jsonl").write_text(
      "".join(f'{{"step": {step}}}\n' for step in records)
    )
    (tmp_path / "evidence.jsonl").write_text("{}\n" * lines)
    setting = kill_run.Setting(folder=tmp_path, steps=2, staleness=1)
    return list(kill_run.problems(setting))

  return make


def test_a_whole_run_has_no_problem(left):
  assert left(events([1, 2])) == []


def test_what_is_lost_or_doubled_is_named(left):
  found = left(events([1, 2], again=True), records=(2,), lines=3)
  assert "steps recorded are not those of the run" in found
  assert "('1/t0',) is there 2 times" in found
  assert "('2/t0', 1) is there 2 times" in found
  assert "3 lines of evidence for 4 cases" in found


def test_a_report_that_is_missing_is_named(left):
  assert left(events([1]))[0] == "steps reported: [1]"


def test_growth_is_found():
  rows = [
    {
      "memory_mib": 500.0 + 5 * step,
      "files": 20.0,
      "threads": 9.0,
      "programs": 7.0,
      "store_kib": 40.0 * step,
    }
    for step in range(40)
  ]
  found = soak.quarters(rows)
  assert found["store_kib_a_step"] == [40.0] * 4
  assert soak.grown(found) == ["memory_mib grew from 622.5 to 672.5"]
  flat = [row | {"memory_mib": 500.0} for row in rows]
  assert soak.grown(soak.quarters(flat)) == []
  assert "Nothing grew." in soak.table(
    {"steps": 40, "quarters": soak.quarters(flat), "grown": []}
  )
