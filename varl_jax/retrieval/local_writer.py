"""Writing a local index: one process at a time, every batch durable.

Passages lie in `store.sqlite` until `publish` makes a snapshot of them
(`snapshot`). A writer that was killed loses at most the batch it was writing;
the next one goes on from the rest, while readers see the last snapshot.
"""

import dataclasses
import fcntl
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final

from varl_jax.retrieval.embedder import Embedder, check_recipe
from varl_jax.retrieval.lexicon import load_lexicon
from varl_jax.retrieval.passage import (
  IndexInUse,
  Passage,
  RecipeMismatch,
  RetrievalError,
)
from varl_jax.retrieval.snapshot import (
  Manifest,
  decode,
  encode,
  read_manifest,
  write_manifest,
  write_snapshot,
)
from varl_jax.retrieval.words import VERSION

STORE: Final = "store.sqlite"
LOCK: Final = "writer.lock"
_ASKED_AT_ONCE: Final = 500
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
    self._lock = _claim(folder)
    try:
      self._manifest = self._agreed(load_lexicon(lexicon).digest, lexicon)
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

  def _agreed(self, digest: str, lexicon: str) -> Manifest:
    """The manifest, written first so that an unfinished index has one too."""
    found = read_manifest(self._folder)
    recipe = None if self._embedder is None else self._embedder.recipe
    if found is None:
      others = {p.name for p in self._folder.iterdir()} - {LOCK}
      if others:
        raise RetrievalError(
          f"{self._folder} holds other files ({min(others)}); choose an empty"
          " folder for the index."
        )
      found = Manifest(
        encoder=None if recipe is None else recipe.to_dict(),
        lexicon=(lexicon, digest),
        words=VERSION,
      )
      write_manifest(self._folder, found)
    check_recipe(found.encoder, recipe, self._folder)
    if found.lexicon[0] != lexicon:
      raise RecipeMismatch(
        f"{self._folder} was built with the word table {found.lexicon[0]!r},"
        f" not {lexicon!r}; use that one, or build it anew."
      )
    # A newer table changes how queries are read, a newer rule what is stored.
    return dataclasses.replace(found, lexicon=(lexicon, digest), words=VERSION)

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
    width = 0 if self._embedder is None else self._embedder.recipe.width
    self._manifest = write_snapshot(
      self._folder, self._manifest, self._rows(), width=width
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


def _claim(folder: pathlib.Path) -> IO[str]:
  """Keeps a second writer out until the handle is closed.

  Raises:
    IndexInUse: there is one.
    RetrievalError: the folder cannot be made.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    handle = open(folder / LOCK, "a+", encoding="utf-8")
  except OSError as error:
    raise RetrievalError(
      f"{folder} cannot be an index: {error.strerror}."
    ) from error
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    handle.seek(0)
    owner = handle.read().strip() or "unknown"
    handle.close()
    raise IndexInUse(
      f"{folder} is being written by process {owner}; wait for it to end, or"
      " build into another folder."
    ) from error
  handle.truncate(0)
  handle.write(str(os.getpid()))
  handle.flush()
  return handle
