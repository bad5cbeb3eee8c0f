"""Sampling on NVIDIA GPUs (Triton): one program a tile and block of rows.

Programs of one tile and all rows run side by side and share the tile through
the cache, so that the head is read from memory once. Each leaves five scalars a
row, which XLA merges: for 256 rows half a percent of the head's bytes.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int, UInt32

from varl_kernels.head import tile_logits
from varl_kernels.head_gpu import check_tile, row_block, tile_products
from varl_kernels.sampling.noise import gumbel
from varl_kernels.sampling.partials import Partial, merge, of_tile

TILE: Final = 128
TYPES: Final = (jnp.float32, jnp.float32, jnp.float32, jnp.int32, jnp.float32)


def partial(
  hidden: Float[Array, "B D"],
  head: Float[Array, "V D"],
  seeds: UInt32[Array, "B 2"],
  first: Int[Array, ""],
  *,
  bias: Float[Array, "1 V"],
  temperature: float,
  tile: int = 0,
  interpret: bool = False,
) -> Partial:
  """The five scalars [B] of a shard of the vocabulary that begins at `first`.

  Raises:
    ValueError: `tile` is no power of two from 16 on.
  """
  rows, vocab = hidden.shape[0], head.shape[0]
  tile = check_tile(tile or TILE)
  block, tiles = row_block(rows), pl.cdiv(vocab, tile)
  kernel = functools.partial(
    _kernel, block=block, tile=tile, temperature=temperature
  )
  parts = pl.pallas_call(
    kernel,
    # The first axis runs fastest.
    grid=(pl.cdiv(rows, block), tiles),
    out_shape=[jax.ShapeDtypeStruct((rows, tiles), kind) for kind in TYPES],
    compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
    interpret=interpret,
    name="head_sampling",
  )(first.reshape(1), hidden, head, bias, seeds)
  return merge(Partial(*(x.T for x in parts)))


def _kernel(
  first, hidden, head, bias, seeds, *outs, block: int, tile: int, temperature
):
  rows, vocab = hidden.shape[0], head.shape[0]
  row, column = pl.program_id(0) * block, pl.program_id(1) * tile
  products = tile_products(hidden, head, row, column, block=block, tile=tile)
  ids = (column + jnp.arange(tile, dtype=jnp.int32))[None]
  real = (row + jnp.arange(block) < rows)[:, None]
  shift = plgpu.load(
    bias.at[pl.ds(0, 1), pl.ds(column, tile)], mask=ids < vocab, other=0.0
  )
  logits = tile_logits(
    products, shift, ids, vocab=vocab, temperature=temperature
  )

  def seed(word: int) -> Array:
    where = seeds.at[pl.ds(row, block), pl.ds(word, 1)]
    return plgpu.load(where, mask=real, other=jnp.uint32(0))

  ids = ids + first[0]
  noise = gumbel((seed(0), seed(1)), ids.astype(jnp.uint32))
  for out, value in zip(outs, of_tile(logits, noise, ids), strict=True):
    where = out.at[pl.ds(row, block), pl.ds(pl.program_id(1), 1)]
    plgpu.store(where, value, mask=real)
