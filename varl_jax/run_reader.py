"""Reads a run's folder while a trainer writes it, again and again.

Nothing is locked and nothing written. Files that only grow are read from where
the last reading ended; a last line that is still being written waits for the
next reading. Whatever was rewound, when a run was resumed, is read anew.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
from typing import Any

from varl_jax import report_cases
from varl_jax.report_cases import Index, Row
from varl_jax.report_data import (
  CONFIG,
  METRICS,
  ROLLOUTS,
  STORE,
  ReportError,
  RunData,
  read_analysis,
  read_config,
)
from varl_jax.service.evidence import CaseRecord, History
from varl_jax.step_lines import MetricsError, parse_lines
from varl_jax.types import ExploitCase, Patch, from_json

# What a store says of a case that a page lists.
_CASES = """
SELECT cases.case_id, cases.step, source, gap, queued, cases.task_id, cases.body
FROM cases WHERE cases.step >= ? ORDER BY cases.step, cases.case_id
"""
_PATCHES = "SELECT case_id, round, body FROM patches WHERE step >= ?"


class Tail:
  """The records of a file with one JSON object a step, which still grows."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.records: list[dict[str, Any]] = []
    self._file: tuple[int, int] | None = None  # device and inode
    self._offset = 0

  def refresh(self) -> bool:
    """Reads what is new; returns whether anything is.

    Raises:
      ReportError: a line that is complete is damaged, or it cannot be read.
    """
    try:
      with open(self.path, "rb") as file:
        return self._read(file)
    except FileNotFoundError:
      gone = bool(self.records)
      self.records, self._file, self._offset = [], None, 0
      return gone
    except OSError as error:
      raise ReportError(
        f"{self.path} cannot be read ({error.strerror or error})."
      ) from error

  def _read(self, file: Any) -> bool:
    found = os.fstat(file.fileno())
    same = self._file == (found.st_dev, found.st_ino)
    fresh = not same or found.st_size < self._offset
    if fresh:
      # Replaced when a run was rewound.
      self.records, self._offset = [], 0
      self._file = (found.st_dev, found.st_ino)
    file.seek(self._offset)
    try:
      records, sound = parse_lines(
        file.read(), name=str(self.path), first=len(self.records) + 1
      )
    except MetricsError as error:
      raise ReportError(str(error)) from error
    self.records += records
    self._offset += sound
    return fresh or bool(records)


@dataclasses.dataclass
class _Case:
  """What is kept in memory of a case: its row's parts, no text of answers."""

  step: int
  source: str
  gap: float
  queued: bool
  task_id: str
  text: str
  samples: tuple[int, int]
  judges: dict[str, int]
  patches: dict[int, tuple[str, float | None]]


class StoreTail:
  """The cases and versions of a run's store, which still grows."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.guidance: tuple[dict[str, Any], ...] = ()
    self.memos: tuple[dict[str, Any], ...] = ()
    self._cases: dict[str, _Case] = {}
    self._head: tuple[int, str] = (0, "")
    self._step = -1  # the newest step of a case or patch

  def refresh(self) -> bool:
    """Reads what is new; returns whether anything is.

    Raises:
      ReportError: the store is damaged.
    """
    if not self.path.is_file():
      gone = bool(self._head[0])
      self._reset()
      return gone
    try:
      with contextlib.closing(self._open()) as connection:
        return self._read(connection)
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
      raise ReportError(f"{self.path} cannot be read ({error}).") from error

  def rows(self) -> tuple[Row, ...]:
    """Of the index of cases, the newest first."""
    found = sorted(
      self._cases.items(), key=lambda i: (-i[1].step, -i[1].gap, i[0])
    )
    return tuple(_row(case_id, case) for case_id, case in found)

  def judges(self) -> list[tuple[str, int]]:
    """Who decided the verdicts of the cases, and how many each."""
    counts: dict[str, int] = {}
    for case in self._cases.values():
      for judge, count in case.judges.items():
        counts[judge] = counts.get(judge, 0) + count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))

  def roles(self) -> dict[tuple[int, str, int], tuple[str, str]]:
    """What part solver's answers play in cases."""
    found = {}
    for case_id, case in self._cases.items():
      if case.source == "on_policy":
        exploit, honest = case.samples
        found[case.step, case.task_id, honest] = ("better answer", case_id)
        found[case.step, case.task_id, exploit] = ("exploit", case_id)
    return found

  def case(self, case_id: str) -> CaseRecord | None:
    """A case with all its texts; None for an unknown name.

    Raises:
      ReportError: the store is damaged.
    """
    if not self.path.is_file():
      return None
    try:
      with contextlib.closing(self._open()) as connection:
        found = connection.execute(
          "SELECT queued, body FROM cases WHERE case_id = ?", (case_id,)
        ).fetchone()
        patches = connection.execute(
          "SELECT body FROM patches WHERE case_id = ? ORDER BY round",
          (case_id,),
        ).fetchall()
      if found is None:
        return None
      return CaseRecord(
        case=from_json(ExploitCase, json.loads(found[1])["case"]),
        queued=bool(found[0]),
        patches=tuple(
          from_json(Patch, json.loads(row[0])["patch"]) for row in patches
        ),
      )
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
      raise ReportError(f"{self.path} cannot be read ({error}).") from error

  def _open(self) -> sqlite3.Connection:
    source = f"{self.path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(source, uri=True, isolation_level=None)

  def _reset(self) -> None:
    self.guidance, self.memos = (), ()
    self._cases, self._head, self._step = {}, (0, ""), -1

  def _read(self, connection: sqlite3.Connection) -> bool:
    ask = connection.execute
    if not ask("SELECT 1 FROM sqlite_master WHERE name = 'memos'").fetchone():
      return False  # it is being made
    ask("BEGIN")  # one state of the store for all that follows
    head = ask(
      "SELECT seq, uid FROM events ORDER BY seq DESC LIMIT 1"
    ).fetchone() or (0, "")
    if head == self._head:
      return False
    number, uid = self._head
    if number:
      at = ask("SELECT uid FROM events WHERE seq = ?", (number,)).fetchone()
      if at != (uid,):
        self._reset()  # the run was rewound
    self.guidance = _bodies(connection, "guidance")
    self.memos = _bodies(connection, "memos")
    since = self._step
    for case_id, step, source, gap, queued, task_id, body in ask(
      _CASES, (since,)
    ):
      case = json.loads(body)["case"]
      before = self._cases.get(case_id)
      self._cases[case_id] = _Case(
        step=step,
        source=source,
        gap=gap,
        queued=bool(queued),
        task_id=task_id,
        text=report_cases.excerpt(
          case["task"]["prompt"][-1]["content"]
          if case["task"]["prompt"]
          else ""
        ),
        samples=(case["exploit"]["sample"], case["honest"]["sample"]),
        judges=_judges(case),
        patches={} if before is None else before.patches,
      )
      self._step = max(self._step, step)
    for case_id, number, body in ask(_PATCHES, (since,)):
      patch = json.loads(body)["patch"]
      if case_id in self._cases:
        self._cases[case_id].patches[number] = (
          patch["label"],
          patch["gap_after"],
        )
    self._head = head
    return True


