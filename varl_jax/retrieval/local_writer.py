"""Writing a local index: one process at a time, every batch durable.

Passages lie in `store.sqlite` until `publish` makes a snapshot of them
(`snapshot`). A writer that was killed loses at most the batch it was writing;
the next one goes on from the rest, while readers see the last snapshot.
"""

import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from varl_jax.retrieval.embedder import Embedder
from varl_jax.retrieval.index_folder import agree, claim
from varl_jax.retrieval.passage import Passage, RetrievalError
from varl_jax.retrieval.snapshot import decode, encode, write_snapshot

STORE: Final = "store.sqlite"
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS passages (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  passage_id TEXT NOT NULL UNIQUE,
  source TEXT NOT NULL,
  body BLOB NOT NULL,
  vector BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_source ON passages (source);
"""
_PUT: Final = """
INSERT INTO passages (passage_id, source, body, vector) VALUES (?, ?, ?, ?)
ON CONFLICT (passage_id) DO UPDATE SET
  source = excluded.source, body = excluded.body, vector = excluded.vector
"""


class LocalWriter:
  """Fills a local index; see `passage.IndexWriter`."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    embedder: Embedder | None = None,
    lexicon: str = "clinical",
  ):
    """Opens the index in a folder, making it where there is none.

    Args:
      folder: of the index.
      embedder: encodes passages, None for lexical search alone.
      lexicon: name of the word table searches will use.

    Raises:
      IndexInUse: another process writes.
      RecipeMismatch: it was made with another encoder or word table.
      RetrievalError: damaged, or the folder holds something else.
    """
    self._folder = folder
    self._embedder = embedder
    self._lock = claim(folder)
    try:
      self._manifest = agree(folder, embedder=embedder, lexicon=lexicon)
      self._store = sqlite3.connect(folder / STORE, isolation_level=None)
      self._store.execute("PRAGMA journal_mode = WAL")
      self._store.execute("PRAGMA synchronous = FULL")
      self._store.executescript(_TABLE)
    except sqlite3.Error as error:
      self._lock.close()
      raise RetrievalError(
        f"{folder / STORE} cannot be used ({error}); build the index anew."
      ) from error
    except BaseException:
      self._lock.close()
      raise

  def put(self, passages: Sequence[Passage]) -> None:
    if not passages:
      return
    vectors = [b""] * len(passages)
    if self._embedder is not None:
      found = self._embedder.embed_passages(passages)
      vectors = [row.astype("<f4").tobytes() for row in found]
    with self._transaction():
      self._store.executemany(
        _PUT,
        (
          (p.passage_id, p.source, encode(p), vector)
          for p, vector in zip(passages, vectors, strict=True)
        ),
      )

  def delete(self, passage_ids: Iterable[str]) -> int:
    with self._transaction():
      done = self._store.executemany(
        "DELETE FROM passages WHERE passage_id = ?",
        ((name,) for name in passage_ids),
      )
    return done.rowcount

  def delete_source(self, source: str) -> int:
    """Removes all passages of a source; returns how many there were."""
    with self._transaction():
      done = self._store.execute(
        "DELETE FROM passages WHERE source = ?", (source,)
      )
    return done.rowcount

  def counts(self) -> dict[str, int]:
    """Passages a source, unpublished ones too."""
    rows = self._store.execute(
      "SELECT source, COUNT(*) FROM passages GROUP BY source ORDER BY source"
    )
    return dict(rows.fetchall())

  def publish(self) -> None:
    [[count]] = self._store.execute("SELECT COUNT(*) FROM passages")
    width = 0 if self._embedder is None else self._embedder.recipe.width
    self._manifest = write_snapshot(
      self._folder, self._manifest, self._rows(), shape=(count, width)
    )

  def _rows(self) -> Iterator[tuple[Passage, bytes]]:
    rows = self._store.execute(
      "SELECT body, vector FROM passages ORDER BY number"
    )
    for body, vector in rows:
      yield decode(body), vector

  def _transaction(self) -> "_Transaction":
    return _Transaction(self._store, self._folder)

  def close(self) -> None:
    if not self._lock.closed:
      self._store.close()
      self._lock.close()


class _Transaction:
  """All of a batch or none of it."""

  def __init__(self, store: sqlite3.Connection, folder: pathlib.Path):
    self._store = store
    self._folder = folder

  def __enter__(self) -> None:
    self._store.execute("BEGIN IMMEDIATE")

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    try:
      self._store.execute("ROLLBACK" if kind else "COMMIT")
    except sqlite3.Error as failed:
      raise RetrievalError(
        f"{self._folder / STORE} could not be written ({failed}); what was"
        " written before is kept."
      ) from failed
