"""The lexical leg: BM25 over the keys of passages, with global statistics.

A passage has one key or several (title and text, or the names of a code). A
concept of the query scores a key by its best phrase, concepts add up, and a
passage gets the score of its best key: another name of a code neither helps nor
dilutes the others.
"""

import logging
import pathlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from varl_jax.retrieval.lexicon import Lexicon
from varl_jax.retrieval.passage import Passage, RetrievalError
from varl_jax.retrieval.words import document_words

K1: Final = 1.2
B: Final = 0.75
# Of the first key on top of the best one: of passages that share a name, the
# one whose full title says least beside it comes first.
TIE_WEIGHT: Final = 0.01
_STARTS: Final = "starts.npy"
_PARAMS: Final = "params.index.json"


def keys_of(passage: Passage) -> tuple[str, ...]:
  """The texts lexical search reads of a passage."""
  return passage.keys or (f"{passage.title}\n{passage.text}",)


class LexicalIndex:
  """Scores of all passages for a query; passages go by their position."""

  def __init__(self, model: Any, starts: np.ndarray):
    """Wraps a model over keys.

    Args:
      model: a fitted `bm25s.BM25`, None without any word.
      starts: int64 [passages + 1], where each passage's keys begin.
    """
    self._model = model
    self._starts = starts

  @classmethod
  def build(cls, keys: Iterable[tuple[str, ...]]) -> "LexicalIndex":
    """Indexes passages given as their keys, in order."""
    bm25s = _bm25s()
    starts = [0]
    vocabulary: dict[str, int] = {}
    ids: list[list[int]] = []
    for some in keys:
      for key in some or ("",):
        ids.append(
          [
            vocabulary.setdefault(w, len(vocabulary))
            for w in document_words(key)
          ]
        )
      starts.append(len(ids))
    model = None
    if vocabulary:
      model = bm25s.BM25(k1=K1, b=B)
      model.index((ids, vocabulary), show_progress=False)
    return cls(model, np.asarray(starts, np.int64))

  def save(self, folder: pathlib.Path) -> None:
    """Writes the index into an empty folder."""
    np.save(folder / _STARTS, self._starts)
    if self._model is not None:
      self._model.save(str(folder), show_progress=False)

  @classmethod
  def load(cls, folder: pathlib.Path) -> "LexicalIndex":
    """Opens what `save` wrote; arrays are mapped, not read."""
    starts = np.load(folder / _STARTS)
    model = None
    if (folder / _PARAMS).exists():
      model = _bm25s().BM25.load(str(folder), mmap=True, show_progress=False)
    return cls(model, starts)

  def __len__(self) -> int:
    return len(self._starts) - 1

  def scores(self, query: str, lexicon: Lexicon) -> np.ndarray:
    """float32 [passages]; 0 where a passage shares no word with the query."""
    if self._model is None or len(self) == 0:
      return np.zeros(len(self), np.float32)
    total = np.zeros(int(self._starts[-1]), np.float32)
    for concept in lexicon.concepts(query):
      best: np.ndarray | None = None
      for phrase in concept:
        found = self._phrase(phrase)
        if found is not None:
          best = found if best is None else np.maximum(best, found)
      if best is not None:
        total += best
    first = total[self._starts[:-1]]
    return np.maximum.reduceat(total, self._starts[:-1]) + TIE_WEIGHT * first

  def _phrase(self, phrase: tuple[str, ...]) -> np.ndarray | None:
    known = self._model.vocab_dict
    ids = [known[word] for word in phrase if word in known]
    return self._model.get_scores_from_ids(ids) if ids else None


def _bm25s() -> Any:
  try:
    import bm25s
  except ModuleNotFoundError as error:
    raise RetrievalError(
      "The index needs bm25s; pip install -e '.[retrieval]'."
    ) from error
  logging.getLogger("bm25s").setLevel(logging.WARNING)
  return bm25s
