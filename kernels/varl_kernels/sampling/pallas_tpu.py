"""Sampling on TPUs: one walk over tiles of the vocabulary.

All rows of a block stay in fast memory while the head streams past them, so
that it is read once for up to `MAX_ROWS` rows. With more, it is read once a
block; by then its products take longer than its bytes.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, UInt32

from varl_kernels.head import product, tile_logits, tile_width
from varl_kernels.sampling.noise import gumbel
from varl_kernels.sampling.partials import Partial, join, of_tile

MAX_ROWS: Final = 512
VMEM_BYTES: Final = 64 * 2**20
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
  """Five scalars [B] of a shard of the vocabulary, `first` its first id."""
  (rows, width), vocab = hidden.shape, head.shape[0]
  tile = tile_width(tile, width, head.dtype.itemsize, vocab)
  block = min(rows, MAX_ROWS)
  kernel = functools.partial(
    _kernel, vocab=vocab, tile=tile, temperature=temperature
  )
  found = pl.pallas_call(
    kernel,
    grid=(pl.cdiv(rows, block), pl.cdiv(vocab, tile)),
    in_specs=[
      pl.BlockSpec(memory_space=pltpu.SMEM),
      pl.BlockSpec((block, width), lambda i, j: (i, 0)),
      pl.BlockSpec((tile, width), lambda i, j: (j, 0)),
      pl.BlockSpec((1, tile), lambda i, j: (0, j)),
      pl.BlockSpec((block, 2), lambda i, j: (i, 0)),
    ],
    out_specs=[pl.BlockSpec((block, 1), lambda i, j: (i, 0)) for _ in TYPES],
    out_shape=[jax.ShapeDtypeStruct((rows, 1), kind) for kind in TYPES],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=VMEM_BYTES,
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * rows * vocab * width,
      bytes_accessed=head.nbytes * pl.cdiv(rows, block) + hidden.nbytes,
      transcendentals=3 * rows * vocab,
    ),
    interpret=interpret,
    name="head_sampling",
  )(first.reshape(1), hidden, head, bias, seeds)
  return Partial(*(x[:, 0] for x in found))


def _kernel(
  first, hidden, head, bias, seeds, *outs, vocab: int, tile: int, temperature
):
  step = pl.program_id(1)
  x = hidden[...]
  products = product(x, head[...].astype(x.dtype))
  ids = step * tile + jax.lax.broadcasted_iota(jnp.int32, (1, tile), 1)
  logits = tile_logits(
    products, bias[...], ids, vocab=vocab, temperature=temperature
  )
  ids = ids + first[0]
  pair = seeds[...]
  noise = gumbel((pair[:, :1], pair[:, 1:]), ids.astype(jnp.uint32))
  new = of_tile(logits, noise, ids)

  @pl.when(step == 0)
  def _():
    for out, value in zip(outs, new, strict=True):
      out[...] = value

  @pl.when(step > 0)
  def _():
    both = join(Partial(*(out[...] for out in outs)), new)
    for out, value in zip(outs, both, strict=True):
      out[...] = value
