"""How all figures look: sizes, colours, marks of missing numbers.

Colours are told apart by people who see few of them and by their lightness in
grey; a marker or a hatch goes with each. The paper's numbers are hollow
diamonds, never bars, so that nobody takes them for ours.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments.saved import Cell
from experiments.tables.table import marks

WIDTH: Final = 7.0
INK: Final = "#222222"
QUIET: Final = "#6b6b6b"
GRID: Final = "#d8d8d8"
FOOT: Final = 6.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
  """Colour, marker, hatch and line of an arm."""

  colour: str
  marker: str
  hatch: str = ""
  line: str = "-"


# Lightness falls down the list, but for the hatched ones.
LOOKS: Final[Mapping[str, Look]] = {
  "untrained": Look(colour="#f2f2f2", marker="v"),
  "generation_only": Look(colour="#e8b04a", marker="o", line=(0, (4, 2))),  # pyright: ignore
  "rar": Look(colour="#c9a9c4", marker="^", hatch="////"),
  "evo_rubrics": Look(colour="#b8b8b8", marker="X", hatch="...."),
  "sibyl_sense": Look(colour="#6fb7dd", marker="P", hatch="\\\\\\\\"),
  "co_evolve_only": Look(colour="#2f9e7d", marker="s", line=(0, (1, 1))),  # pyright: ignore
  "rri": Look(colour="#124e8c", marker="D"),
}
PAPER: Final[Mapping[str, Any]] = {
  "marker": "D",
  "markersize": 5.5,
  "markerfacecolor": "white",
  "markeredgecolor": INK,
  "markeredgewidth": 1.0,
  "linestyle": "none",
}
_SETTINGS: Final[Mapping[Any, Any]] = {
  "font.size": 8,
  "axes.titlesize": 8.5,
  "axes.labelsize": 8,
  "xtick.labelsize": 7.5,
  "ytick.labelsize": 7.5,
  "legend.fontsize": 7.5,
  "legend.frameon": False,
  "axes.edgecolor": QUIET,
  "axes.labelcolor": INK,
  "xtick.color": QUIET,
  "ytick.color": QUIET,
  "xtick.labelcolor": INK,
  "ytick.labelcolor": INK,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.axisbelow": True,
  "axes.grid": True,
  "axes.grid.axis": "y",
  "grid.color": GRID,
  "grid.linewidth": 0.6,
  "hatch.linewidth": 0.6,
  "hatch.color": "#555555",
  "lines.linewidth": 1.5,
  "pdf.fonttype": 42,
  "ps.fonttype": 42,
  "savefig.dpi": 200,
  "figure.dpi": 100,
}


def pyplot() -> Any:
  """matplotlib's pyplot in the house style, drawing into files.

  Raises:
    ImportError: the extra is not installed.
  """
  try:
    import matplotlib
  except ImportError as error:
    raise ImportError(
      "Drawing needs matplotlib; install the extra: pip install -c"
      " constraints.txt -e '.[figures]'."
    ) from error
  matplotlib.use("agg")
  from matplotlib import pyplot as plots

  matplotlib.rcdefaults()
  for name, value in _SETTINGS.items():
    matplotlib.rcParams[name] = value
  return plots


class Missing:
  """Letters for missing numbers, in the order they are asked for."""

  def __init__(self):
    self.fills: list[str] = []

  def letter(self, cell: Cell) -> str:
    """The letter of the command that would give the number; "" for none."""
    if not cell.fill:
      return ""
    if cell.fill not in self.fills:
      self.fills.append(cell.fill)
    return marks(self.fills.index(cell.fill) + 1)[-1]

  def listed(self) -> dict[str, str]:
    """Command by letter."""
    return dict(zip(marks(len(self.fills)), self.fills, strict=True))


def bars(
  axis: Any,
  columns: Sequence[str],
  rows: Mapping[str, Sequence[Cell]],
  missing: Missing,
) -> None:
  """Grouped bars: a group a column, a bar a row, the paper's as diamonds.

  Args:
    axis: to draw on.
    columns: names of the groups.
    rows: cells of each look, one a column.
    missing: gives letters to the numbers that are not there.
  """
  width = 0.8 / len(rows)
  for place, (name, cells) in enumerate(rows.items()):
    look = LOOKS[name]
    for column, cell in enumerate(cells):
      x = column - 0.4 + (place + 0.5) * width
      if cell.value is not None:
        axis.bar(
          x,
          cell.value,
          width * 0.9,
          color=look.colour,
          hatch=look.hatch,
          edgecolor=INK,
          linewidth=0.6,
          yerr=cell.error,
          error_kw={"elinewidth": 0.9, "capsize": 1.8, "ecolor": INK},
        )
      if cell.paper is not None:
        axis.plot([x], [cell.paper], zorder=4, **PAPER)
      if cell.value is None and cell.fill:
        lettered(axis, missing.letter(cell), (x, 0), (0, 3), ha="center")
        # Below the axis, where nothing reads as a value of 0.
        axis.plot(
          [x - width * 0.4, x + width * 0.4],
          [-0.018, -0.018],
          transform=axis.get_xaxis_transform(),
          color=look.colour if name != "untrained" else QUIET,
          linewidth=2.2 if name != "untrained" else 0.8,
          clip_on=False,
          solid_capstyle="butt",
        )
  axis.set_xticks(range(len(columns)), columns)
  axis.set_xlim(-0.55, len(columns) - 0.45)
  axis.set_ylim(bottom=0)
  axis.tick_params(axis="x", length=0, pad=5)


def lettered(
  axis: Any,
  letter: str,
  at: tuple[float, float],
  offset: tuple[float, float],
  **more: Any,
) -> None:
  """A missing number's letter beside a place, `offset` in points."""
  axis.annotate(
    letter,
    at,
    xytext=offset,
    textcoords="offset points",
    fontsize=6.5,
    style="italic",
    color=QUIET,
    **more,
  )


