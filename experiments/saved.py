"""Saved results, and what to run for those that are not there.

A results folder holds

    compare_arms.json or story_arms.json   the story world
    arms_SETTING.json                      `compare_arms --setting=SETTING`
    evaluations/BENCHMARK/ROW/results.json `varl_jax.evaluate`, or ROW.json
    analysis.json                          `varl_jax.analysis`, in any folder

A `Cell` is a number with the paper's beside it; one without a number names the
command that would give it. Nothing here runs a model.
"""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import arms

# Where a command's owner fills in what only he knows.
DATA: Final = "ROWS"
RUNS: Final = "RUNS"
TITLES: Final[Mapping[str, str]] = {
  "story": "Story world",
  "9b": "9B",
  "27b": "27B",
  "all_self": "All-self 9B",
  "no_retrieval": "9B, no retrieval",
}


class ResultError(Exception):
  """A saved result cannot be read; one sentence with the mend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """A number of ours and the paper's, each if there is one.

  Attributes:
    value: ours, None while it is missing.
    error: its standard error over seeds, None without several.
    paper: the paper's.
    fill: the command that would give a missing value.
  """

  value: float | None = None
  error: float | None = None
  paper: float | None = None
  fill: str = ""

  def beside(self, paper: float | None) -> "Cell":
    """The same with the paper's number."""
    return dataclasses.replace(self, paper=paper)


def less(one: Cell, two: Cell, paper: float | None = None) -> Cell:
  """The difference of two cells; errors add as of independent runs."""
  if one.value is None or two.value is None:
    return Cell(paper=paper, fill=one.fill or two.fill)
  error = None
  if one.error is not None and two.error is not None:
    error = math.hypot(one.error, two.error)
  return Cell(value=one.value - two.value, error=error, paper=paper)


class Saved:
  """A results folder; every file is read once."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._read: dict[pathlib.Path, dict[str, Any]] = {}

  @property
  def name(self) -> str:
    """The folder as commands call it."""
    return str(self.folder)

  def arms(self, setting: str) -> dict[str, Any]:
    """The comparison of a setting, {} while there is none."""
    names = (
      ("compare_arms", "story_arms")
      if setting == "story"
      else (f"arms_{setting}",)
    )
    for name in names:
      path = self.folder / f"{name}.json"
      if path.is_file():
        return self._object(path, "arms")
    return {}

  def arm(self, setting: str, arm: str, measure: str = "hidden") -> Cell:
    """An arm's measure, the mean over its seeds."""
    found = self.arms(setting).get("arms", {}).get(arm, {}).get(measure, [])
    kept = [value for value in found if value is not None]
    if not kept and arm == arms.UNTRAINED and measure == "hidden":
      # Older results have no row of their own for it.
      return self.arm(setting, "generation_only", "hidden_start")
    if not kept:
      return Cell(fill=self.fill_arms(setting))
    error = None
    if len(kept) > 1:
      error = statistics.stdev(kept) / math.sqrt(len(kept))
    return Cell(value=statistics.fmean(kept), error=error)

  def fill_arms(self, setting: str) -> str:
    """The command that compares the arms of a setting."""
    out = "compare_arms" if setting == "story" else f"arms_{setting}"
    model = "" if setting == "story" else " -- --config.model.path=MODEL"
    return (
      f"python -m experiments.compare_arms --setting={setting}"
      f" --workdir={RUNS} --out={self.name}/{out}.json{model}"
    )

  def evaluation(self, benchmark: str, row: str) -> dict[str, Any]:
    """Results of an evaluation, {} while there are none."""
    place = self.folder / "evaluations" / benchmark
    for path in (place / row / "results.json", place / f"{row}.json"):
      if path.is_file():
        return self._object(path, "score")
    return {}

  def rows(self, benchmark: str) -> list[str]:
    """Names of the evaluations there are."""
    place = self.folder / "evaluations" / benchmark
    found = {path.parent.name for path in place.glob("*/results.json")}
    return sorted(found | {path.stem for path in place.glob("*.json")})

  def score(
    self, benchmark: str, row: str, *keys: str, model: str = "", more: str = ""
  ) -> Cell:
    """A number of an evaluation.

    Args:
      benchmark: its name.
      row: of the evaluation.
      *keys: `score`, `raw`, or a breakdown's kind and the start of a group's
        name, which is looked for without regard to case.
      model: what the command that is missing evaluates.
      more: further flags of it.
    """
    value = _found(self.evaluation(benchmark, row), keys or ("score",))
    if value is not None:
      return Cell(value=value)
    return Cell(fill=self.fill_evaluation(benchmark, row, model, more))

  def fill_evaluation(
    self, benchmark: str, row: str, model: str = "", more: str = ""
  ) -> str:
    """The command that evaluates a row."""
    return (
      f"python -m varl_jax.evaluate --benchmark={benchmark} --data={DATA}"
      f" --model={model or f'{RUNS}/{row}'}{more or ' --judge=JUDGE'}"
      f" --workdir={self.name}/evaluations/{benchmark}/{row}"
    )

  @property
  def analyses(self) -> list[dict[str, Any]]:
    """All exploit analyses, in the order of their paths."""
    paths = sorted(self.folder.rglob("*analysis.json"))
    return [self._object(path, "shares") for path in paths]

  def _object(self, path: pathlib.Path, key: str) -> dict[str, Any]:
    if path not in self._read:
      try:
        found = json.loads(path.read_text(encoding="utf-8"))
      except ValueError as error:
        raise ResultError(
          f"{path} is no JSON ({error}); make it again."
        ) from error
      if not isinstance(found, dict) or key not in found:
        raise ResultError(
          f"{path} is no such result: it has no {key!r}; make it again."
        )
      self._read[path] = found
    return self._read[path]

  def fill_analysis(self, runs: str) -> str:
    """The command that audits runs."""
    return (
      f"python -m varl_jax.analysis {RUNS}/{runs} --auditor=gpt-5.5"
      f" --effort=medium --out={self.name}/{runs}"
    )


def _found(results: Mapping[str, Any], keys: Sequence[str]) -> float | None:
  if len(keys) == 1:
    return results.get(keys[0])
  kind, start = keys
  for name, entry in results.get("breakdowns", {}).get(kind, {}).items():
    if name.lower().startswith(start):
      return entry["score"]
  return None


def label(arm: str) -> str:
  """An arm's name for readers."""
  if arm == arms.UNTRAINED:
    return arms.UNTRAINED_LABEL
  return arms.ALL[arm].label


PROFESSIONAL: Final = "healthbench_professional"
# Columns of HealthBench Professional and where an evaluation has them.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
  "score": ("score",),
  "raw": ("raw",),
  "consult": ("use_case", "consult"),
  "writing": ("use_case", "writing"),
  "research": ("use_case", "research"),
  "typical": ("difficulty", "typical"),
  "difficult": ("difficulty", "difficult"),
}


def professional(
  saved: Saved, setting: str, arm: str, column: str = "score"
) -> Cell:
  """A number of HealthBench Professional, from an evaluation if there is one.

  The adjusted score may come from the validation of a training run as well.
  """
  row = f"{arm}-{setting}"
  base = "MODEL" if arm == arms.UNTRAINED else f"{RUNS}/{setting}/{arm}-0"
  cell = saved.score(PROFESSIONAL, row, *COLUMNS[column], model=base)
  if cell.value is None and column == "score":
    trained = saved.arm(setting, arm)
    if trained.value is not None:
      return trained
  return cell
