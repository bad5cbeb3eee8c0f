"""Tables derived from the event log, for reports and read access.

They hold nothing that the events do not: `Store.rewind` empties them and
projects every remaining event again.
"""

import json
import sqlite3
import statistics
from collections.abc import Mapping
from typing import Any, Final

NAMES: Final = ("tasks", "cases", "patches", "guidance", "memos")

TABLES: Final = (
  """
    CREATE TABLE IF NOT EXISTS tasks (
      task_id TEXT PRIMARY KEY, status TEXT NOT NULL, version INTEGER NOT NULL,
      patches INTEGER NOT NULL, body TEXT NOT NULL)
    """,
  """
    CREATE TABLE IF NOT EXISTS cases (
      case_id TEXT PRIMARY KEY, step INTEGER NOT NULL, task_id TEXT NOT NULL,
      source TEXT NOT NULL, gap REAL NOT NULL, queued INTEGER NOT NULL,
      body TEXT NOT NULL)
    """,
  """
    CREATE TABLE IF NOT EXISTS patches (
      case_id TEXT NOT NULL, round INTEGER NOT NULL, step INTEGER NOT NULL,
      task_id TEXT NOT NULL, accepted INTEGER NOT NULL, body TEXT NOT NULL,
      PRIMARY KEY (case_id, round))
    """,
  """
    CREATE TABLE IF NOT EXISTS guidance (
      version INTEGER PRIMARY KEY, body TEXT NOT NULL)
    """,
  """
    CREATE TABLE IF NOT EXISTS memos (
      version INTEGER PRIMARY KEY, body TEXT NOT NULL)
    """,
)


def project(
  connection: sqlite3.Connection,
  kind: str,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  """Applies one event to the tables, inside the caller's transaction."""
  handler = _HANDLERS.get(kind)
  if handler is not None:
    handler(connection, step, payload)


def _task(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  if payload["task"] is not None:
    _put_task(connection, payload["task"], "pool")


def _windows(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  connection.executemany(
    "UPDATE tasks SET status = ? WHERE task_id = ?",
    [("evicted: " + why, task) for task, why in payload["evicted"].items()]
    + [("replay", task) for task in payload["requeued"]],
  )


def _case(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  case = payload["case"]
  connection.execute(
    "INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?, ?, ?, ?)",
    (
      case["case_id"],
      case["step"],
      case["task"]["task_id"],
      case["source"],
      case["gap"],
      int(payload["queued"]),
      json.dumps(payload),
    ),
  )


def _patch(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  patch = payload["patch"]
  connection.execute(
    "INSERT OR REPLACE INTO patches VALUES (?, ?, ?, ?, ?, ?)",
    (
      patch["case_id"],
      patch["round"],
      patch["step"],
      patch["task_id"],
      int(patch["after"] is not None),
      json.dumps(payload),
    ),
  )
  if payload["task"] is not None:
    _put_task(connection, payload["task"], "replay")


def _served(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  connection.executemany(
    "UPDATE tasks SET status = 'pool' WHERE task_id = ?",
    [(task,) for task in payload["replay"]],
  )


def _guidance(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  connection.execute(
    "INSERT OR REPLACE INTO guidance VALUES (?, ?)",
    (payload["version"], json.dumps({**payload, "step": step})),
  )


def _memo(
  connection: sqlite3.Connection,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  rows = connection.execute("SELECT version, body FROM memos").fetchall()
  written = {version: json.loads(body)["step"] for version, body in rows}
  for version in payload["state"]["versions"]:
    number = version["number"]
    entry = {
      "version": number,
      # The first memo is empty and from before any step.
      "step": written.get(number, step if number else None),
      "memo": version["text"],
      "status": version["status"],
    }
    for name in ("margin", "honest", "win_rate"):
      values = [seen[name] for seen in version["observations"]]
      if values:
        entry[name] = statistics.fmean(values)
    connection.execute(
      "INSERT OR REPLACE INTO memos VALUES (?, ?)",
      (number, json.dumps(entry)),
    )


def _put_task(
  connection: sqlite3.Connection, task: Mapping[str, Any], status: str
) -> None:
  connection.execute(
    "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?)",
    (
      task["task_id"],
      status,
      task["rubric"]["version"],
      task["patches"],
      json.dumps(task),
    ),
  )


_HANDLERS: Final = {
  "task": _task,
  "windows": _windows,
  "case": _case,
  "patch": _patch,
  "served": _served,
  "guidance": _guidance,
  "memo": _memo,
}
