"""The gated delta rule's decode step on TPUs: one read and one write.

Eight key heads of a row and all their value heads at a time. The products are
made by the vector unit: a 128 x 128 memory in float32 would keep the matrix
unit five times as long busy as the memory's transport takes.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

HEADS: Final = 8
VMEM_BYTES: Final = 48 * 2**20


def delta_decode(
  q: Float[Array, "B J k"],
  k: Float[Array, "B J k"],
  v: Float[Array, "B J r v"],
  decay: Float[Array, "B J r"],
  beta: Float[Array, "B J r"],
  memory: Float[Array, "N B J r k v"],
  layer: Int[Array, ""],
  *,
  interpret: bool = False,
) -> tuple[Float[Array, "B J r v"], Float[Array, "N B J r k v"]]:
  """`api.delta_decode` on rows and layers, `decay` being e^g."""
  rows, heads, group, width = v.shape
  depth = k.shape[-1]
  block = HEADS if heads % HEADS == 0 else heads

  def row(*tail: int):
    zeros = (0,) * (len(tail))
    return pl.BlockSpec((1, block, *tail), lambda b, j, _: (b, j, *zeros))

  place = pl.BlockSpec(
    (1, 1, block, group, depth, width),
    lambda b, j, layer: (layer[0], b, j, 0, 0, 0),
  )
  size = rows * heads * group * depth * width
  out, new = pl.pallas_call(
    _kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(rows, heads // block),
      in_specs=[
        row(depth),
        row(depth),
        row(group, width),
        row(group),
        row(group),
        place,
      ],
      out_specs=[row(group, width), place],
    ),
    out_shape=[
      jax.ShapeDtypeStruct(v.shape, jnp.float32),
      jax.ShapeDtypeStruct(memory.shape, jnp.float32),
    ],
    # Counted with the prefetched layer in front.
    input_output_aliases={6: 1},
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel"),
      vmem_limit_bytes=VMEM_BYTES,
    ),
    cost_estimate=pl.CostEstimate(
      flops=7 * size,
      bytes_accessed=8 * size + 4 * (2 * q.size + 2 * v.size + 2 * beta.size),
      transcendentals=0,
    ),
    interpret=interpret,
    name="delta_decode",
  )(layer.reshape(1), q, k, v, decay, beta, memory)
  return out, new


def _kernel(layer, q, k, v, decay, beta, memory, out, new):
  del layer  # Read by the index maps.
  block, group = v.shape[1:3]
  queries, keys = q[0], k[0]
  match = jnp.sum(queries * keys, axis=1, keepdims=True)
  # A column a head, to be spread over the values' lanes.
  queries, keys = queries.T, keys.T
  decays, betas = decay[0], beta[0]
  for j in range(block):
    query, key = queries[:, j : j + 1], keys[:, j : j + 1]
    for i in range(group):
      state = memory[0, 0, j, i]
      kept = decays[j : j + 1, i : i + 1]
      by_key = jnp.sum(state * key, axis=0, keepdims=True)
      by_query = jnp.sum(state * query, axis=0, keepdims=True)
      value = v[0, j, i : i + 1]
      d = betas[j : j + 1, i : i + 1] * (value - kept * by_key)
      out[0, j, i : i + 1] = kept * by_query + match[j : j + 1] * d
      new[0, 0, j, i] = kept * state + key * d
