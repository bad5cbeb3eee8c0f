"""The gated delta rule's decode step on NVIDIA GPUs (Triton).

One program a row, value head and block of columns: the columns of a memory do
not meet, so that each is read into registers once and written once.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

COLUMNS: Final = 32


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
  """`api.delta_decode` on rows and layers, `decay` being e^g.

  Raises:
    ValueError: the keys' width is no power of two.
  """
  rows, heads, group, width = v.shape
  depth = k.shape[-1]
  if depth & (depth - 1):
    raise ValueError(f"The keys' width is a power of two, got {depth}.")
  columns = min(COLUMNS, 1 << (width - 1).bit_length())
  flat = (memory.shape[0], rows, heads * group, depth, width)
  out, new = pl.pallas_call(
    functools.partial(_kernel, group=group, columns=columns),
    grid=(pl.cdiv(width, columns), heads * group, rows),
    out_shape=[
      jax.ShapeDtypeStruct((rows, heads * group, width), jnp.float32),
      jax.ShapeDtypeStruct(flat, jnp.float32),
    ],
    input_output_aliases={6: 1},
    compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
    interpret=interpret,
    name="delta_decode",
  )(
    layer.reshape(1),
    q,
    k,
    v.reshape(rows, heads * group, width),
    decay.reshape(rows, heads * group),
    beta.reshape(rows, heads * group),
    memory.reshape(flat),
  )
  return out.reshape(v.shape), new.reshape(memory.shape)


def _kernel(
  layer, q, k, v, decay, beta, memory, out, new, *, group: int, columns: int
):
  depth, width = memory.shape[-2:]
  head, row = pl.program_id(1), pl.program_id(2)
  start = pl.program_id(0) * columns
  real = (start + jnp.arange(columns) < width)[None]
  one_row, one_head = pl.ds(row, 1), pl.ds(head, 1)
  across = pl.ds(start, columns)

  def vector(ref) -> Array:
    where = ref.at[one_row, pl.ds(head // group, 1), pl.ds(0, depth)]
    return plgpu.load(where).reshape(depth, 1)

  def scalar(ref) -> Array:
    return plgpu.load(ref.at[one_row, one_head])

  place = (pl.ds(layer[0], 1), one_row, one_head, pl.ds(0, depth), across)
  state = plgpu.load(
    memory.at[place], mask=real[None, None, None], other=0.0
  ).reshape(depth, columns)
  value = plgpu.load(
    v.at[one_row, one_head, across], mask=real[None], other=0.0
  ).reshape(1, columns)
  query, key = vector(q), vector(k)
  kept, strength = scalar(decay), scalar(beta)
  by_key = jnp.sum(state * key, axis=0).reshape(1, columns)
  by_query = jnp.sum(state * query, axis=0).reshape(1, columns)
  d = strength * (value - kept * by_key)
  match = jnp.sum(query * key, axis=0).reshape(1, 1)
  read = kept * by_query + match * d
  plgpu.store(
    out.at[one_row, one_head, across],
    read.reshape(1, 1, columns),
    mask=real[None],
  )
  plgpu.store(
    new.at[place],
    (kept * state + key * d).reshape(1, 1, 1, depth, columns),
    mask=jnp.broadcast_to(real[None, None, None], (1, 1, 1, depth, columns)),
  )
