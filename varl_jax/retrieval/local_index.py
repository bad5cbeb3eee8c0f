"""The embedded index: exact dense search in numpy, BM25, and their fusion.

Any number of processes read one index, also while another writes it: each sees
the snapshot it opened. Dense search compares the query with every passage, so
its time grows with them; above some 100,000 passages take Milvus
(`milvus_index`).
"""

import os
import pathlib
import random
import threading
from collections.abc import Collection
from typing import Final

import numpy as np

from varl_jax.retrieval.embedder import Embedder, check_recipe
from varl_jax.retrieval.fusion import LEXICAL_WEIGHT, best, fuse
from varl_jax.retrieval.lexical import LexicalIndex
from varl_jax.retrieval.lexicon import load_lexicon
from varl_jax.retrieval.passage import (
  Hit,
  Passage,
  RecipeMismatch,
  RetrievalError,
)
from varl_jax.retrieval.snapshot import (
  Manifest,
  decode,
  read_manifest,
  read_passages,
)
from varl_jax.retrieval.words import VERSION

# How deep each ranking is read before they are joined.
DEPTH: Final = 100
_TRIES: Final = 3


class LocalIndex:
  """Searches a published snapshot; see `passage.Index`."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    embedder: Embedder | None = None,
    lexical_only: bool = False,
    lexical_weight: float = LEXICAL_WEIGHT,
  ):
    """Opens the newest snapshot.

    Args:
      folder: of the index.
      embedder: the encoder the index was built with, None where it was built
        without one.
      lexical_only: leave vectors aside; no encoder is needed then.
      lexical_weight: of the lexical ranking, the dense one having 1.

    Raises:
      RecipeMismatch: another encoder, or other word rules.
      RetrievalError: there is no index, or it is damaged.
    """
    self.folder = folder
    self._weight = lexical_weight
    self._embedder = None if lexical_only else embedder
    for number in range(_TRIES):
      self._manifest = published(folder)
      try:
        self._open(lexical_only)
        break
      except FileNotFoundError as error:
        # The snapshot may just have made room for a newer one.
        if number == _TRIES - 1:
          raise RetrievalError(
            f"{folder} lacks {error.filename}; build the index anew."
          ) from error
    self._lexicon = load_lexicon(self._manifest.lexicon[0])
    self._places: dict[str, int] | None = None
    self._mutex = threading.Lock()

  def _open(self, lexical_only: bool) -> None:
    recipe = None if self._embedder is None else self._embedder.recipe
    if not lexical_only:
      check_recipe(self._manifest.encoder, recipe, self.folder)
    home = self._home = self.folder / self._manifest.snapshot
    self._offsets = np.load(home / "offsets.npy")
    self._sources = np.load(home / "sources.npy")
    self._vectors = None
    if self._embedder is not None:
      self._vectors = np.load(home / "vectors.npy", mmap_mode="r")
    self._lexical = LexicalIndex.load(home / "lexical")
    self._file = os.open(home / "passages.jsonl", os.O_RDONLY)

  def __len__(self) -> int:
    return len(self._offsets) - 1

  def search(
    self, query: str, k: int, *, sources: Collection[str] | None = None
  ) -> list[Hit]:
    if k < 1:
      raise ValueError(f"k is at least 1, got {k}.")
    allowed = self._allowed(sources)
    depth = max(k, DEPTH)
    scores = self._lexical.scores(query, self._lexicon)
    if allowed is not None:
      scores = np.where(allowed, scores, 0.0)
    places = best(scores, depth, above=0.0)
    if self._vectors is None or self._embedder is None:
      return [self._hit(p, float(scores[p])) for p in places[:k]]
    dense = self._dense(query, allowed)
    near = best(dense, depth, above=-np.inf)
    ranked = fuse(
      [places.tolist(), near.tolist()], k, weights=(self._weight, 1.0)
    )
    return [self._hit(place, score) for place, score in ranked]

  def _dense(self, query: str, allowed: np.ndarray | None) -> np.ndarray:
    """Cosines of all passages, -inf where the source is left out."""
    assert self._vectors is not None and self._embedder is not None
    [vector] = self._embedder.embed_queries([query])
    cosines = self._vectors @ vector
    return cosines if allowed is None else np.where(allowed, cosines, -np.inf)

  def _allowed(self, sources: Collection[str] | None) -> np.ndarray | None:
    """bool [N]; None when every source is wanted."""
    if sources is None:
      return None
    names = self._manifest.sources
    wanted = [i for i, name in enumerate(names) if name in sources]
    return None if len(wanted) == len(names) else np.isin(self._sources, wanted)

  def get(self, passage_id: str) -> Passage | None:
    with self._mutex:
      if self._places is None:
        path = self._home / "passages.jsonl"
        self._places = {
          p.passage_id: i for i, p in enumerate(read_passages(path))
        }
    place = self._places.get(passage_id)
    return None if place is None else self._passage(place)

  def draw(
    self, rng: random.Random, *, sources: Collection[str] | None = None
  ) -> Passage:
    allowed = self._allowed(sources)
    places = range(len(self)) if allowed is None else np.flatnonzero(allowed)
    if not len(places):
      wanted = ", ".join(sources or ("any source",))
      raise RetrievalError(
        f"{self.folder} holds no passage of {wanted}; build one of them into it"
        " (python -m varl_jax.retrieval.build)."
      )
    return self._passage(int(places[rng.randrange(len(places))]))

  def counts(self) -> dict[str, int]:
    return dict(self._manifest.counts)

  def close(self) -> None:
    if self._file >= 0:
      os.close(self._file)
      self._file = -1

  def _hit(self, place: int, score: float) -> Hit:
    return Hit(passage=self._passage(int(place)), score=score)

  def _passage(self, place: int) -> Passage:
    start, stop = int(self._offsets[place]), int(self._offsets[place + 1])
    try:
      return decode(os.pread(self._file, stop - start, start))
    except (OSError, ValueError) as error:
      raise RetrievalError(
        f"{self._home} cannot be read ({error}); open the index again, or build"
        " it anew."
      ) from error


def published(folder: pathlib.Path) -> Manifest:
  """The manifest of an index that can be searched.

  Raises:
    RecipeMismatch: it was built by other word rules.
    RetrievalError: there is none, or none is published yet.
  """
  found = read_manifest(folder)
  if found is None:
    raise RetrievalError(
      f"There is no index in {folder}; build one by python -m"
      " varl_jax.retrieval.build."
    )
  if not found.snapshot:
    raise RetrievalError(
      f"The index in {folder} is unfinished; give its build command again."
    )
  if found.words != VERSION:
    raise RecipeMismatch(
      f"{folder} was built with word rules {found.words}, this version has"
      f" {VERSION}; give its build command again."
    )
  return found
