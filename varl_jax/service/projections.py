"""Tables derived from the event log, for reports and read access.

They hold nothing that the events do not: a rewind empties them and projects
every remaining event again. The statements are those that sqlite and PostgreSQL
both know.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

# Runs one statement, `?` for a value; returns its rows, none for a write.
Execute = Callable[[str, Sequence[Any]], list[tuple]]

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
      source TEXT NOT NULL, gap DOUBLE PRECISION NOT NULL,
      queued INTEGER NOT NULL, body TEXT NOT NULL)
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
  execute: Execute,
  kind: str,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  """Applies one event to the tables, inside the caller's transaction."""
  handler = _HANDLERS.get(kind)
  if handler is not None:
    handler(execute, step, payload)


def _task(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  if payload["task"] is not None:
    _put_task(execute, payload["task"], "pool")


def _windows(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  for task, why in payload["evicted"].items():
    _set_status(execute, task, "evicted: " + why)
  for task in payload["requeued"]:
    _set_status(execute, task, "replay")


def _case(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  case = payload["case"]
  _put(
    execute,
    "cases",
    {"case_id": case["case_id"]},
    step=case["step"],
    task_id=case["task"]["task_id"],
    source=case["source"],
    gap=float(case["gap"]),
    queued=int(payload["queued"]),
    body=json.dumps(payload),
  )


def _patch(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  patch = payload["patch"]
  _put(
    execute,
    "patches",
    {"case_id": patch["case_id"], "round": patch["round"]},
    step=patch["step"],
    task_id=patch["task_id"],
    accepted=int(patch["after"] is not None),
    body=json.dumps(payload),
  )
  if payload["task"] is not None:
    _put_task(execute, payload["task"], "replay")


def _served(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  for task in payload["replay"]:
    _set_status(execute, task, "pool")


def _guidance(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  body = json.dumps({**payload, "step": step})
  _put(execute, "guidance", {"version": payload["version"]}, body=body)


def _memo(
  execute: Execute,
  step: int | None,
  payload: Mapping[str, Any],
) -> None:
  rows = execute("SELECT version, body FROM memos", ())
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
    _put(execute, "memos", {"version": number}, body=json.dumps(entry))


def _put_task(execute: Execute, task: Mapping[str, Any], status: str) -> None:
  _put(
    execute,
    "tasks",
    {"task_id": task["task_id"]},
    status=status,
    version=task["rubric"]["version"],
    patches=task["patches"],
    body=json.dumps(task),
  )


def _set_status(execute: Execute, task_id: str, status: str) -> None:
  execute("UPDATE tasks SET status = ? WHERE task_id = ?", (status, task_id))


def _put(
  execute: Execute, table: str, key: Mapping[str, Any], **values: Any
) -> None:
  """Writes a row in place of the one of that key; names are code constants."""
  row = {**key, **values}
  marks = ", ".join("?" * len(row))
  changes = ", ".join(f"{name} = excluded.{name}" for name in values)
  execute(
    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}",
    tuple(row.values()),
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
