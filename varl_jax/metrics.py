"""What a run measures: one JSON object a step, and a display for people.

`metrics.jsonl` is only ever appended to, one flushed and synced line a step, so
a killed run leaves at most one incomplete last line, which is dropped when the
file is opened again. A value that cannot be measured is left out of a record;
NaN and infinity are refused, because JSON has neither and charts hide both.
"""

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any, Final

import rich.console
import rich.live
import rich.panel
import rich.progress_bar
import rich.table
import rich.text

FILE_NAME: Final = "metrics.jsonl"


class MetricsError(Exception):
  """Metrics cannot be read or written; one clear sentence."""


class RecordError(MetricsError):
  """A record could not be written; those before it are untouched."""


class MetricsWriter:
  """Appends the records of one run to `metrics.jsonl` in its folder."""

  def __init__(self, workdir: str | os.PathLike[str]):
    """Opens or creates the file; an incomplete last line is dropped.

    Args:
      workdir: the run's folder, made when it does not exist.

    Raises:
      MetricsError: the file is damaged, or the extra is not installed.
    """
    self.path = pathlib.Path(workdir) / FILE_NAME
    self.path.parent.mkdir(parents=True, exist_ok=True)
    records, sound = _read(self.path)
    if self.path.exists() and sound < self.path.stat().st_size:
      os.truncate(self.path, sound)
    self._file = open(self.path, "ab", buffering=0)
    self._last = records[-1]["step"] if records else None

  def __enter__(self) -> "MetricsWriter":
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  @property
  def last_step(self) -> int | None:
    """The step of the last record, None when there is none."""
    return self._last

  def write(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Appends the record of `step`; it is on disk when this returns.

    Args:
      step: above that of every record so far.
      metrics: numbers (Python, numpy or jax scalars), booleans or strings.

    Returns:
      The record as plain values, `step` first.

    Raises:
      ValueError: the step does not follow the last one.
      MetricsError: a value is not finite or not a scalar.
      RecordError: the record could not be written; nothing of it is kept.
    """
    if self._last is not None and step <= self._last:
      raise ValueError(
        f"Step {step} does not follow step {self._last}, which is recorded;"
        " rewind first."
      )
    record: dict[str, Any] = {"step": int(step)}
    for name, value in metrics.items():
      if name != "step":
        record[name] = plain_value(name, value, step=step)
    self._append(json.dumps(record, allow_nan=False).encode() + b"\n")
    self._last = record["step"]
    return record

  def rewind(self, step: int) -> None:
    """Drops the records above `step`, all or none of them.

    The step a run resumes from is that of its checkpoint; what came after is
    done, and recorded, again.
    """
    records, _ = _read(self.path)
    kept = [record for record in records if record["step"] <= step]
    self._file.close()
    draft = self.path.with_name(FILE_NAME + ".draft")
    with open(draft, "wb") as file:
      for record in kept:
        file.write(json.dumps(record).encode() + b"\n")
      file.flush()
      os.fsync(file.fileno())
    os.replace(draft, self.path)
    _sync_folder(self.path.parent)
    self._file = open(self.path, "ab", buffering=0)
    self._last = kept[-1]["step"] if kept else None

  def close(self) -> None:
    """Closes the file; harmless when repeated."""
    self._file.close()

  def _append(self, line: bytes) -> None:
    start = os.fstat(self._file.fileno()).st_size
    try:
      written = self._file.write(line)
      if written != len(line):
        raise OSError("the line was cut short")
      os.fsync(self._file.fileno())
    except OSError as error:
      os.ftruncate(self._file.fileno(), start)
      raise RecordError(
        f"{self.path} cannot be written ({error.strerror or error}); the"
        " run can be resumed once it can."
      ) from error


class NoMetrics(MetricsWriter):
  """Records nothing, for a process that is not the one to record."""

  def __init__(self):
    """Opens nothing."""
    self._last = None

  def write(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": step, **metrics}

  def rewind(self, step: int) -> None:
    pass

  def close(self) -> None:
    pass


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """The records of a run in order, without an incomplete last line.

  Returns:
    [] when the run has recorded nothing.

  Raises:
    MetricsError: a line before the last is damaged.
  """
  return _read(pathlib.Path(workdir) / FILE_NAME)[0]


def plain_value(
  name: str, value: Any, *, step: int
) -> bool | int | float | str:
  """A scalar as a JSON value.

  Raises:
    MetricsError: it is no scalar, or not finite.
  """
  if hasattr(value, "item") and getattr(value, "size", 1) == 1:
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    raise MetricsError(
      f"{name} is {value} at step {step}; leave out what was not measured."
    )
  if not isinstance(value, (bool, int, float, str)):
    raise MetricsError(f"{name} is no scalar at step {step}: {value!r}.")
  return value


def _read(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
  """Records, and the number of bytes that hold them."""
  data = path.read_bytes() if path.exists() else b""
  records: list[dict[str, Any]] = []
  sound = 0
  for number, line in enumerate(data.splitlines(keepends=True), 1):
    try:
      record = json.loads(line, parse_constant=_no_constant)
      complete = line.endswith(b"\n") and isinstance(record["step"], int)
    except (ValueError, KeyError, TypeError):
      complete = False
    if not complete:
      if sound + len(line) < len(data):
        raise MetricsError(
          f"Line {number} of {path} is damaged; restore the file, or remove it"
          " to go on without its history."
        )
      break
    records.append(record)
    sound += len(line)
  return records, sound


def _no_constant(name: str) -> float:
  raise ValueError(f"{name} is no JSON")


def _sync_folder(folder: pathlib.Path) -> None:
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


class Progress:
  """Shows where a run is: a live panel on a terminal, else one line a step.

  The time left is the mean duration of the steps seen so far times the steps to
  come, so that a resumed run starts its estimate afresh.
  """

  _TRAIL = 32  # steps that the small curves show

  def __init__(
    self,
    *,
    total: int,
    start: int = 0,
    title: str = "varl_jax",
    console: rich.console.Console | None = None,
  ):
    """Prepares the display.

    Args:
      total: the run's last step.
      start: steps already done, when a run is resumed.
      title: the run's name.
      console: where to show it, standard output by default.
    """
    self._total = total
    self._start = start
    self._title = title
    self._console = console or rich.console.Console(highlight=False)
    self._live = rich.live.Live(console=self._console, refresh_per_second=4)
    self._began = time.monotonic()
    self._record: dict[str, Any] = {"step": start}
    self._trails: dict[str, list[float]] = {}
    self._sums: dict[str, float] = {}

  def __enter__(self) -> "Progress":
    self._began = time.monotonic()
    if self._console.is_terminal:
      self._live.start()
      self._live.update(self._panel())
    return self

  def __exit__(self, *error: object) -> None:
    if self._console.is_terminal:
      self._live.stop()

  def update(self, record: Mapping[str, Any]) -> None:
    """Shows one more record, as `MetricsWriter.write` returned it."""
    self._record = {**self._record, **record}
    for name in ("reward/mean", "eval/score"):
      if name in record:
        self._trails.setdefault(name, []).append(float(record[name]))
    for name in ("exploit/cases", "patch/accepted"):
      self._sums[name] = self._sums.get(name, 0) + record.get(name, 0)
    if self._console.is_terminal:
      self._live.update(self._panel())
    else:
      self._console.print(self._line(record), soft_wrap=True)

  def _remaining(self) -> str:
    done = self._record["step"] - self._start
    if done < 1:
      return "?"
    each = (time.monotonic() - self._began) / done
    return _duration(each * max(0, self._total - self._record["step"]))

  def _line(self, record: Mapping[str, Any]) -> str:
    shown = [f"step {record['step']}/{self._total}"]
    for name, label, form in _SHOWN:
      if name in record:
        shown.append(f"{label} {form.format(record[name])}")
    return "  ".join([*shown, f"left {self._remaining()}"])

  def _panel(self) -> rich.panel.Panel:
    step = self._record["step"]
    grid = rich.table.Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left"):
      grid.add_column(justify=justify, no_wrap=True)  # pyright: ignore[reportArgumentType]
    for name, label, colour in (
      ("reward/mean", "reward", "blue"),
      ("eval/score", "hidden score", "dark_orange"),
    ):
      trail = self._trails.get(name, [])
      grid.add_row(
        label,
        f"{trail[-1]:.3f}" if trail else "-",
        rich.text.Text(_sparks(trail[-self._TRAIL :]), style=colour),
      )
    for name, label in (
      ("exploit/cases", "exploits"),
      ("patch/accepted", "patches"),
    ):
      latest = self._record.get(name, 0)
      total = self._sums.get(name, 0)
      grid.add_row(label, f"{total:.0f}", f"{latest:.0f} in the last step")
    grid.add_row("pool", f"{self._record.get('pool/size', 0):.0f}", "tasks")
    grid.add_row("times", "", _times(self._record))
    body = rich.table.Table.grid(padding=(0, 0, 1, 0), expand=True)
    body.add_row(
      rich.progress_bar.ProgressBar(
        total=self._total, completed=step, complete_style="blue"
      )
    )
    body.add_row(grid)
    return rich.panel.Panel(
      body,
      title=rich.text.Text(self._title, style="bold"),
      title_align="left",
      subtitle=f"step {step} of {self._total}, {self._remaining()} left",
      subtitle_align="right",
      border_style="dim",
      width=min(self._console.width, 78),
    )


_SHOWN: Final = (
  ("reward/mean", "reward", "{:.3f}"),
  ("eval/score", "hidden", "{:.3f}"),
  ("exploit/cases", "exploits", "{:.0f}"),
  ("patch/accepted", "patches", "{:.0f}"),
  ("pool/size", "pool", "{:.0f}"),
  ("time/step", "time", "{:.1f}s"),
)


def _times(record: Mapping[str, Any]) -> str:
  """Seconds of the last step's stages, the longest first."""
  stages = {
    name.removeprefix("time/"): value
    for name, value in record.items()
    if name.startswith("time/") and name != "time/step"
  }
  order = sorted(stages, key=lambda name: -stages[name])[:4]
  return ", ".join(f"{name} {stages[name]:.1f}s" for name in order) or "-"


def _sparks(values: list[float]) -> str:
  """A line of blocks from the lowest value to the highest."""
  if not values:
    return ""
  low, high = min(values), max(values)
  span = (high - low) or 1.0
  return "".join("▁▂▃▄▅▆▇█"[round((v - low) / span * 7)] for v in values)


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}h {minutes:02d}m"
  return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
