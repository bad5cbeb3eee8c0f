"""A run's durable state in one sqlite file: see `event_log`.

The file is written ahead-logged and fully synchronous. Its lock is a file
beside it, held as long as the store is open.
"""

import fcntl
import os
import pathlib
import sqlite3
from collections.abc import Callable, Sequence
from typing import IO, Any

from varl_jax.service import projections
from varl_jax.service.event_log import (
  EVENTS_TABLE,
  Event,
  EventLog,
  Head,
  StoreError,
)

__all__ = ["Event", "Store", "StoreError"]


class Store(EventLog):
  """Event log and projections of one run, in one file."""

  def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False):
    """Opens or creates the store.

    Args:
      path: the sqlite file.
      read_only: for reports; takes no lock and refuses writes.

    Raises:
      StoreError: another process has it open, or the file is no store.
    """
    super().__init__()
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
      self._load()
    except (sqlite3.Error, StoreError) as error:
      self._release()
      reason = error.__cause__ or error
      raise StoreError(
        f"{self.path} cannot be read as a store ({reason})."
      ) from error

  def _prepare(self) -> None:
    self._connection.execute("PRAGMA journal_mode=WAL")
    self._connection.execute("PRAGMA synchronous=FULL")
    self._connection.execute(EVENTS_TABLE)
    for statement in projections.TABLES:
      self._connection.execute(statement)

  @property
  def name(self) -> str:
    """The file's path."""
    return str(self.path)

  def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    """See `event_log.EventStore`."""
    try:
      return self._connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
      raise StoreError(f"{self.path} cannot be read ({error}).") from error

  def close(self) -> None:
    """Closes the file and gives the lock back; harmless when repeated."""
    self._connection.close()
    self._release()

  def _release(self) -> None:
    if self._lock is not None:
      self._lock.close()
      self._lock = None

  def _atomically(
    self,
    work: Callable[[projections.Execute], None],
    *,
    before: Head,
    after: Head,
  ) -> None:
    connection = self._connection
    try:
      connection.execute("BEGIN IMMEDIATE")
      work(lambda query, values: connection.execute(query, values).fetchall())
      connection.execute("COMMIT")
    except sqlite3.Error as error:
      raise _write_error(self.path, error) from error
    finally:
      # Open only where something above was raised.
      if connection.in_transaction:
        connection.execute("ROLLBACK")


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
