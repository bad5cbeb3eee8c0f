"""Small line charts as inline SVG, without scripts or outside files.

Colours are classes that the page's style sheet defines, so that one chart suits
a light and a dark page. Every chart names itself for screen readers; the page
prints its numbers as a table beside it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 480
WIDE: Final = 980
HEIGHT: Final = 236
# Bars of a stage chart, at most; tones of stages.
BARS: Final = 60
STAGES: Final = 8
# Points of a line that say their value under the pointer, at most.
MARKED: Final = 200
_LEFT: Final = 46
_RIGHT: Final = 66
_TOP: Final = 16
_BOTTOM: Final = 30
_LABEL_HEIGHT: Final = 15.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
  """One line of a chart.

  Attributes:
    label: its name, also written at its last point.
    tone: a colour of the style sheet, `reward`, `hidden`, `exploit`, `honest`,
      `quiet` or `arm0` to `arm7`.
    points: (step, value) in order of steps; may be empty.
    dashed: draw it dashed.
  """

  label: str
  tone: str
  points: tuple[tuple[float, float], ...]
  dashed: bool = False


def line_chart(
  title: str,
  series: Sequence[Series],
  *,
  floor: float | None = None,
  unit: str = "",
) -> Markup:
  """Draws series over training steps.

  Args:
    title: what a screen reader says before the description.
    series: lines; those without points are left out.
    floor: a value that the vertical axis always includes, such as 0.
    unit: said after values, such as " tokens/s".

  Returns:
    An <svg> element, "" when no series has a point.
  """
  drawn = [line for line in series if line.points]
  if not drawn:
    return Markup("")
  xs = [x for line in drawn for x, _ in line.points]
  ys = [y for line in drawn for _, y in line.points]
  if floor is not None:
    ys.append(floor)
  scale = _Scale(
    x=_span(min(xs), max(xs)), y_ticks=axis_ticks(min(ys), max(ys))
  )
  parts = [_axes(scale, whole=all(float(x).is_integer() for x in xs))]
  parts += [_line(line, scale, unit) for line in drawn]
  parts += _end_labels(drawn, scale)
  described = "; ".join(
    f"{line.label} from {number(line.points[0][1])} to"
    f" {number(line.points[-1][1])}{unit}"
    for line in drawn
  )
  return Markup(
    '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
  ).format(WIDTH, HEIGHT, f"{title}: {described}.", Markup("").join(parts))


def stage_tone(index: int) -> str:
  """The class of the stage of that number."""
  return f"stage{index % STAGES}"


def stage_chart(
  title: str, stages: Mapping[str, Sequence[tuple[float, float]]]
) -> Markup:
  """Stacked bars: the seconds of each stage in each step.

  Args:
    title: what a screen reader says before the description.
    stages: (step, seconds) by name, in the order they are stacked. Beyond
      `BARS` steps neighbours share a bar, which is their mean.

  Returns:
    An <svg> element, "" when there is nothing to draw.
  """
  steps = sorted({step for line in stages.values() for step, _ in line})
  if not steps:
    return Markup("")
  size = math.ceil(len(steps) / BARS)
  bins = [steps[i : i + size] for i in range(0, len(steps), size)]
  tables = {name: dict(line) for name, line in stages.items()}
  stacks = [
    {
      name: sum(table.get(step, 0.0) for step in own) / len(own)
      for name, table in tables.items()
    }
    for own in bins
  ]
  ticks = axis_ticks(0.0, max(sum(stack.values()) for stack in stacks))
  scale = _Scale(x=(0.0, float(len(bins))), y_ticks=ticks, width=WIDE)
  parts = [_grid(scale)]
  for place, (own, stack) in enumerate(zip(bins, stacks, strict=True)):
    parts.append(_stack(scale, place, _steps(own), stack))
  shown = range(0, len(bins), math.ceil(len(bins) / 12))
  for place in shown:
    x, _ = scale.at(place + 0.5, 0.0)
    parts.append(_text(f"{bins[place][0]:g}", x, HEIGHT - 11, "middle", "tick"))
  parts.append(_text("step", _LEFT - 8, HEIGHT - 11, "end", "tick"))
  total = sum(sum(stack.values()) for stack in stacks) or 1.0
  described = ", ".join(
    f"{name} {100 * sum(stack[name] for stack in stacks) / total:.0f}%"
    for name in stages
  )
  return Markup(
    '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
  ).format(WIDE, HEIGHT, f"{title}: {described}.", Markup("").join(parts))


def _stack(
  scale: "_Scale", place: int, label: str, stack: Mapping[str, float]
) -> Markup:
  left, _ = scale.at(place + 0.12, 0.0)
  right, _ = scale.at(place + 0.88, 0.0)
  low, parts = 0.0, []
  for index, (name, seconds) in enumerate(stack.items()):
    if seconds <= 0:
      continue
    _, bottom = scale.at(0.0, low)
    _, top = scale.at(0.0, low + seconds)
    low += seconds
    parts.append(
      Markup(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}'
        "</title></rect>"
      ).format(
        stage_tone(index),
        left,
        top,
        round(right - left, 1),
        round(bottom - top, 1),
        f"{label}, {name}: {number(seconds)} s",
      )
    )
  return Markup("").join(parts)


def _steps(own: Sequence[float]) -> str:
  if len(own) == 1:
    return f"step {own[0]:g}"
  return f"steps {own[0]:g} to {own[-1]:g}"


def axis_ticks(low: float, high: float, *, count: int = 4) -> tuple[float, ...]:
  """Round values that cover [low, high], about `count` steps apart."""
  low, high = _span(low, high)
  rough = (high - low) / count
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
  first = math.floor(low / step + 1e-9)
  last = math.ceil(high / step - 1e-9)
  return tuple(round(i * step, 10) for i in range(first, last + 1))


def number(value: float) -> str:
  """A value as people write it: three digits, thousands as k."""
  size = abs(value)
  if size and size < 0.001:
    text = f"{size:.1e}"
  elif size >= 10_000:
    text = f"{size / 1000:,.1f}k"
  elif size >= 100 or float(size).is_integer():
    text = f"{size:,.0f}"
  else:
    text = f"{size:.3f}" if size < 1 else f"{size:.2f}"
  return ("\u2212" if value < 0 else "") + text


def _span(low: float, high: float) -> tuple[float, float]:
  if high - low > 1e-9 * max(1.0, abs(high)):
    return low, high
  pad = abs(low) * 0.1 or 0.5
  return low - pad, high + pad


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scale:
  """From data to the drawing's coordinates."""

  x: tuple[float, float]
  y_ticks: tuple[float, ...]
  width: int = WIDTH

  @property
  def right(self) -> int:
    """Space for the labels at the lines' ends, which bars have not."""
    return _RIGHT if self.width == WIDTH else 8

  def at(self, x: float, y: float) -> tuple[float, float]:
    low, high = self.y_ticks[0], self.y_ticks[-1]
    across = (x - self.x[0]) / (self.x[1] - self.x[0])
    up = (y - low) / (high - low)
    return (
      round(_LEFT + across * (self.width - _LEFT - self.right), 1),
      round(HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM), 1),
    )


