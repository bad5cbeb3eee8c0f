"""A run as one page: curves, exploit cases and their repairs, judge health.

    python -m varl_jax.report WORKDIR

reads `config.json`, `metrics.jsonl` and `service.sqlite` of a run's folder and
writes `report.html` there. Where the service keeps its state elsewhere, the
trainer has left `evidence.jsonl` and `history.json` instead. The page holds
everything it shows, runs no script and escapes every text: answers, rubrics and
prompts are untrusted.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any, Final

from varl_jax import metrics as run_metrics
from varl_jax.command_line import refuse
from varl_jax.files import replace_text
from varl_jax.report_page import render_report
from varl_jax.service import evidence
from varl_jax.service.evidence import History
from varl_jax.service.store import Store, StoreError

FILE_NAME: Final = "report.html"
EVIDENCE: Final = "evidence.jsonl"
HISTORY: Final = "history.json"


class ReportError(Exception):
  """A run's folder cannot be reported on; one clear sentence."""


def write_report(
  workdir: str | os.PathLike[str], *, history: History | None = None
) -> pathlib.Path:
  """Writes `report.html` into a run's folder.

  Args:
    workdir: the folder; any of its files may still be missing.
    history: what to show of the service, by default what its store holds.

  Returns:
    The page's path.

  Raises:
    ReportError: there is no such folder, or a file in it is damaged.
  """
  folder = pathlib.Path(workdir)
  if not folder.is_dir():
    raise ReportError(f"There is no run folder at {folder}.")
  try:
    records = run_metrics.read_metrics(folder)
  except run_metrics.MetricsError as error:
    raise ReportError(str(error)) from error
  if history is None:
    store = folder / "service.sqlite"
    kept = not store.is_file() and (folder / HISTORY).is_file()
    history = read_history(folder) if kept else read_service(store)
  page = render_report(
    config=_read_config(folder / "config.json"),
    records=records,
    history=history,
  )
  path = folder / FILE_NAME
  # A model's text may hold what UTF-8 cannot, such as half a surrogate pair.
  replace_text(path, page, errors="replace")
  return path


def read_service(path: str | os.PathLike[str]) -> History:
  """What a store holds for the report; nothing when there is no store.

  Raises:
    ReportError: the store is damaged.
  """
  if not pathlib.Path(path).is_file():
    return History(cases=(), guidance=(), memos=())
  try:
    with contextlib.closing(Store(path, read_only=True)) as store:
      return evidence.read_history(store)
  except (StoreError, sqlite3.Error, ValueError, KeyError) as error:
    raise ReportError(f"{path} cannot be reported on ({error}).") from error


def write_history(workdir: pathlib.Path, history: History) -> None:
  """Leaves guidance and memo versions for reports without the store."""
  text = json.dumps({"guidance": history.guidance, "memos": history.memos})
  replace_text(workdir / HISTORY, text)


def read_history(folder: pathlib.Path) -> History:
  """What the trainer left of a service that keeps its state elsewhere.

  Raises:
    ReportError: a file is damaged.
  """
  try:
    kept = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
    with open(folder / EVIDENCE, encoding="utf-8") as lines:
      cases = [evidence.case_record(json.loads(line)) for line in lines]
    return History(
      cases=tuple(sorted(cases, key=evidence.newest_first)),
      guidance=tuple(kept["guidance"]),
      memos=tuple(kept["memos"]),
    )
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ReportError(
      f"{folder / HISTORY} and {EVIDENCE} cannot be reported on ({error})."
    ) from error


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  if not path.is_file():
    return {}
  try:
    config = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ReportError(f"{path} is no JSON ({error}).") from error
  groups = config.values() if isinstance(config, dict) else ()
  if not any(isinstance(group, dict) for group in groups):
    raise ReportError(f"{path} holds no config of a run.")
  return config


def main(arguments: Sequence[str] | None = None) -> int:
  """Entry point; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m varl_jax.report", description="Writes a run's report."
  )
  parser.add_argument("workdir", help="the run's folder")
  chosen = parser.parse_args(arguments)
  try:
    print(write_report(chosen.workdir))
  except (ReportError, run_metrics.MetricsError) as error:
    return refuse(str(error))
  except OSError as error:
    return refuse(
      f"The report cannot be written ({error.strerror or error}:"
      f" {error.filename or chosen.workdir}); mend that and run it again."
    )
  return 0


if __name__ == "__main__":
  sys.exit(main())