class RunReader:
  """A run's folder as its dashboard sees it.

  Args:
    workdir: the folder.

  Raises:
    ReportError: there is none.
  """

  def __init__(self, workdir: pathlib.Path):
    if not workdir.is_dir():
      raise ReportError(
        f"There is no run folder at {workdir}; start a run with this --workdir"
        " first, or name another."
      )
    self.folder = workdir
    self.metrics = Tail(workdir / METRICS)
    self.rollouts = Tail(workdir / ROLLOUTS)
    self.store = StoreTail(workdir / STORE)
    self.version = 0
    self._stamps: tuple[int | None, ...] = ()
    self._config: dict[str, Any] = {}
    self._analysis: dict[str, Any] | None = None

  def refresh(self) -> None:
    """Reads what is new; `version` grows when anything is.

    Raises:
      ReportError: a file is damaged, or the folder is gone.
    """
    if not self.folder.is_dir():
      raise ReportError(f"The run folder {self.folder} is gone.")
    changed = [
      self.metrics.refresh(),
      self.rollouts.refresh(),
      self.store.refresh(),
    ]
    stamps = tuple(
      _stamp(self.folder / name) for name in (CONFIG, "analysis.json")
    )
    if stamps != self._stamps:
      self._config = read_config(self.folder)
      self._analysis = read_analysis(self.folder)
      self._stamps = stamps
      changed.append(True)
    self.version += any(changed)

  def data(self) -> RunData:
    """The run without its cases, whose rows `store` has."""
    return RunData(
      name=str(self._config.get("name") or self.folder.resolve().name),
      config=self._config,
      records=self.metrics.records,
      history=History(
        cases=(), guidance=self.store.guidance, memos=self.store.memos
      ),
      kept=self.rollouts.records,
      analysis=self._analysis,
    )

  def index(self) -> Index:
    """Of the cases."""
    return Index(
      facets=report_cases.CASE_FACETS,
      orders=report_cases.CASE_ORDERS,
      rows=self.store.rows(),
    )


def _row(case_id: str, case: _Case) -> Row:
  rounds = [case.patches[number] for number in sorted(case.patches)]
  done = [patch for patch in rounds if patch[1] is not None]
  label, gap_after = next(iter((*done, *rounds)), ("", None))
  return report_cases.case_row_of(
    case_id=case_id,
    step=case.step,
    source=case.source,
    gap=case.gap,
    task_id=case.task_id,
    text=case.text,
    queued=case.queued,
    label=label,
    gap_after=gap_after,
  )


def _judges(case: dict[str, Any]) -> dict[str, int]:
  counts: dict[str, int] = {}
  for side in ("exploit", "honest"):
    for verdict in case[side]["verdicts"]:
      counts[verdict["judge"]] = counts.get(verdict["judge"], 0) + 1
  return counts


def _bodies(
  connection: sqlite3.Connection, table: str
) -> tuple[dict[str, Any], ...]:
  rows = connection.execute(f"SELECT body FROM {table} ORDER BY version")
  return tuple(json.loads(row[0]) for row in rows)


def _stamp(path: pathlib.Path) -> int | None:
  try:
    return path.stat().st_mtime_ns
  except FileNotFoundError:
    return None
