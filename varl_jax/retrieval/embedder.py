"""What turns texts into vectors, and the recipe an index keeps of it.

Queries and documents may have different encoders, prefixes, poolings and
lengths. All of that decides what a vector means, so an index keeps it and
refuses any other. Encoders that need an array framework live in `models`, and
come in through `Embedder`, by hand or over an endpoint (`endpoint_embedder`).
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from varl_jax.retrieval.passage import Passage, RecipeMismatch
from varl_jax.retrieval.words import VERSION, words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
  """How one kind of text is encoded.

  Attributes:
    model: a name, with a hash of the weights where they are at hand.
    prefix: put before the text, such as an instruction.
    pooling: how token vectors become one: `mean`, `cls`, `last`, or `served`
      when an endpoint decides.
    max_length: in tokens, longer texts are cut; 0 when an endpoint decides.
    form: the text of a passage, with `{title}` and `{text}`, or `{title}` and
      `{text}` as a pair of segments where it holds `[SEP]`.
  """

  model: str
  prefix: str = ""
  pooling: str = "mean"
  max_length: int = 512
  form: str = "{title}\n{text}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderRecipe:
  """What a vector of an index means.

  Attributes:
    query: how queries are encoded.
    document: how passages are.
    width: of the vectors, which are of length 1.
  """

  query: Side
  document: Side
  width: int

  def to_dict(self) -> dict[str, Any]:
    return dataclasses.asdict(self)


class Embedder(Protocol):
  """Encodes texts."""

  @property
  def recipe(self) -> EncoderRecipe:
    """What its vectors mean."""
    ...

  def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
    """float32 [texts, width], each of length 1.

    Raises:
      RetrievalError: the encoder cannot be used.
    """
    ...

  def embed_passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """float32 [passages, width], each of length 1.

    Raises:
      RetrievalError: the encoder cannot be used.
    """
    ...


def document_text(passage: Passage, form: str) -> str:
  """A passage's text as a recipe's form wants it; braces in it are text."""
  parts = {"{title}": passage.title, "{text}": passage.text}
  made = []
  while form:
    name = min(parts, key=lambda n: form.find(n) if n in form else len(form))
    before, found, form = form.partition(name)
    made += [before, parts[name] if found else ""]
  return "".join(made).strip()


def check_recipe(
  stored: Mapping[str, Any] | None, given: EncoderRecipe | None, where: object
) -> None:
  """Refuses an encoder other than the index was made with.

  Raises:
    RecipeMismatch: names the first setting that differs.
  """
  ours = None if given is None else given.to_dict()
  if stored == ours:
    return
  if stored is None:
    raise RecipeMismatch(
      f"{where} was built without an encoder; open it without one, or build"
      " it anew."
    )
  if ours is None:
    raise RecipeMismatch(
      f"{where} was built with the encoder {stored['document']['model']}; give"
      " that encoder, or ask for lexical search alone."
    )
  name, old, new = next(_differences(dict(stored), ours, ""))
  raise RecipeMismatch(
    f"{where} was built with {name} = {old!r}, and the encoder has {new!r};"
    " use the index's own encoder, or build it anew."
  )


def _differences(old: Any, new: Any, path: str):
  if isinstance(old, dict) and isinstance(new, dict):
    for key in dict.fromkeys([*old, *new]):
      yield from _differences(old.get(key), new.get(key), f"{path}.{key}")
  elif old != new:
    yield path.strip("."), old, new


class HashingEmbedder:
  """Vectors from hashed words: no weights, for tests and offline runs.

  Texts are near when they share words and runs of two; it knows no meanings.
  """

  _SALTS: Final = 2

  def __init__(self, *, width: int = 256):
    side = Side(model=f"hashing-{VERSION}", pooling="sum", max_length=0)
    self.recipe = EncoderRecipe(query=side, document=side, width=width)

  def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
    return self._embed(texts)

  def embed_passages(self, passages: Sequence[Passage]) -> np.ndarray:
    form = self.recipe.document.form
    return self._embed([document_text(p, form) for p in passages])

  def _embed(self, texts: Sequence[str]) -> np.ndarray:
    made = np.zeros((len(texts), self.recipe.width), np.float32)
    for row, text in zip(made, texts):
      stems = words(text)
      for unit in [*stems, *map(" ".join, itertools.pairwise(stems))]:
        for salt in range(self._SALTS):
          code = int.from_bytes(
            hashlib.blake2b(f"{salt}{unit}".encode(), digest_size=8).digest(),
            "little",
          )
          row[(code >> 1) % len(row)] += 1.0 if code & 1 else -1.0
    return unit_length(made)


def unit_length(vectors: np.ndarray) -> np.ndarray:
  """Rows scaled to length 1, float32; rows of zeros stay."""
  vectors = np.asarray(vectors, np.float32)
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors / np.where(norms > 0, norms, 1.0).astype(np.float32)
