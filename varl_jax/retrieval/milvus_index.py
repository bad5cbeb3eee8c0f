"""An index whose passages and vectors lie in Milvus.

One schema serves a Lite file, a server and a cluster. The lexical leg is ours
(`lexical`), from a snapshot in the index's folder: Lite's own ranks by segment
and would not agree with a server's. A dense search sees what was put at once,
the lexical one what was published.
"""

import hashlib
import json
import os
import pathlib
import random
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from varl_jax.retrieval.embedder import Embedder, check_recipe
from varl_jax.retrieval.fusion import LEXICAL_WEIGHT, best, fuse
from varl_jax.retrieval.index_folder import agree, claim
from varl_jax.retrieval.lexical import LexicalIndex
from varl_jax.retrieval.lexicon import load_lexicon
from varl_jax.retrieval.local_index import DEPTH, published
from varl_jax.retrieval.milvus_client import connect, release
from varl_jax.retrieval.passage import Hit, Passage, RetrievalError
from varl_jax.retrieval.snapshot import (
  MILVUS,
  Manifest,
  decode,
  encode,
  write_snapshot,
)

LITE_FILE: Final = "milvus.db"
TOKEN_ENV: Final = "MILVUS_TOKEN"
# Milvus counts bytes; longer passages are refused, never cut.
LONGEST_BODY: Final = 65535
_BATCH: Final = 1000


class _Collection:
  """The rows of one index in Milvus.

  Keys are hashes of passage ids: pymilvus cannot page over keys with quotes.
  """

  def __init__(self, folder: pathlib.Path, manifest: Manifest):
    self.uri = manifest.uri or str(folder.absolute() / LITE_FILE)
    self.name = manifest.collection
    self.client = connect(self.uri, token=os.environ.get(TOKEN_ENV, ""))

  def load(self) -> None:
    """Has Milvus hold the collection ready; it forgets that on a restart.

    Raises:
      RetrievalError: the collection is gone.
    """
    if not self.call("has_collection"):
      raise RetrievalError(
        f"Milvus at {self.uri} has no {self.name}; build the index anew."
      )
    self.call("load_collection")

  def make(self, width: int) -> None:
    """Creates the collection where it is missing."""
    from pymilvus import DataType

    if self.call("has_collection"):
      return
    schema = self.client.create_schema(
      auto_id=False, enable_dynamic_field=False
    )
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("source", DataType.VARCHAR, max_length=64)
    schema.add_field("body", DataType.VARCHAR, max_length=LONGEST_BODY)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
    params = self.client.prepare_index_params()
    params.add_index("vector", index_type="AUTOINDEX", metric_type="IP")
    self.call(
      "create_collection",
      schema=schema,
      index_params=params,
      consistency_level="Strong",
    )

  def call(self, method: str, **arguments: Any) -> Any:
    """A method of the client, on this collection.

    Raises:
      RetrievalError: it failed.
    """
    from pymilvus.exceptions import MilvusException

    try:
      return getattr(self.client, method)(self.name, **arguments)
    except MilvusException as error:
      raise RetrievalError(
        f"Milvus at {self.uri} failed in {method} ({error.message}); what was"
        " put before is kept."
      ) from error

  def bodies(self, keys: Sequence[str]) -> dict[str, Passage]:
    """The passages of those keys that there are."""
    if not keys:
      return {}
    rows = self.call("get", ids=list(keys), output_fields=["key", "body"])
    return {row["key"]: decode(row["body"]) for row in rows}

  def rows(self) -> Iterator[Passage]:
    """All passages, in the order of their keys."""
    pages = self.call(
      "query_iterator", batch_size=_BATCH, output_fields=["body"]
    )
    try:
      while page := pages.next():
        for row in page:
          yield decode(row["body"])
    finally:
      pages.close()

  def close(self) -> None:
    release(self.uri)


