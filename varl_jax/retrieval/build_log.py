"""What a build has read already: files, and how far into each."""

import dataclasses
import hashlib
import os
import pathlib
import sqlite3
from typing import Final

NAME: Final = "build.sqlite"
_EDGE: Final = 1 << 16
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS files (
  source TEXT NOT NULL,
  path TEXT NOT NULL,
  mark TEXT NOT NULL,
  passages INTEGER NOT NULL,
  complete INTEGER NOT NULL,
  PRIMARY KEY (source, path)
)
"""


def fingerprint(file: pathlib.Path) -> str:
  """Of a file's size and of its first and last 64 KiB."""
  size = file.stat().st_size
  digest = hashlib.sha256(str(size).encode())
  with file.open("rb") as stream:
    digest.update(stream.read(_EDGE))
    stream.seek(max(0, size - _EDGE))
    digest.update(stream.read(_EDGE))
  return digest.hexdigest()[:32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
  """How far a file was read.

  Attributes:
    mark: its fingerprint then.
    passages: that are in the index.
    complete: whether these are all.
  """

  mark: str
  passages: int
  complete: bool


class BuildLog:
  """Files by source and path.

  It may lag behind the index by a batch, which is then put again, and never
  runs ahead of it.
  """

  def __init__(self, folder: pathlib.Path):
    """Opens the log of the index in a folder."""
    self._store = sqlite3.connect(folder / NAME, isolation_level=None)
    self._store.execute("PRAGMA journal_mode = WAL")
    self._store.execute("PRAGMA synchronous = FULL")
    self._store.execute(_TABLE)

  def known(self, source: str, file: pathlib.Path) -> Known | None:
    """What is known of a file, None for a new one."""
    row = self._store.execute(
      "SELECT mark, passages, complete FROM files"
      " WHERE source = ? AND path = ?",
      (source, _key(file)),
    ).fetchone()
    if row is None:
      return None
    return Known(mark=row[0], passages=row[1], complete=bool(row[2]))

  def note(
    self,
    source: str,
    file: pathlib.Path,
    *,
    mark: str,
    passages: int,
    complete: bool,
  ) -> None:
    """Keeps how far a file was read."""
    self._store.execute(
      "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
      (source, _key(file), mark, passages, int(complete)),
    )

  def forget(self, source: str, file: pathlib.Path) -> None:
    """Takes a file for new."""
    self._store.execute(
      "DELETE FROM files WHERE source = ? AND path = ?", (source, _key(file))
    )

  def forget_source(self, source: str) -> None:
    """Takes all files of a source for new."""
    self._store.execute("DELETE FROM files WHERE source = ?", (source,))

  def close(self) -> None:
    self._store.close()


def _key(file: pathlib.Path) -> str:
  return os.path.abspath(file)
