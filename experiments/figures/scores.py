"""Figures 2, 3, 4 and 7: scores of arms, ours beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import paper_values as paper
from experiments.arms import ARMS, UNTRAINED
from experiments.figures import style
from experiments.figures.style import Missing
from experiments.saved import (
  RUNS,
  TITLES,
  Cell,
  Saved,
  label,
  less,
  professional,
)

TRIO: Final = (UNTRAINED, "generation_only", "rri")
_STORY_NOTE: Final = (
  "Story world: an offline simulation built so that rubrics can be hacked;"
  " mean and standard error over seeds."
)


def _gain_note(setting: str, columns: Sequence[str]) -> str:
  """The paper's gains of a setting, in points."""
  known = [
    f"{100 * paper.GAINS[setting, column]:+.1f} {title}"
    for column, title in (("score", "adjusted"), ("raw", "raw"))
    if column in columns and (setting, column) in paper.GAINS
  ]
  return f"the paper's gain:\n{', '.join(known)}" if known else ""


def _setting(axis: Any, saved: Saved, setting: str, missing: Missing) -> None:
  """Untrained, Generation Only and RRI in one of the paper's settings."""
  columns = ("score", "raw")
  rows = {
    arm: [
      professional(saved, setting, arm, column).beside(
        paper.PROFESSIONAL.get((setting, arm, column))
      )
      for column in columns
    ]
    for arm in TRIO
  }
  style.bars(axis, ["adjusted", "raw"], rows, missing)
  axis.set_title(TITLES[setting], pad=24)
  axis.set_ylim(0, max(0.62, axis.get_ylim()[1]))
  _above(axis, 0.5, _gain_note(setting, columns), axis.transAxes)


def _above(axis: Any, x: float, text: str, transform: Any) -> None:
  """A quiet note over the top of a panel."""
  y = 1.02
  axis.text(
    x,
    y,
    text,
    transform=transform,
    ha="center",
    va="bottom",
    fontsize=style.FOOT,
    color=style.QUIET,
  )


def _story(axis: Any, saved: Saved, missing: Missing) -> None:
  """What a reader would say of the story world's arms, and what they earn."""
  rows = {
    arm: [
      saved.arm("story", arm),
      Cell() if arm == UNTRAINED else saved.arm("story", arm, "train_reward"),
    ]
    for arm in TRIO
  }
  style.bars(axis, ["hidden\nscore", "own\nreward"], rows, missing)
  axis.set_title("Story world", pad=24)
  axis.set_ylim(0, 1.05)


def main_results(saved: Saved, plots: Any, missing: Missing) -> Any:
  """Figure 2."""
  settings = ("9b", "27b", "all_self")
  figure, axes = plots.subplots(
    1, 4, figsize=(style.WIDTH, 2.75), layout="constrained"
  )
  _story(axes[0], saved, missing)
  axes[0].set_ylabel("score")
  for axis, setting in zip(axes[1:], settings, strict=True):
    _setting(axis, saved, setting, missing)
  top = max(axis.get_ylim()[1] for axis in axes[1:])
  for axis in axes[1:]:
    axis.set_ylim(0, top)
  axes[1].set_ylabel("HealthBench Professional")
  style.legend(plots, figure, {a: label(a) for a in TRIO}, paper=True)
  style.foot(figure, missing, "figure_02", _STORY_NOTE)
  return figure


def no_retrieval(saved: Saved, plots: Any, missing: Missing) -> Any:
  """Figure 7."""
  figure, axis = plots.subplots(
    figsize=(style.WIDTH / 2, 2.5), layout="constrained"
  )
  _setting(axis, saved, "no_retrieval", missing)
  axis.set_ylabel("HealthBench Professional")
  style.legend(plots, figure, {a: label(a) for a in TRIO}, paper=False)
  style.foot(figure, missing, "figure_07")
  return figure


def _dots(
  axis: Any, cells: Mapping[str, Cell], missing: Missing, *, top: float
) -> None:
  """One arm a line, the best one on top; ours filled, the paper's hollow."""
  for row, (arm, cell) in enumerate(cells.items()):
    look = style.LOOKS[arm]
    if cell.value is not None:
      axis.errorbar(
        cell.value,
        row,
        xerr=cell.error,
        fmt=look.marker,
        color=style.INK,
        markerfacecolor=look.colour,
        markeredgecolor=style.INK,
        markersize=6.5,
        capsize=2,
        elinewidth=0.9,
      )
      at = (cell.value, row)
      style.noted(
        axis, f"{cell.value:.3f}", at, (0, 5.5), ours=True, ha="center"
      )
    if cell.paper is not None:
      axis.plot([cell.paper], [row], **style.PAPER)
      # Below the mark where ours has its number above.
      at, offset = (cell.paper, row), (0, 5.5 if cell.value is None else -11)
      style.noted(
        axis, f"{cell.paper:.3f}", at, offset, ours=False, ha="center"
      )
    if cell.value is None and cell.fill:
      letter = missing.letter(cell)
      style.lettered(axis, letter, (0, row), (4, 0), va="center")
  axis.set_yticks(range(len(cells)), [label(arm) for arm in cells])
  axis.set_ylim(-0.6, len(cells) - 0.25)
  axis.set_xlim(0, top)
  axis.grid(axis="x")
  axis.grid(visible=False, axis="y")
  axis.tick_params(axis="y", length=0)