def noted(
  axis: Any,
  text: str,
  at: tuple[float, float],
  offset: tuple[float, float],
  *,
  ours: bool,
  **more: Any,
) -> None:
  """A small word beside a mark, quieter where it is about the paper."""
  axis.annotate(
    text,
    at,
    xytext=offset,
    textcoords="offset points",
    fontsize=FOOT,
    color=INK if ours else QUIET,
    **more,
  )


def legend(
  plots: Any,
  figure: Any,
  names: Mapping[str, str],
  *,
  paper: bool,
  y: float = 1.0,
) -> None:
  """One legend above all panels."""
  from matplotlib.lines import Line2D
  from matplotlib.patches import Patch

  handles: list[Any] = [
    Patch(
      facecolor=LOOKS[name].colour,
      hatch=LOOKS[name].hatch,
      edgecolor=INK,
      linewidth=0.6,
      label=label,
    )
    for name, label in names.items()
  ]
  if paper:
    handles.append(Line2D([], [], label="the paper's number", **PAPER))
  figure.legend(
    handles=handles,
    loc="lower center",
    bbox_to_anchor=(0.5, y),
    ncols=len(handles),
    columnspacing=1.4,
    handlelength=1.4,
  )


def foot(figure: Any, missing: Missing, name: str, told: str = "") -> None:
  """What stands below a figure: how to read it, and where gaps are named."""
  lines = [told] if told else []
  if missing.fills:
    letters = list(missing.listed())
    shown = (
      letters[0] if len(letters) == 1 else f"{letters[0]} to {letters[-1]}"
    )
    lines.append(
      f"Not run yet: {shown}; {name}.md names the command for each letter."
    )
  if lines:
    figure.supxlabel("\n".join(lines), fontsize=FOOT + 0.6, color=QUIET)


def save(
  plots: Any, figure: Any, out: pathlib.Path, name: str
) -> list[pathlib.Path]:
  """Writes the figure as PDF and PNG; the same figure gives the same bytes."""
  out.mkdir(parents=True, exist_ok=True)
  paths = [out / f"{name}.pdf", out / f"{name}.png"]
  figure.savefig(paths[0], bbox_inches="tight", metadata={"CreationDate": None})
  figure.savefig(paths[1], bbox_inches="tight", metadata={"Software": None})
  plots.close(figure)
  return paths