class MilvusWriter:
  """Fills an index in Milvus; see `passage.IndexWriter`."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    embedder: Embedder | None,
    lexicon: str = "clinical",
    uri: str = "",
  ):
    """Opens the index of a folder, making it where there is none.

    Args:
      folder: of the index: its recipe and the lexical leg.
      embedder: encodes passages.
      lexicon: name of the word table searches will use.
      uri: of a server for a new index; "" for a Lite file in the folder. A
        server's token is read from MILVUS_TOKEN.

    Raises:
      IndexInUse: another process writes, or has the Lite file open.
      RecipeMismatch: it was made with another encoder or word table.
      RetrievalError: no server answers, or there is no encoder.
    """
    if embedder is None:
      raise RetrievalError(
        "Milvus keeps vectors; give an encoder, or take the local engine."
      )
    self._folder = folder
    self._embedder = embedder
    self._lock = claim(folder)
    try:
      self._manifest = agree(
        folder,
        embedder=embedder,
        lexicon=lexicon,
        engine=MILVUS,
        uri=uri,
        collection=f"passages_{uuid.uuid4().hex[:12]}",
      )
      self._rows = _Collection(folder, self._manifest)
    except BaseException:
      self._lock.close()
      raise
    try:
      self._rows.make(embedder.recipe.width)
      self._rows.load()
    except BaseException:
      self.close()
      raise

  def put(self, passages: Sequence[Passage]) -> None:
    if not passages:
      return
    latest = list({p.passage_id: p for p in passages}.values())
    vectors = self._embedder.embed_passages(latest)
    rows = []
    for passage, vector in zip(latest, vectors, strict=True):
      body = encode(passage).decode().rstrip("\n")
      if len(body.encode()) > LONGEST_BODY:
        raise RetrievalError(
          f"{passage.passage_id} is longer than Milvus keeps"
          f" ({LONGEST_BODY} bytes); cut it into passages."
        )
      rows.append(
        dict(
          key=_key(passage.passage_id),
          source=passage.source,
          body=body,
          vector=vector.tolist(),
        )
      )
    for first in range(0, len(rows), _BATCH):
      self._rows.call("upsert", data=rows[first : first + _BATCH])

  def delete(self, passage_ids: Iterable[str]) -> int:
    keys = [_key(name) for name in dict.fromkeys(passage_ids)]
    done = 0
    for first in range(0, len(keys), _BATCH):
      held = list(self._rows.bodies(keys[first : first + _BATCH]))
      if held:
        self._rows.call("delete", ids=held)
        done += len(held)
    return done

  def delete_source(self, source: str) -> int:
    """Removes all passages of a source; returns how many there were."""
    wanted = f"source == {json.dumps(source)}"
    count = self._count(wanted)
    if count:
      self._rows.call("delete", filter=wanted)
    return count

  def counts(self) -> dict[str, int]:
    """Passages a source, unpublished ones too."""
    made: dict[str, int] = {}
    for passage in self._rows.rows():
      made[passage.source] = made.get(passage.source, 0) + 1
    return dict(sorted(made.items()))

  def _count(self, wanted: str) -> int:
    [row] = self._rows.call("query", filter=wanted, output_fields=["count(*)"])
    return int(row["count(*)"])

  def publish(self) -> None:
    self._rows.call("flush")
    self._manifest = write_snapshot(
      self._folder,
      self._manifest,
      ((passage, b"") for passage in self._rows.rows()),
      shape=(self._count(""), 0),
      line=lambda passage: f"{_key(passage.passage_id)}\n".encode(),
    )

  def close(self) -> None:
    if not self._lock.closed:
      self._rows.close()
      self._lock.close()


class MilvusIndex:
  """Searches an index in Milvus; see `passage.Index`."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    embedder: Embedder | None = None,
    lexical_only: bool = False,
    lexical_weight: float = LEXICAL_WEIGHT,
  ):
    """Opens a published index; the arguments are those of `LocalIndex`.

    Raises:
      IndexInUse: another process has the Lite file open.
      RecipeMismatch: another encoder, or other word rules.
      RetrievalError: there is no index, or no server answers.
    """
    self._manifest = published(folder)
    self._weight = lexical_weight
    self._embedder = None if lexical_only else embedder
    if not lexical_only:
      recipe = None if embedder is None else embedder.recipe
      check_recipe(self._manifest.encoder, recipe, folder)
    home = folder / self._manifest.snapshot
    self._folder = folder
    self._keys = (home / "passages.jsonl").read_text().splitlines()
    self._sources = np.load(home / "sources.npy")
    self._lexical = LexicalIndex.load(home / "lexical")
    self._lexicon = load_lexicon(self._manifest.lexicon[0])
    self._rows: _Collection | None = _Collection(folder, self._manifest)
    try:
      self._rows.load()
    except BaseException:
      self.close()
      raise

  @property
  def _open(self) -> _Collection:
    if self._rows is None:
      raise RetrievalError(f"The index in {self._folder} is closed; open it.")
    return self._rows

  def search(
    self, query: str, k: int, *, sources: Collection[str] | None = None
  ) -> list[Hit]:
    if k < 1:
      raise ValueError(f"k is at least 1, got {k}.")
    depth = max(k, DEPTH)
    scores = self._lexical.scores(query, self._lexicon)
    if sources is not None:
      scores = np.where(self._allowed(sources), scores, 0.0)
    places = best(scores, depth, above=0.0)
    said = [self._keys[place] for place in places]
    near = self._near(query, depth, sources)
    if near is None:
      ranked = [(key, float(scores[p])) for key, p in zip(said, places)]
    else:
      ranked = fuse([said, near], 2 * k, weights=(self._weight, 1.0))
    found = self._open.bodies([key for key, _ in ranked[: 2 * k]])
    hits = [
      Hit(passage=found[key], score=score)
      for key, score in ranked
      if key in found
    ]
    return hits[:k]

  def _near(
    self, query: str, depth: int, sources: Collection[str] | None
  ) -> list[str] | None:
    """Keys by cosine, the nearest first; None without vectors."""
    if self._embedder is None:
      return None
    [vector] = self._embedder.embed_queries([query])
    wanted = "" if sources is None else f"source in {json.dumps([*sources])}"
    [found] = self._open.call(
      "search",
      data=[vector.tolist()],
      filter=wanted,
      limit=depth,
      output_fields=["key"],
    )
    rows = sorted(
      (-float(row["distance"]), row["entity"]["key"]) for row in found
    )
    return [key for _, key in rows]

  def _allowed(self, sources: Collection[str]) -> np.ndarray:
    names = self._manifest.sources
    wanted = [i for i, name in enumerate(names) if name in sources]
    return np.isin(self._sources, wanted)

  def get(self, passage_id: str) -> Passage | None:
    return self._open.bodies([_key(passage_id)]).get(_key(passage_id))

  def draw(
    self, rng: random.Random, *, sources: Collection[str] | None = None
  ) -> Passage:
    places: Sequence[int] = range(len(self._keys))
    if sources is not None:
      places = np.flatnonzero(self._allowed(sources)).tolist()
    if not places:
      wanted = ", ".join(sources or ("any source",))
      raise RetrievalError(
        f"{self._folder} holds no passage of {wanted}; build one of them into"
        " it (python -m varl_jax.retrieval.build)."
      )
    key = self._keys[places[rng.randrange(len(places))]]
    found = self._open.bodies([key])
    if key not in found:
      raise RetrievalError(
        f"{self._folder} was changed since it was published; publish it again."
      )
    return found[key]

  def counts(self) -> dict[str, int]:
    return dict(self._manifest.counts)

  def close(self) -> None:
    if self._rows is not None:
      self._rows.close()
      self._rows = None


def _key(passage_id: str) -> str:
  return hashlib.blake2b(passage_id.encode(), digest_size=16).hexdigest()
