"""The output head: logits of hidden states, whole or a tile of the vocabulary.

Letters: B rows, D width, V vocabulary, T ids of a tile.

Everywhere hidden states are multiplied with the head in the hidden states' type
and accumulated in float32, then divided by the temperature, and ids that are
never sampled get minus infinity before anything is normalized.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Of the head at a time; twice that is on its way into a TPU's fast memory.
TILE_BYTES: Final = 6 * 2**20
# Ids of a tile whose logits, noise and random bits lie in fast memory.
MAX_TILE: Final = 512
LANES: Final = 128


def masked_logits(
  hidden: Float[Array, "*N D"],
  head: Float[Array, "V D"],
  forbidden: Bool[Array, "... V"],
  *,
  temperature: float | Array = 1.0,
) -> Float[Array, "*N V"]:
  """hidden head^T / temperature in float32, -inf at forbidden ids.

  Both may be given a row; a temperature then is [*N, 1].
  Multiplies in the hidden states' type and accumulates in float32. A sampler
  that draws from softmax of this has the same distribution as the trainer.
  """
  logits = product(hidden, head.astype(hidden.dtype))
  return jnp.where(forbidden, -jnp.inf, logits / temperature)


def product(left: Float[Array, "*N D"], right: Float[Array, "T D"]) -> Array:
  """left right^T in float32, exact products for float32 operands."""
  return jax.lax.dot_general(
    left,
    right,
    (((left.ndim - 1,), (1,)), ((), ())),
    precision=exactly(left.dtype),
    preferred_element_type=jnp.float32,
  )


def exactly(dtype: Any) -> jax.lax.Precision | None:
  """Accelerators multiply float32 in fewer bits unless told not to."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def bias_of(
  forbidden: Bool[Array, "V"] | None, vocab: int
) -> Float[Array, "1 V"]:
  """What a kernel adds to logits: -inf at forbidden ids, else 0.

  Raises:
    ValueError: the mask is for another vocabulary.
  """
  if forbidden is None:
    return jnp.zeros((1, vocab), jnp.float32)
  if forbidden.shape != (vocab,):
    raise ValueError(
      f"The mask of forbidden ids has shape {forbidden.shape}, the head has"
      f" {vocab} rows."
    )
  return jnp.where(forbidden, -jnp.inf, 0.0).astype(jnp.float32)[None]


def tile_logits(
  products: Float[Array, "B T"],
  bias: Float[Array, "1 T"],
  ids: Int[Array, "1 T"],
  *,
  vocab: int,
  temperature: float,
) -> Float[Array, "B T"]:
  """Logits of a tile; -inf past the end of the vocabulary."""
  return jnp.where(ids < vocab, products / temperature + bias, -jnp.inf)


def tile_width(tile: int, width: int, itemsize: int, vocab: int) -> int:
  """Ids of a TPU's tile: `tile`, or for 0 what fits into `TILE_BYTES`.

  Args:
    tile: wanted, a multiple of 128 or at least the whole vocabulary.
    width: D.
    itemsize: bytes of a weight.
    vocab: V.

  Raises:
    ValueError: `tile` is negative or no multiple of 128.
  """
  if tile < 0 or (tile % LANES and tile < vocab):
    raise ValueError(
      f"A tile is a multiple of {LANES} ids or the whole vocabulary"
      f" ({vocab}), got {tile}."
    )
  if not tile:
    fits = TILE_BYTES // (width * itemsize) // LANES * LANES
    tile = min(max(fits, LANES), MAX_TILE)
  return min(tile, vocab)


def check(hidden: Any, head: Any, temperature: float) -> None:
  """Refuses operands that no form takes.

  Raises:
    ValueError: shapes that do not fit, or a temperature of 0 or less.
  """
  if head.ndim != 2 or hidden.ndim < 2 or hidden.shape[-1] != head.shape[1]:
    raise ValueError(
      f"Hidden states [..., D] and a head [V, D] are wanted, got"
      f" {hidden.shape} and {head.shape}."
    )
  if not temperature > 0:
    raise ValueError(f"temperature is above 0, got {temperature}.")
