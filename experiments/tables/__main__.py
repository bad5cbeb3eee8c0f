"""Redraws the paper's tables from saved results.

    python -m experiments.tables --results=experiments/results --out=tables

Writes `table_NN.md` and `table_NN.json` for Tables 2, 3 and 5 to 14. No model
runs; a number that is missing names the command that would give it.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from experiments.saved import ResultError, Saved
from experiments.tables import configuration, exploits, scores
from experiments.tables.table import Table

TABLES: Final[Mapping[int, Callable[[Saved], Table]]] = {
  2: configuration.configurations,
  3: scores.use_cases,
  5: scores.official_judge,
  6: scores.specialties,
  7: scores.own_descriptions,
  8: scores.other_models,
  9: scores.inference_time,
  10: scores.healthbench_hard,
  11: exploits.definitions,
  12: exploits.category_shares,
  13: exploits.by_size_and_progress,
  14: scores.every_row,
}


def write(saved: Saved, out: pathlib.Path) -> dict[int, Table]:
  """Makes all tables and writes them.

  Raises:
    ResultError: a saved result cannot be read.
  """
  out.mkdir(parents=True, exist_ok=True)
  made = {number: make(saved) for number, make in TABLES.items()}
  for number, table in made.items():
    path = out / f"table_{number:02d}"
    path.with_suffix(".md").write_text(table.markdown(), encoding="utf-8")
    text = json.dumps(table.plain(), indent=1, allow_nan=False) + "\n"
    path.with_suffix(".json").write_text(text, encoding="utf-8")
  return made


def main(arguments: Sequence[str] | None = None) -> int:
  """Writes the tables; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m experiments.tables")
  add = parser.add_argument
  add("--results", default="experiments/results", help="saved results")
  add("--out", default="tables", help="folder to write into")
  chosen = parser.parse_args(arguments)
  folder, out = pathlib.Path(chosen.results), pathlib.Path(chosen.out)
  if not folder.is_dir():
    print(f"There is no results folder at {folder}.", file=sys.stderr)
    return 2
  try:
    made = write(Saved(folder), out)
  except (ResultError, OSError) as error:
    print(f"tables: {error}", file=sys.stderr)
    return 2
  for number, table in made.items():
    missing = len(table.missing)
    told = f", {missing} runs missing" if missing else ""
    print(f"Table {number}: {table.title}{told}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
