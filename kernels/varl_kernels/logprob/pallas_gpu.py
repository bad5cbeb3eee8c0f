"""Log-probabilities on NVIDIA GPUs (Triton): a program a tile and row block.

Each leaves four scalars a row, which XLA merges. The forward pass alone, as on
TPUs.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from varl_kernels.head import tile_logits
from varl_kernels.head_gpu import check_tile, row_block, tile_products
from varl_kernels.logprob.partials import Partial, merge, of_tile

TILE: Final = 128


def partial(
  hidden: Float[Array, "B D"],
  head: Float[Array, "V D"],
  targets: Int[Array, " B"],
  first: Int[Array, ""],
  *,
  bias: Float[Array, "1 V"],
  temperature: float,
  tile: int = 0,
  interpret: bool = False,
) -> Partial:
  """The four scalars [B] of a shard of the vocabulary that begins at `first`.

  Raises:
    ValueError: `tile` is no power of two from 16 on.
  """
  rows, vocab = hidden.shape[0], head.shape[0]
  tile = check_tile(tile or TILE)
  block, tiles = row_block(rows), pl.cdiv(vocab, tile)
  parts = pl.pallas_call(
    functools.partial(_kernel, block=block, tile=tile, temperature=temperature),
    # The first axis runs fastest.
    grid=(pl.cdiv(rows, block), tiles),
    out_shape=[jax.ShapeDtypeStruct((rows, tiles), jnp.float32)] * 4,
    compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
    interpret=interpret,
    name="head_logprob",
  )(first.reshape(1), hidden, head, bias, targets[:, None])
  return merge(Partial(*(x.T for x in parts)))


def _kernel(
  first, hidden, head, bias, targets, *outs, block: int, tile: int, temperature
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
  wanted = plgpu.load(
    targets.at[pl.ds(row, block), pl.ds(0, 1)], mask=real, other=0
  )
  # Ids past the end are those of the next shard, whose targets are not ours.
  ids = jnp.where(ids < vocab, ids + first[0], -1)
  for out, value in zip(outs, of_tile(logits, wanted, ids), strict=True):
    where = out.at[pl.ds(row, block), pl.ds(pl.program_id(1), 1)]
    plgpu.store(where, value, mask=real)