def _grid(scale: _Scale) -> Markup:
  parts = []
  for tick in scale.y_ticks:
    _, y = scale.at(scale.x[0], tick)
    kind = "axis" if tick in (0, scale.y_ticks[0]) else "grid"
    parts.append(
      Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        kind, _LEFT, scale.width - scale.right, y, y
      )
    )
    parts.append(_text(_tick(tick), _LEFT - 8, y + 4, "end", "tick"))
  return Markup("").join(parts)


def _axes(scale: _Scale, *, whole: bool) -> Markup:
  parts = [_grid(scale)]
  ticks = [t for t in axis_ticks(*scale.x) if scale.x[0] <= t <= scale.x[1]]
  for tick in ticks:
    if whole and not float(tick).is_integer():
      continue
    x, _ = scale.at(tick, scale.y_ticks[0])
    parts.append(_text(_tick(tick), x, HEIGHT - 11, "middle", "tick"))
  parts.append(_text("step", _LEFT - 8, HEIGHT - 11, "end", "tick"))
  return Markup("").join(parts)


def _tick(value: float) -> str:
  if abs(value) >= 1000:
    return f"{value / 1000:g}k"
  return f"{value:g}".replace("-", "\u2212")


def _line(line: Series, scale: _Scale, unit: str) -> Markup:
  places = [scale.at(x, y) for x, y in line.points]
  path = "M" + " L".join(f"{x} {y}" for x, y in places)
  kind = f"line {line.tone}" + (" dashed" if line.dashed else "")
  few = len(places) <= 16
  every = math.ceil(len(places) / MARKED)
  dots = Markup("").join(
    Markup(
      '<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
    ).format(
      f"dot {line.tone}" if few or i == len(places) - 1 else "hover",
      x,
      y,
      2.6 if few or i == len(places) - 1 else 7,
      f"{line.label}, step {point[0]:g}: {number(point[1])}{unit}",
    )
    for i, ((x, y), point) in enumerate(zip(places, line.points, strict=True))
    if i % every == 0 or i == len(places) - 1
  )
  return Markup('<path class="{}" d="{}"/>{}').format(kind, path, dots)


def _end_labels(lines: Sequence[Series], scale: _Scale) -> list[Markup]:
  """The last values at the lines' ends, moved apart where they would touch."""
  ends = sorted(
    ((scale.at(*line.points[-1]), line) for line in lines),
    key=lambda end: end[0][1],
  )
  labels = []
  free = _TOP - 4.0
  limit = HEIGHT - _BOTTOM - _LABEL_HEIGHT * (len(ends) - 1)
  for (x, y), line in ends:
    place = max(min(y + 4, limit + 4), free)
    free = place + _LABEL_HEIGHT
    limit += _LABEL_HEIGHT
    value = number(line.points[-1][1])
    labels.append(_text(value, x + 8, place, "start", f"end {line.tone}"))
  return labels


def _text(text: str, x: float, y: float, anchor: str, kind: str) -> Markup:
  return Markup(
    '<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>'
  ).format(kind, round(x, 1), round(y, 1), anchor, escape(text))
