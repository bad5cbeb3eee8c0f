"""Records survive crashes; the display suits a terminal and a log file."""

import contextlib
import io
import json
import math

import numpy as np
import pytest
import rich.console

from varl_jax import metrics, step_lines
from varl_jax.metrics import MetricsError, MetricsWriter, Progress, read_metrics


@pytest.fixture
def writer(tmp_path):
  with contextlib.closing(MetricsWriter(tmp_path)) as made:
    yield made


def test_one_json_object_a_step(writer, tmp_path):
  record = writer.write(
    1,
    {
      "reward/mean": np.float32(0.5),
      "exploit/cases": np.int64(3),
      "flag": np.bool_(True),
      "array": np.array(2.0),
      "judge": "check",
    },
  )
  writer.write(2, {"reward/mean": 0.25})
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    record,
    {"step": 2, "reward/mean": 0.25},
  ]
  assert record == {
    "step": 1,
    "reward/mean": 0.5,
    "exploit/cases": 3,
    "flag": True,
    "array": 2.0,
    "judge": "check",
  }
  assert type(record["exploit/cases"]) is int
  assert type(record["flag"]) is bool


@pytest.mark.parametrize(
  "value", [math.nan, math.inf, np.float32("nan"), [1.0], None]
)
def test_what_is_no_finite_scalar_is_refused_and_leaves_no_trace(
  writer, tmp_path, value
):
  with pytest.raises(MetricsError, match=r"^bad is .* at step 1"):
    writer.write(1, {"good": 1.0, "bad": value})
  assert read_metrics(tmp_path) == []
  writer.write(1, {"good": 1.0})
  assert read_metrics(tmp_path) == [{"step": 1, "good": 1.0}]


def test_steps_only_grow(writer):
  writer.write(3, {})
  with pytest.raises(ValueError, match="rewind first"):
    writer.write(3, {})


def test_half_written_last_line_is_dropped_at_every_length(tmp_path):
  path = tmp_path / "metrics.jsonl"
  whole = b'{"step": 1, "a": 1}\n'
  torn = b'{"step": 2, "a": 2}\n'
  for cut in range(len(torn)):
    path.write_bytes(whole + torn[:cut])
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1}]
    with MetricsWriter(tmp_path) as writer:
      assert writer.last_step == 1
      writer.write(2, {"a": 3})
    assert [r["a"] for r in read_metrics(tmp_path)] == [1, 3]


def test_damage_before_the_last_line_is_an_error(tmp_path):
  (tmp_path / "metrics.jsonl").write_text(
    '{"step": 1}\nnonsense\n{"step": 3}\n'
  )
  with pytest.raises(MetricsError, match=r"Line 2 of .* is damaged"):
    read_metrics(tmp_path)


def test_rewind_drops_later_records_and_goes_on(writer, tmp_path):
  for step in (0, 1, 2, 3):
    writer.write(step, {"a": step})
  writer.rewind(1)
  assert [r["step"] for r in read_metrics(tmp_path)] == [0, 1]
  writer.write(2, {"a": 20})
  assert read_metrics(tmp_path)[-1] == {"step": 2, "a": 20}
  writer.rewind(-1)
  assert read_metrics(tmp_path) == []
  assert writer.last_step is None


def test_full_disk_is_one_sentence_and_leaves_whole_lines(
  writer, tmp_path, monkeypatch
):
  writer.write(1, {})

  def refuse(handle):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(step_lines.os, "fsync", refuse)
  with pytest.raises(MetricsError, match="No space left on device"):
    writer.write(2, {"a": 1})
  assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


RECORD = {
  "step": 2,
  "reward/mean": 0.5,
  "eval/score": 0.25,
  "exploit/cases": 3,
  "patch/accepted": 4,
  "pool/size": 64,
  "time/step": 1.5,
  "time/rollouts": 1.0,
}


def test_off_a_terminal_each_step_is_one_plain_line():
  out = io.StringIO()
  console = rich.console.Console(file=out, width=40)
  with Progress(total=10, title="run", console=console) as progress:
    progress.update({"step": 1, "reward/mean": 0.4})
    progress.update(RECORD)
  first, second = out.getvalue().splitlines()
  assert first.startswith("step 1/10  reward 0.400  left ")
  assert second.startswith(
    "step 2/10  reward 0.500  hidden 0.250  exploits 3  patches 4"
    "  pool 64  time 1.5s  left "
  )
  assert "\x1b" not in out.getvalue()


def test_on_a_terminal_a_panel_shows_the_run():
  out = io.StringIO()
  console = rich.console.Console(
    file=out, width=80, force_terminal=True, color_system=None
  )
  with Progress(total=10, title="my [run]", console=console) as progress:
    progress.update(RECORD)
  text = out.getvalue()
  for part in ("my [run]", "0.250", "step 2 of 10", "rollouts 1.0s"):
    assert part in text


def test_time_left_counts_only_steps_of_this_process(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
  out = io.StringIO()
  console = rich.console.Console(file=out)
  with Progress(total=10, start=5, console=console) as progress:
    now[0] = 160.0
    progress.update({"step": 6})
  assert out.getvalue() == "step 6/10  left 4m 00s\n"
