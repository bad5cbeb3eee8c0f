"""What a run measures: one JSON object a step, and a display for people.

`metrics.jsonl` survives crashes, see `step_lines`. A value that cannot be
measured is left out of a record; NaN and infinity are refused, because JSON has
neither and charts hide both.
"""

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

from varl_jax.step_lines import (
  MetricsError,
  RecordError,
  StepLines,
  read_lines,
)

__all__ = [
  "FILE_NAME",
  "MetricsError",
  "MetricsWriter",
  "Progress",
  "RecordError",
  "plain_value",
  "read_metrics",
]

FILE_NAME: Final = "metrics.jsonl"


class MetricsWriter:
  """Appends the records of one run to `metrics.jsonl` in its folder."""

  def __init__(self, workdir: str | os.PathLike[str]):
    """Opens or creates the file; an incomplete last line is dropped.

    Args:
      workdir: the run's folder, made when it does not exist.

    Raises:
      MetricsError: the file is damaged.
    """
    self._lines = StepLines(pathlib.Path(workdir) / FILE_NAME)
    self.path = self._lines.path

  def __enter__(self) -> "MetricsWriter":
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  @property
  def last_step(self) -> int | None:
    """The step of the last record, None when there is none."""
    return self._lines.last_step

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
    self._lines.check_follows(step)
    record: dict[str, Any] = {"step": int(step)}
    for name, value in metrics.items():
      if name != "step":
        record[name] = plain_value(name, value, step=step)
    self._lines.write(record)
    return record

  def rewind(self, step: int) -> None:
    """Drops the records above `step`, see `StepLines.rewind`."""
    self._lines.rewind(step)

  def close(self) -> None:
    """Closes the file; harmless when repeated."""
    self._lines.close()


class NoMetrics(MetricsWriter):
  """Records nothing, for a process that is not the one to record."""

  def __init__(self):
    """Opens nothing."""

  @property
  def last_step(self) -> int | None:
    return None

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
  return read_lines(pathlib.Path(workdir) / FILE_NAME)[0]


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
