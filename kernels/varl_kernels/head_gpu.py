"""Products of hidden states and a tile of the head inside a Triton kernel."""

from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from varl_kernels.head import product

# Columns of hidden states and head that are multiplied at a time.
DEPTH: Final = 64
MAX_BLOCK: Final = 128


def row_block(rows: int) -> int:
  """Rows of a program: a power of two, at least the 16 of a tensor core."""
  return min(max(16, 1 << (rows - 1).bit_length()), MAX_BLOCK)


def check_tile(tile: int) -> int:
  """`tile`, if a program can take as many ids.

  Raises:
    ValueError: it is no power of two from 16 on.
  """
  if tile < 16 or tile & (tile - 1):
    raise ValueError(f"A tile is a power of two from 16 on, got {tile}.")
  return tile


def tile_products(
  hidden, head, row: Array, column: Array, *, block: int, tile: int
) -> Float[Array, "block tile"]:
  """hidden[row:] head[column:]^T in float32, 0 past the end of either.

  Args:
    hidden: reference to [B, D].
    head: reference to [V, D].
    row: first row.
    column: first id.
    block: rows.
    tile: ids.
  """
  (rows, width), vocab = hidden.shape, head.shape[0]
  depth = max(16, min(DEPTH, 1 << (width - 1).bit_length()))
  rows_in = row + jnp.arange(block) < rows
  ids_in = column + jnp.arange(tile) < vocab

  def step(i, total):
    start = i * depth
    inside = None
    if width % depth:
      inside = start + jnp.arange(depth) < width

    def load(ref, first, count, real):
      mask = jnp.broadcast_to(real[:, None], (count, depth))
      if inside is not None:
        mask = mask & inside[None]
      where = ref.at[pl.ds(first, count), pl.ds(start, depth)]
      return plgpu.load(where, mask=mask, other=jnp.zeros((), ref.dtype))

    left = load(hidden, row, block, rows_in)
    right = load(head, column, tile, ids_in).astype(hidden.dtype)
    return total + product(left, right)

  zero = jnp.zeros((block, tile), jnp.float32)
  return jax.lax.fori_loop(0, pl.cdiv(width, depth), step, zero)
