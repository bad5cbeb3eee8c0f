"""A mini-batch cut into micro-batches of like length.

Rows are sorted by length and each micro-batch is padded to one of few lengths,
the shortest times a power of two, so that a short row does not pay for the
longest one, and the shapes of later steps are those of the first ones.
"""

import dataclasses

import numpy as np

from varl_jax.rl.batch import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
  """The shapes that micro-batches may have.

  Attributes:
    rows: of every one of them.
    shortest: tokens that a row is padded to at least.
    longest: most tokens of a row, prompt and response.
    widest: most tokens of a response.
  """

  rows: int
  shortest: int
  longest: int
  widest: int

  def size(self, tokens: int, limit: int) -> int:
    """Smallest of shortest * 2^k and `limit` that holds so many tokens.

    Raises:
      ValueError: there are more than `limit`.
    """
    if tokens > limit:
      raise ValueError(f"A row of {tokens} tokens, above the limit of {limit}.")
    size = self.shortest
    while size < tokens:
      size *= 2
    return min(size, limit)

  def cut(self, batch: Batch) -> list[Batch]:
    """Micro-batches from the longest rows to the shortest.

    Rows without a trained token are left out; rows of group id -1 fill up.
    """
    rows = np.flatnonzero(batch.mask.any(axis=1))
    rows = rows[np.argsort(-batch.lengths[rows], kind="stable")]
    found = []
    for start in range(0, len(rows), self.rows):
      chosen = rows[start : start + self.rows]
      filling = self.rows - len(chosen)
      part = batch.take(np.pad(chosen, (0, filling), constant_values=-1))
      widths = batch.lengths[chosen] - batch.prompt_lengths[chosen]
      length = self.size(int(batch.lengths[chosen].max()), self.longest)
      width = self.size(int(widths.max()), self.widest)
      found.append(_resized(part, length=length, width=width))
    return found


def _resized(batch: Batch, *, length: int, width: int) -> Batch:
  """The same rows with padding added or taken away."""
  return dataclasses.replace(
    batch,
    tokens=_fit(batch.tokens, length),
    targets=_fit(batch.targets, width),
    mask=_fit(batch.mask, width),
    logprobs=_fit(batch.logprobs, width),
  )


def _fit(values: np.ndarray, size: int) -> np.ndarray:
  missing = max(0, size - values.shape[1])
  return np.pad(values[:, :size], ((0, 0), (0, missing)))
