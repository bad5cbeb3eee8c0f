"""What a report is made from: the files of a run's folder, read strictly.

Where the service keeps its state elsewhere, the trainer has left
`evidence.jsonl` and `history.json` in place of `service.sqlite`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.config import ConfigError
from varl_jax.files import replace_text
from varl_jax.judge_gate import read_calibration
from varl_jax.roles.calibration import Calibration
from varl_jax.service import evidence
from varl_jax.service.evidence import History
from varl_jax.service.store import Store, StoreError
from varl_jax.step_lines import MetricsError, read_lines

METRICS: Final = "metrics.jsonl"
ROLLOUTS: Final = "rollouts.jsonl"
EVIDENCE: Final = "evidence.jsonl"
HISTORY: Final = "history.json"
STORE: Final = "service.sqlite"
CONFIG: Final = "config.json"
ANALYSIS: Final = "analysis.json"
NOTHING: Final = History(cases=(), guidance=(), memos=())


class ReportError(Exception):
  """A run's folder cannot be reported on; one clear sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
  """A run as its folder tells it.

  Attributes:
    name: of its config, or of its folder.
    config: the tree of `config.json`, empty without one.
    records: of `metrics.jsonl`.
    history: cases, guidance and memo.
    kept: lines of `rollouts.jsonl`.
    analysis: of `varl_jax.analysis`, None where it was not made.
    calibration: what the judge was worth, None where that was not measured.
  """

  name: str
  config: Mapping[str, Any]
  records: Sequence[Mapping[str, Any]]
  history: History = NOTHING
  kept: Sequence[Mapping[str, Any]] = ()
  analysis: Mapping[str, Any] | None = None
  calibration: Calibration | None = None

  @property
  def groups(self) -> dict[tuple[int, str], Mapping[str, Any]]:
    """Kept groups by step and task."""
    return {
      (line["step"], group["task_id"]): group
      for line in self.kept
      for group in line["groups"]
    }


def read_run(
  workdir: str | os.PathLike[str], *, history: History | None = None
) -> RunData:
  """Reads a run's folder; any of its files may still be missing.

  Args:
    workdir: the folder.
    history: what to take for the service, by default what its store holds.

  Raises:
    ReportError: there is no such folder, or a file in it is damaged.
  """
  folder = pathlib.Path(workdir)
  if not folder.is_dir():
    raise ReportError(f"There is no run folder at {folder}.")
  try:
    records, _ = read_lines(folder / METRICS)
    kept, _ = read_lines(folder / ROLLOUTS)
  except MetricsError as error:
    raise ReportError(str(error)) from error
  if history is None:
    store = folder / STORE
    left = not store.is_file() and (folder / HISTORY).is_file()
    history = read_history(folder) if left else read_service(store)
  config = read_config(folder)
  return RunData(
    name=str(config.get("name") or folder.resolve().name),
    config=config,
    records=records,
    history=history,
    kept=kept,
    analysis=read_analysis(folder),
    calibration=_calibration(folder),
  )


def _calibration(folder: pathlib.Path) -> Calibration | None:
  try:
    return read_calibration(folder)
  except ConfigError as error:
    raise ReportError(str(error)) from error


def read_service(path: str | os.PathLike[str]) -> History:
  """What a store holds for the report; nothing when there is no store.

  Raises:
    ReportError: the store is damaged.
  """
  if not pathlib.Path(path).is_file():
    return NOTHING
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


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  """The settings of a run; empty before it has any.

  Raises:
    ReportError: the file holds none.
  """
  path = folder / CONFIG
  if not path.is_file():
    return {}
  config = _json(path)
  groups = config.values() if isinstance(config, dict) else ()
  if not any(isinstance(group, dict) for group in groups):
    raise ReportError(f"{path} holds no config of a run.")
  return config


def read_analysis(folder: pathlib.Path) -> dict[str, Any] | None:
  """What `varl_jax.analysis` left, None where it has not run.

  Raises:
    ReportError: the file is damaged.
  """
  path = folder / ANALYSIS
  if not path.is_file():
    return None
  found = _json(path)
  try:
    _ = found["shares"]["categories"], found["examples"], found["auditors"]
  except (KeyError, TypeError) as error:
    raise ReportError(
      f"{path} holds no analysis; make it again with varl_jax.analysis."
    ) from error
  return found


def _json(path: pathlib.Path) -> Any:
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ReportError(f"{path} is no JSON ({error}).") from error
