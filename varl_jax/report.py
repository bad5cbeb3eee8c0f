"""Runs as one page: curves, exploit cases and their repairs, judges, costs.

    python -m varl_jax.report WORKDIR
    python -m varl_jax.report runs/rri runs/generation_only --out=compared.html

reads a run's folder (`report_data`) and writes `report.html` there; of several
runs it lays the curves over one another. The page holds everything it shows,
loads nothing and escapes every text: answers, rubrics and prompts are
untrusted.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Final

from varl_jax.command_line import refuse
from varl_jax.files import replace_text
from varl_jax.report_data import (
  EVIDENCE,
  HISTORY,
  ReportError,
  read_run,
  read_service,
  write_history,
)
from varl_jax.report_page import render_report
from varl_jax.service.evidence import History

__all__ = [
  "EVIDENCE",
  "HISTORY",
  "ReportError",
  "read_service",
  "write_history",
  "write_report",
]

FILE_NAME: Final = "report.html"


def write_report(
  workdir: str | os.PathLike[str],
  *others: str | os.PathLike[str],
  history: History | None = None,
  out: str | os.PathLike[str] = "",
) -> pathlib.Path:
  """Writes the report of a run, or of several.

  Args:
    workdir: a run's folder; any of its files may still be missing.
    *others: folders of more runs.
    history: what to show of the first run's service, by default what its store
      holds.
    out: where to write, by default `report.html` in the first folder.

  Returns:
    The page's path.

  Raises:
    ReportError: there is no such folder, or a file in it is damaged.
  """
  runs = [read_run(workdir, history=history), *map(read_run, others)]
  path = pathlib.Path(out) if out else pathlib.Path(workdir) / FILE_NAME
  # A model's text may hold what UTF-8 cannot, such as half a surrogate pair.
  replace_text(path, render_report(runs), errors="replace")
  return path


def main(arguments: Sequence[str] | None = None) -> int:
  """Entry point; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m varl_jax.report", description="Writes a report of runs."
  )
  parser.add_argument("workdir", nargs="+", help="a run's folder")
  parser.add_argument(
    "--out", default="", help="the page; report.html of the first folder"
  )
  chosen = parser.parse_args(arguments)
  try:
    print(write_report(*chosen.workdir, out=chosen.out))
  except ReportError as error:
    return refuse(str(error))
  except OSError as error:
    return refuse(
      f"The report cannot be written ({error.strerror or error}:"
      f" {error.filename or chosen.out or chosen.workdir[0]}); mend that and"
      " run it again."
    )
  return 0


if __name__ == "__main__":
  sys.exit(main())
