"""The folder of an index: one writer at a time, one recipe for good."""

import dataclasses
import fcntl
import os
import pathlib
from typing import IO, Final

from varl_jax.retrieval.embedder import Embedder, check_recipe
from varl_jax.retrieval.lexicon import load_lexicon
from varl_jax.retrieval.passage import (
  IndexInUse,
  RecipeMismatch,
  RetrievalError,
)
from varl_jax.retrieval.snapshot import (
  LOCAL,
  Manifest,
  read_manifest,
  write_manifest,
)
from varl_jax.retrieval.words import VERSION

LOCK: Final = "writer.lock"


def agree(
  folder: pathlib.Path,
  *,
  embedder: Embedder | None,
  lexicon: str,
  engine: str = LOCAL,
  uri: str = "",
  collection: str = "",
) -> Manifest:
  """The manifest of the index; written first, so an unfinished one has it too.

  Args:
    folder: of the index, claimed.
    embedder: must be of the recipe the index was begun with.
    lexicon: must be the word table it was begun with; a table that changed
      since is fine, as it decides how queries are read, not what is stored.
    engine: of a new index.
    uri: of a new index.
    collection: of a new index.

  Raises:
    RecipeMismatch: it was begun with others.
    RetrievalError: the folder holds something else.
  """
  words = load_lexicon(lexicon)
  recipe = None if embedder is None else embedder.recipe
  found = read_manifest(folder)
  if found is None:
    others = {path.name for path in folder.iterdir()} - {LOCK}
    if others:
      raise RetrievalError(
        f"{folder} holds other files ({min(others)}); choose an empty folder"
        " for the index."
      )
    found = Manifest(
      engine=engine,
      uri=uri,
      collection=collection,
      encoder=None if recipe is None else recipe.to_dict(),
      lexicon=(lexicon, words.digest),
      words=VERSION,
    )
    write_manifest(folder, found)
  check_recipe(found.encoder, recipe, folder)
  if found.lexicon[0] != lexicon:
    raise RecipeMismatch(
      f"{folder} was built with the word table {found.lexicon[0]!r}, not"
      f" {lexicon!r}; use that one, or build it anew."
    )
  return dataclasses.replace(
    found, lexicon=(lexicon, words.digest), words=VERSION
  )


def claim(folder: pathlib.Path) -> IO[str]:
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
