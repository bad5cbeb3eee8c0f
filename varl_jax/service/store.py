"""The run's only durable state: an event log in sqlite with projections.

Every change is an event with a unique name. Events and the tables derived from
them are written in one transaction (WAL, synchronous FULL), so a crash leaves
either all of a change or nothing. One process at a time may have a store open
for writing.

Events that belong to a training step carry it; `rewind` drops those after a
remembered number, which is how a run resumes from its checkpoint. Events
without a step (work done in the background and already paid for) stay.
"""

import dataclasses
import fcntl
import json
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from varl_jax.service import projections

_EVENTS = """
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  step INTEGER,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL
)
"""


class StoreError(Exception):
  """The store cannot be opened, read or written; one clear sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """One change.

  Attributes:
    uid: unique within a run; a second event of that name is ignored.
    kind: what happened, a key of `state.ServiceState`'s handlers.
    payload: plain JSON values.
    step: the training step it belongs to, None for work bound to no step.
  """

  uid: str
  kind: str
  payload: Mapping[str, Any]
  step: int | None = None


class Store:
  """Event log and projections of one run, in one file."""

  def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False):
    """Opens or creates the store.

    Args:
      path: the sqlite file; its lock is a file beside it.
      read_only: for reports; takes no lock and refuses writes.

    Raises:
      StoreError: another process has it open, or the file is no store.
    """
    self.path = pathlib.Path(path)
    self.read_only = read_only
    self._lock: IO[str] | None = None
    if read_only:
      if not self.path.is_file():
        raise StoreError(f"There is no store at {self.path}.")
      source = f"{self.path.absolute().as_uri()}?mode=ro"
    else:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._lock = _take_lock(self.path)
      source = self.path.absolute().as_uri()
    try:
      self._connection = sqlite3.connect(
        source, uri=True, isolation_level=None, check_same_thread=False
      )
      if not read_only:
        self._prepare()
      rows = self._connection.execute("SELECT uid FROM events")
      self._uids = {row[0] for row in rows}
    except sqlite3.Error as error:
      self._release()
      raise StoreError(
        f"{self.path} cannot be read as a store ({error})."
      ) from error

  def _prepare(self) -> None:
    self._connection.execute("PRAGMA journal_mode=WAL")
    self._connection.execute("PRAGMA synchronous=FULL")
    self._connection.execute(_EVENTS)
    for statement in projections.TABLES:
      self._connection.execute(statement)

  def commit(self, events: Iterable[Event]) -> int:
    """Writes the new ones of `events` with their projections, all or none.

    Returns:
      The number of the last event in the store.

    Raises:
      StoreError: nothing was written, for example because the disk is full.
    """
    number = self.event_number()
    fresh: dict[str, Event] = {}
    for event in events:
      if event.uid not in self._uids:
        fresh.setdefault(event.uid, event)
    if not fresh:
      return number
    with self._transaction():
      for event in fresh.values():
        number += 1
        payload = json.dumps(
          event.payload, separators=(",", ":"), allow_nan=False
        )
        self._connection.execute(
          "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
          (number, event.uid, event.step, event.kind, payload),
        )
        projections.project(
          self._connection, event.kind, event.step, event.payload
        )
    self._uids.update(fresh)
    return number

  def has(self, uid: str) -> bool:
    """Whether an event of that name is in the store."""
    return uid in self._uids

  def event_number(self) -> int:
    """Number of the last event, 0 in an empty store."""
    row = self._connection.execute("SELECT MAX(seq) FROM events").fetchone()
    return row[0] or 0

  def events(self, *, uid: str | None = None) -> Iterator[Event]:
    """All events in order, or the one named `uid`."""
    where = "" if uid is None else "WHERE uid = ?"
    rows = self._connection.execute(
      f"SELECT uid, step, kind, payload FROM events {where} ORDER BY seq",
      () if uid is None else (uid,),
    )
    for name, step, kind, payload in rows:
      yield Event(uid=name, step=step, kind=kind, payload=json.loads(payload))

  def rewind(self, seq: int) -> None:
    """Drops step-bound events after number `seq`; rebuilds the projections.

    Raises:
      StoreError: the store never got as far as `seq`.
    """
    if seq > self.event_number():
      raise StoreError(
        f"{self.path} ends at event {self.event_number()}, before event"
        f" {seq} of the checkpoint; it is not the store of that run. Restore"
        " it, or choose another --workdir."
      )
    with self._transaction():
      self._connection.execute(
        "DELETE FROM events WHERE seq > ? AND step IS NOT NULL", (seq,)
      )
      for table in projections.NAMES:
        self._connection.execute(f"DELETE FROM {table}")
      for event in list(self.events()):
        projections.project(
          self._connection, event.kind, event.step, event.payload
        )
    rows = self._connection.execute("SELECT uid FROM events")
    self._uids = {row[0] for row in rows}

  def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    """Reads from the projections (`projections.TABLES`)."""
    return self._connection.execute(query, values).fetchall()

  def close(self) -> None:
    """Closes the file and gives the lock back; harmless when repeated."""
    self._connection.close()
    self._release()

  def _release(self) -> None:
    if self._lock is not None:
      self._lock.close()
      self._lock = None

  def _transaction(self) -> "_Transaction":
    return _Transaction(self._connection, self.path)


class _Transaction:
  """BEGIN .. COMMIT, rolled back on any error."""

  def __init__(self, connection: sqlite3.Connection, path: pathlib.Path):
    self._connection = connection
    self._path = path

  def __enter__(self) -> None:
    self._run("BEGIN IMMEDIATE")

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any):
    if error is None:
      self._run("COMMIT")
      return
    self._roll_back()
    if isinstance(error, sqlite3.Error):
      raise _write_error(self._path, error) from error

  def _run(self, statement: str) -> None:
    try:
      self._connection.execute(statement)
    except sqlite3.Error as error:
      self._roll_back()
      raise _write_error(self._path, error) from error

  def _roll_back(self) -> None:
    if self._connection.in_transaction:
      self._connection.execute("ROLLBACK")


def _write_error(path: pathlib.Path, error: sqlite3.Error) -> StoreError:
  if "full" in str(error):
    return StoreError(
      f"No space left to write {path}; nothing of this change was saved."
      " Free some space and resume the run."
    )
  return StoreError(f"{path} cannot be written ({error}).")


def _take_lock(path: pathlib.Path) -> IO[str]:
  handle = open(path.with_name(path.name + ".lock"), "w", encoding="utf-8")
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    handle.close()
    raise StoreError(
      f"{path} is in use by another process; a store has one writer."
    ) from error
  return handle
