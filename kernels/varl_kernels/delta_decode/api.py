"""One token of the gated delta rule a row; the memory is read and written once.

    S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q

is, with p = S^T k and s = S^T q of the memory before,

    d = beta (v - e^g p);  o = e^g s + (q . k) d;  S <- e^g S + k d^T.

Letters: B rows, J key heads, r value heads a key head, k and v widths of keys
and values, N layers.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from varl_kernels.backends import choose
from varl_kernels.delta_decode import reference


def delta_decode(
  q: Float[Array, "*B J k"],
  k: Float[Array, "*B J k"],
  v: Float[Array, "*B J r v"],
  g: Float[Array, "*B J r"],
  beta: Float[Array, "*B J r"],
  memory: Float[Array, "*B J r k v"],
  *,
  layer: Int[Array, ""] | None = None,
  backend: str = "auto",
  interpret: bool = False,
) -> tuple[Float[Array, "*B J r v"], Float[Array, "*B J r k v"]]:
  """One step of every row.

  Args:
    q: queries, normalized and scaled.
    k: keys, normalized.
    v: values.
    g: log-decay, at most 0.
    beta: write strength in [0, 1].
    memory: before the token, float32; given away where the caller donates it.
    layer: with it, `memory` leads with an axis of layers and this one is
      stepped in place, so that the others are neither read nor copied.
    backend: see `backends`; `auto` is the platform's.
    interpret: run the kernel step by step on any platform.

  Returns:
    Outputs and the memory after the token, float32.

  Raises:
    ValueError: shapes that do not fit, a memory that is not float32, or see
      `backends.choose`.
  """
  _check(q, k, v, g, beta, memory, stacked=layer is not None)
  backend = choose(backend, interpret=interpret)
  if backend == "reference":
    return reference.delta_decode(q, k, v, g, beta, memory, layer=layer)
  if backend == "tpu":
    from varl_kernels.delta_decode.pallas_tpu import delta_decode as step
  else:
    from varl_kernels.delta_decode.pallas_gpu import delta_decode as step
  batch = q.shape[:-2]
  rows = math.prod(batch)

  def flat(x: Array) -> Array:
    return x.astype(jnp.float32).reshape(rows, *x.shape[len(batch) :])

  layers = memory.shape[:1] if layer is not None else (1,)
  own = memory.reshape(*layers, rows, *v.shape[-3:-1], *memory.shape[-2:])
  which = jnp.int32(0) if layer is None else layer.astype(jnp.int32)
  out, new = step(
    flat(q),
    flat(k),
    flat(v),
    flat(jnp.exp(g)),
    flat(beta),
    own,
    which,
    interpret=interpret,
  )
  return out.reshape(v.shape), new.reshape(memory.shape)


def delta_decode_sharded(
  q: Float[Array, "*B J k"],
  k: Float[Array, "*B J k"],
  v: Float[Array, "*B J r v"],
  g: Float[Array, "*B J r"],
  beta: Float[Array, "*B J r"],
  memory: Float[Array, "*B J r k v"],
  *,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  split: Sequence[str | tuple[str, ...] | None],
  layer: Int[Array, ""] | None = None,
  backend: str = "auto",
  interpret: bool = False,
) -> tuple[Float[Array, "*B J r v"], Float[Array, "*B J r k v"]]:
  """`delta_decode` where rows and heads are split over a mesh.

  Args:
    mesh: its devices.
    split: mesh axes of each axis of *B and of J; their products divide them.

  Raises:
    ValueError: see `delta_decode`.
  """
  _check(q, k, v, g, beta, memory, stacked=layer is not None)
  heads = P(*split)
  stacked = heads if layer is None else P(None, *split)
  which = jnp.int32(0) if layer is None else layer

  def local(q, k, v, g, beta, memory, which):
    return delta_decode(
      q,
      k,
      v,
      g,
      beta,
      memory,
      layer=None if layer is None else which,
      backend=backend,
      interpret=interpret,
    )

  run = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(*(heads,) * 5, stacked, P()),
    out_specs=(heads, stacked),
    check_vma=False,
  )
  return run(q, k, v, g, beta, memory, which)


def _check(q, k, v, g, beta, memory, *, stacked: bool) -> None:
  heads, group, width = v.shape[-3:]
  batch = v.shape[:-3]
  own = memory.shape[1:] if stacked else memory.shape
  fits = (
    q.shape == k.shape == (*batch, heads, k.shape[-1])
    and g.shape == beta.shape == (*batch, heads, group)
    and own == (*batch, heads, group, k.shape[-1], width)
  )
  if not fits:
    raise ValueError(
      f"Shapes that do not fit: q {q.shape}, k {k.shape}, v {v.shape}, g"
      f" {g.shape}, beta {beta.shape}, memory {memory.shape}."
    )
  if memory.dtype != jnp.float32:
    raise ValueError(f"The memory is float32, got {memory.dtype}.")
