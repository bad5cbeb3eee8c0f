"""Reference passages out of an index, for the writing of tasks.

A request is its own query in the grounding collection, seeds are drawn from the
seed collection (spec section 1); both lie in one index. How seeds are drawn is
reconstructed: first a source, evenly, then one of its passages, because one
large source would else supply nearly all of them.
"""

import asyncio
import dataclasses
import pathlib
import random
from collections.abc import Collection, Sequence
from typing import Final

from varl_jax.config import ConfigError, RetrievalConfig
from varl_jax.retrieval.collection import GROUNDING, SEEDS
from varl_jax.retrieval.opening import make_embedder, open_index
from varl_jax.retrieval.passage import Index, RetrievalError
from varl_jax.retrieval.passage import Passage as Found
from varl_jax.service.passages import Passage, PassageError

# Says that a passage goes on.
CUT: Final = " [...]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexPassages:
  """A `PassageSource` over an index.

  Attributes:
    index: to search.
    count: passages a request.
    max_chars: of one passage; longer ones are cut, and say so.
    seeds: sources that requests start from; None for all in the index.
    grounding: sources that tasks are written from; likewise.
  """

  index: Index
  count: int
  max_chars: int
  seeds: Collection[str] | None = SEEDS
  grounding: Collection[str] | None = GROUNDING

  async def passages(self, request: str) -> Sequence[Passage]:
    try:
      hits = await asyncio.to_thread(
        self.index.search, request, self.count, sources=self.grounding
      )
    except RetrievalError as error:
      raise PassageError(str(error)) from error
    return [self._passage(hit.passage) for hit in hits]

  def seed_passage(self, rng: random.Random) -> Passage:
    held = sorted(self.index.counts())
    wanted = [n for n in held if self.seeds is None or n in self.seeds]
    source = [rng.choice(wanted)] if wanted else self.seeds
    try:
      return self._passage(self.index.draw(rng, sources=source))
    except RetrievalError as error:
      raise PassageError(str(error)) from error

  def close(self) -> None:
    """Lets go of the index."""
    self.index.close()

  def _passage(self, found: Found) -> Passage:
    text = found.text
    if len(text) > self.max_chars:
      text = text[: self.max_chars].rsplit(None, 1)[0] + CUT
    return Passage(name=found.passage_id, text=text, title=found.title)


def open_passages(config: RetrievalConfig) -> IndexPassages | None:
  """The source that a run's settings name, None for none.

  An index of a user's own texts has no source of the paper's collections; all
  of it then serves for seeds and grounding alike.

  Raises:
    ConfigError: the index or its encoder cannot be used.
  """
  if not config.index:
    return None
  try:
    index = open_index(
      pathlib.Path(config.index).expanduser(),
      embedder=make_embedder(config.encoder),
      lexical_only=config.lexical_only,
    )
  except RetrievalError as error:
    raise ConfigError(
      f"retrieval.index cannot be used: {error} (retrieval.index='' writes"
      " tasks without passages.)"
    ) from error
  held = set(index.counts())
  return IndexPassages(
    index=index,
    count=config.passages,
    max_chars=config.max_chars,
    seeds=SEEDS if held & set(SEEDS) else None,
    grounding=GROUNDING if held & set(GROUNDING) else None,
  )