def arms_and_difficulty(saved: Saved, plots: Any, missing: Missing) -> Any:
  """Figure 3."""
  figure, axes = plots.subplots(
    1,
    3,
    figsize=(style.WIDTH, 3.1),
    layout="constrained",
    width_ratios=(1.15, 1.15, 1.2),
  )
  known = paper.PROFESSIONAL
  order = sorted(ARMS, key=lambda arm: known["9b", arm, "score"])
  story = {arm: saved.arm("story", arm) for arm in order}
  story = {UNTRAINED: saved.arm("story", UNTRAINED), **story}
  _dots(axes[0], story, missing, top=1.0)
  axes[0].set_title("(a) Story world", pad=18)
  axes[0].set_xlabel("hidden score")
  nine = {
    arm: professional(saved, "9b", arm).beside(known["9b", arm, "score"])
    if arm in ARMS
    else Cell(paper=known["9b", arm, "score"])
    for arm in order
  }
  _dots(axes[1], nine, missing, top=0.65)
  axes[1].set_title("(a) 9B", pad=18)
  axes[1].set_xlabel("HealthBench Professional, adjusted")
  _difficulty(axes[2], saved, missing)
  style.foot(
    figure,
    missing,
    "figure_03",
    "Hollow diamonds: the paper's numbers. EvoRubrics cannot be run here yet.",
  )
  return figure


def _difficulty(axis: Any, saved: Saved, missing: Missing) -> None:
  """What RRI gains over Generation Only on typical and difficult tasks."""
  settings = ("9b", "27b", "all_self", "no_retrieval")
  looks = {"typical": ("#f2f2f2", ""), "difficult": ("#124e8c", "")}
  for place, (column, (colour, hatch)) in enumerate(looks.items()):
    for x, setting in enumerate(settings):
      cell = less(
        professional(saved, setting, "rri", column),
        professional(saved, setting, "generation_only", column),
        paper.GAINS.get((setting, column)),
      )
      at = x - 0.18 + 0.36 * place
      if cell.value is not None:
        axis.bar(
          at,
          100 * cell.value,
          0.32,
          color=colour,
          hatch=hatch,
          edgecolor=style.INK,
          linewidth=0.6,
        )
      elif cell.fill:
        letter = missing.letter(cell)
        style.lettered(axis, letter, (at, 0), (0, 3), ha="center")
      if cell.paper is not None:
        spot = (at, 100 * cell.paper)
        axis.plot(*([value] for value in spot), zorder=4, **style.PAPER)
        style.noted(axis, column, spot, (0, 5.5), ours=False, ha="center")
  names = ["9B", "27B", "all-self", "no\nretrieval"]
  axis.set_xticks(range(len(settings)), names)
  axis.set_xlim(-0.75, len(settings) - 0.4)
  axis.axhline(0, color=style.QUIET, linewidth=0.8)
  axis.set_ylim(min(0, axis.get_ylim()[0]), max(24, axis.get_ylim()[1]))
  axis.set_title("(b) Gain by difficulty", pad=18)
  axis.set_ylabel("points over Generation Only")
  from matplotlib.patches import Patch

  axis.legend(
    handles=[
      Patch(facecolor=colour, edgecolor=style.INK, linewidth=0.6, label=name)
      for name, (colour, _) in looks.items()
    ],
    loc="lower center",
    bbox_to_anchor=(0.5, 0.98),
    ncols=2,
    handlelength=1.2,
    columnspacing=1.0,
  )


# Columns of the transfer figure: benchmark, and a breakdown of it.
_TRANSFER: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
  "prbench_hard": ("PRBench\nHard", "prbench_hard", ("score",)),
  "finance": ("finance", "prbench_hard", ("field", "finance")),
  "legal": ("legal", "prbench_hard", ("field", "legal")),
  "profbench": ("ProfBench", "profbench", ("score",)),
  "chemistry": ("chemistry", "profbench", ("domain", "chemistry")),
  "physics": ("physics", "profbench", ("domain", "physics")),
  "finance_mba": ("finance", "profbench", ("domain", "finance")),
  "consulting": ("consulting", "profbench", ("domain", "consulting")),
}


def transfer(saved: Saved, plots: Any, missing: Missing) -> Any:
  """Figure 4."""
  figure, axis = plots.subplots(
    figsize=(style.WIDTH, 2.5), layout="constrained"
  )
  rows: dict[str, list[Cell]] = {arm: [] for arm in TRIO}
  for key, (_, benchmark, keys) in _TRANSFER.items():
    for arm in TRIO:
      cell = saved.score(
        benchmark,
        f"{arm}-27b",
        *keys,
        model="MODEL" if arm == UNTRAINED else f"{RUNS}/27b/{arm}-0",
      )
      rows[arm].append(cell.beside(paper.TRANSFER.get((key, arm))))
  style.bars(axis, [c[0] for c in _TRANSFER.values()], rows, missing)
  axis.set_ylim(0, max(0.5, axis.get_ylim()[1]))
  for x, key in enumerate(_TRANSFER):
    gain = paper.TRANSFER_GAINS.get(key)
    if gain is not None:
      note = f"paper: {100 * gain:+.1f}"
      _above(axis, x, note, axis.get_xaxis_transform())
  axis.set_ylabel("weighted fraction, 27B")
  axis.axvline(2.5, color=style.QUIET, linewidth=0.6)
  style.legend(plots, figure, {a: label(a) for a in TRIO}, paper=True)
  style.foot(
    figure,
    missing,
    "figure_04",
    'Trained on the clinical description alone. "paper": RRI less untrained,'
    " in points.",
  )
  return figure
