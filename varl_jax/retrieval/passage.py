"""Passages of reference collections, and the protocol of an index over them.

    index.search("type 2 diabetes, foot ulcer", 5, sources=SOLVER_SEARCH)

returns hits, the best first. Whatever fills the protocol (`local_index`,
`milvus_index`) ranks the lexical leg alike and is held to one test suite.
"""

import dataclasses
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol


class RetrievalError(Exception):
  """An index that cannot be used; one sentence with cause and mend."""


class IndexInUse(RetrievalError):
  """Another process holds the index, and the engine lets in only one."""


class RecipeMismatch(RetrievalError):
  """The index was made with another encoder or word table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
  """A piece of a page.

  Attributes:
    passage_id: unique in an index, `source:name`.
    source: the corpus it comes from, such as `icd10cm`.
    title: of its page and section.
    text: without markup.
    licence: under which terms the text may be used.
    attribution: whom to name beside it.
    url: where the page is read, "" when unknown.
    keys: the names lexical search finds it by, each a short text of its own;
      () for title and text.
  """

  passage_id: str
  source: str
  title: str
  text: str
  licence: str = ""
  attribution: str = ""
  url: str = ""
  keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
  """A found passage.

  Attributes:
    passage: what was found.
    score: of its ranking; higher is better, comparable within one search only.
  """

  passage: Passage
  score: float


class Index(Protocol):
  """A searchable collection of passages; safe to search from many threads."""

  def search(
    self, query: str, k: int, *, sources: Collection[str] | None = None
  ) -> list[Hit]:
    """At most `k` hits, the best first, none without any likeness.

    Args:
      query: in plain words.
      k: how many, at least 1.
      sources: search only these corpora, None for all.

    Raises:
      RetrievalError: the index or its encoder cannot be used.
    """
    ...

  def get(self, passage_id: str) -> Passage | None:
    """The passage of that id, None when there is none."""
    ...

  def draw(
    self, rng: random.Random, *, sources: Collection[str] | None = None
  ) -> Passage:
    """A passage drawn evenly; the same one for an equal `rng` and index.

    Raises:
      RetrievalError: there is none.
    """
    ...

  def counts(self) -> dict[str, int]:
    """Passages a source."""
    ...

  def close(self) -> None:
    """Lets go of files and connections; harmless when repeated."""
    ...


class IndexWriter(Protocol):
  """Fills an index; what was put is found after `publish`."""

  def put(self, passages: Sequence[Passage]) -> None:
    """Adds passages; one of a known id takes its place. Durable on return."""
    ...

  def delete(self, passage_ids: Iterable[str]) -> int:
    """Removes passages; returns how many there were."""
    ...

  def publish(self) -> None:
    """Lets readers that open the index from now on see what was written."""
    ...

  def close(self) -> None:
    """Lets go of the index; what was not published stays for the next one."""
    ...
