"""Word tables: what people say, beside the terms a reference uses.

A query is read as a list of concepts. Each is one word, or the longest run of
words that the table knows, in any order ("high calcium", "calcium is high"). It
is searched as said and in every term the table gives for it, and the best of
these counts (`lexical`).
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Final

from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.words import words

_FOLDER: Final = pathlib.Path(__file__).parent / "lexicons"
_IGNORE: Final = "ignore"
Phrase = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lexicon:
  """A word table.

  Attributes:
    name: of its file; "" for the empty table.
    terms: what is said, as sorted stems, to the terms searched beside it.
    ignored: phrases that say nothing, likewise.
    longest: stems in the longest phrase.
    digest: hash of the file, kept with an index made with it.
  """

  name: str = ""
  terms: Mapping[Phrase, tuple[Phrase, ...]] = dataclasses.field(
    default_factory=dict
  )
  ignored: frozenset[Phrase] = frozenset()
  longest: int = 1
  digest: str = ""

  def concepts(self, query: str) -> list[tuple[Phrase, ...]]:
    """The query's concepts, each as said first, then in other terms."""
    said = words(query)
    made: list[tuple[Phrase, ...]] = []
    start = 0
    while start < len(said):
      phrase = self._longest_at(said, start)
      start += len(phrase)
      if _key(phrase) not in self.ignored:
        made.append((phrase, *self.terms.get(_key(phrase), ())))
    return made

  def _longest_at(self, said: list[str], start: int) -> Phrase:
    for length in range(min(self.longest, len(said) - start), 1, -1):
      phrase = tuple(said[start : start + length])
      if _key(phrase) in self.terms or _key(phrase) in self.ignored:
        return phrase
    return (said[start],)


def _key(phrase: Phrase) -> Phrase:
  return tuple(sorted(phrase))


EMPTY: Final = Lexicon()


@functools.lru_cache
def load_lexicon(name: str) -> Lexicon:
  """The table of a name, such as `clinical`, or of a path; "" is empty.

  Raises:
    RetrievalError: there is none, or a line of it cannot be read.
  """
  if not name:
    return EMPTY
  path = pathlib.Path(name) if "/" in name else _FOLDER / f"{name}.txt"
  try:
    text = path.read_text(encoding="utf-8")
  except OSError as error:
    known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.txt")))
    raise RetrievalError(
      f"There is no word table {name!r}; choose {known}, or the path of a file."
    ) from error
  terms: dict[Phrase, tuple[Phrase, ...]] = {}
  ignored: set[Phrase] = set()
  for number, line in enumerate(text.splitlines(), 1):
    if not line.strip() or line.startswith("#"):
      continue
    left, equals, right = line.partition("=")
    if not equals or not left.strip() or not right.strip():
      raise RetrievalError(
        f"{path}:{number} is no line `what is said = a term; another`."
      )
    if left.strip() == _IGNORE:
      ignored |= {_key(tuple(words(part))) for part in right.split(",")} - {()}
      continue
    given = [tuple(words(term)) for term in right.split(";")]
    for said in left.split(","):
      phrase = _key(tuple(words(said)))
      if phrase:
        known = (*terms.get(phrase, ()), *given)
        fresh = [t for t in known if t and _key(t) != phrase]
        terms[phrase] = tuple(dict.fromkeys(fresh))
  return Lexicon(
    name=name,
    terms=terms,
    ignored=frozenset(ignored - set(terms)),
    longest=max(map(len, [*terms, *ignored]), default=1),
    digest=hashlib.sha256(text.encode()).hexdigest()[:16],
  )
