"""Redraws the paper's figures from saved results.

    python -m experiments.figures --results=experiments/results --out=figures

Writes Figures 2 to 7 as PDF and PNG, ours beside the paper's numbers, and
beside each a `figure_NN.md` that names the runs it still lacks. No model runs.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from experiments.figures import exploits, scores, style
from experiments.saved import ResultError, Saved

Draw = Callable[[Saved, Any, style.Missing], Any]
FIGURES: Final[Mapping[int, tuple[str, Draw]]] = {
  2: ("Main results", scores.main_results),
  3: ("Arms, and gains by difficulty", scores.arms_and_difficulty),
  4: ("Transfer to other professions", scores.transfer),
  5: ("A repaired case", exploits.repaired_case),
  6: ("Categories of exploit cases", exploits.categories),
  7: ("The setting without retrieval", scores.no_retrieval),
}


def draw(saved: Saved, out: pathlib.Path) -> dict[int, dict[str, str]]:
  """Draws all figures.

  Returns:
    By figure, the commands that would fill its gaps, by their letter.

  Raises:
    ResultError: a saved result cannot be read.
    ImportError: matplotlib is not installed.
  """
  plots = style.pyplot()
  gaps = {}
  for number, (title, make) in FIGURES.items():
    missing = style.Missing()
    figure = make(saved, plots, missing)
    name = f"figure_{number:02d}"
    style.save(plots, figure, out, name)
    gaps[number] = missing.listed()
    page = caption(number, title, gaps[number])
    (out / f"{name}.md").write_text(page, encoding="utf-8")
  return gaps


def caption(number: int, title: str, gaps: Mapping[str, str]) -> str:
  """What is told beside a figure."""
  lines = [f"# Figure {number}: {title}", ""]
  if gaps:
    lines += ["Not run yet, and the run that would fill the place:", ""]
    lines += [f"- {letter}: `{fill}`" for letter, fill in gaps.items()]
  else:
    lines.append("Nothing is missing.")
  return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
  """Draws; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m experiments.figures")
  add = parser.add_argument
  add("--results", default="experiments/results", help="saved results")
  add("--out", default="figures", help="folder to write into")
  chosen = parser.parse_args(arguments)
  folder, out = pathlib.Path(chosen.results), pathlib.Path(chosen.out)
  if not folder.is_dir():
    print(f"There is no results folder at {folder}.", file=sys.stderr)
    return 2
  try:
    gaps = draw(Saved(folder), out)
  except (ResultError, ImportError, OSError) as error:
    print(f"figures: {error}", file=sys.stderr)
    return 2
  for number, found in gaps.items():
    told = f", {len(found)} runs missing" if found else ""
    print(f"Figure {number}: {FIGURES[number][0]}{told}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
