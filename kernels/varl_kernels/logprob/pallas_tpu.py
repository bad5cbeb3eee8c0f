"""Log-probabilities on TPUs: a block of rows meets every tile of the head.

The forward pass alone: with the log-normalizers kept, the backward pass is
three matrix products a chunk, which XLA makes at the rate of the hardware. A
kernel would have to make the logits twice, for the hidden states' gradient and
for the head's.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from varl_kernels.head import product, tile_logits, tile_width
from varl_kernels.logprob.partials import Partial, join, of_tile

MAX_ROWS: Final = 512
VMEM_BYTES: Final = 64 * 2**20


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
  """Four scalars [B] of a shard of the vocabulary, `first` its first id."""
  (rows, width), vocab = hidden.shape, head.shape[0]
  tile = tile_width(tile, width, head.dtype.itemsize, vocab)
  block = min(rows, MAX_ROWS)
  blocks = pl.cdiv(rows, block)
  found = pl.pallas_call(
    functools.partial(_kernel, vocab=vocab, tile=tile, temperature=temperature),
    grid=(blocks, pl.cdiv(vocab, tile)),
    in_specs=[
      pl.BlockSpec(memory_space=pltpu.SMEM),
      pl.BlockSpec((block, width), lambda i, j: (i, 0)),
      pl.BlockSpec((tile, width), lambda i, j: (j, 0)),
      pl.BlockSpec((1, tile), lambda i, j: (0, j)),
      pl.BlockSpec((block, 1), lambda i, j: (i, 0)),
    ],
    out_specs=[pl.BlockSpec((block, 1), lambda i, j: (i, 0))] * 4,
    out_shape=[jax.ShapeDtypeStruct((rows, 1), jnp.float32)] * 4,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=VMEM_BYTES,
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * rows * vocab * width,
      bytes_accessed=head.nbytes * blocks + hidden.nbytes,
      transcendentals=rows * vocab,
    ),
    interpret=interpret,
    name="head_logprob",
  )(first.reshape(1), hidden, head, bias, targets[:, None])
  return Partial(*(x[:, 0] for x in found))


def _kernel(
  first, hidden, head, bias, targets, *outs, vocab: int, tile: int, temperature
):
  step = pl.program_id(1)
  x = hidden[...]
  products = product(x, head[...].astype(x.dtype))
  ids = step * tile + jax.lax.broadcasted_iota(jnp.int32, (1, tile), 1)
  logits = tile_logits(
    products, bias[...], ids, vocab=vocab, temperature=temperature
  )
  # Ids past the end are those of the next shard, whose targets are not ours.
  ids = jnp.where(ids < vocab, ids + first[0], -1)
  new = of_tile(logits, targets[...], ids)

  @pl.when(step == 0)
  def _():
    for out, value in zip(outs, new, strict=True):
      out[...] = value

  @pl.when(step > 0)
  def _():
    both = join(Partial(*(out[...] for out in outs)), new)
    for out, value in zip(outs, both, strict=True):
      out[...] = value
