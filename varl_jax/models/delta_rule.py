"""The gated delta rule: a linear recurrence with a matrix for its memory.

Per value head, with log-decay g <= 0 and write strength beta in [0, 1]:

    S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q

Letters: B rows, L tokens, J key heads, r value heads a key head, C chunk, k and
v widths of keys and values. Everything here is fp32, the memory S
[..., J, r, k, v] above all.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int
from varl_kernels.backends import choose
from varl_kernels.delta_decode.api import delta_decode, delta_decode_sharded

from varl_jax.models.sharding import mesh_in_use, mesh_sizes, spec

CHUNK: Final = 64
L2_EPS: Final = 1e-6


def delta_rule(
  q: Float[Array, "B L J k"],
  k: Float[Array, "B L J k"],
  v: Float[Array, "B L J r v"],
  g: Float[Array, "B L J r"],
  beta: Float[Array, "B L J r"],
  memory: Float[Array, "B J r k v"] | None = None,
  *,
  real: Bool[Array, "B L"] | None = None,
  chunk: int = CHUNK,
) -> tuple[Float[Array, "B L J r v"], Float[Array, "B J r k v"]]:
  """The rule over whole rows, `chunk` tokens at a time.

  Within a chunk, with G the running sum of g, the d solve the triangular system
  d_i + beta_i sum_{j<i} e^(G_i - G_j) (k_i . k_j) d_j = beta_i (v_i - e^G_i S^T
  k_i), S being the memory before the chunk. It is solved for all chunks at
  once, for the v and for the k separately; only S goes from chunk to chunk.

  Args:
    memory: before the first token; None is zero.
    real: tokens that count; the others, wherever they stand, leave the memory
      as it is, and their outputs mean nothing.
    chunk: the result does not depend on it.

  Returns:
    Outputs, and the memory after the last token.
  """
  rows, length = q.shape[:2]
  if real is not None:
    g = jnp.where(real[..., None, None], g, 0)
    beta = jnp.where(real[..., None, None], beta, 0)
  q, k, v, g, beta = (
    _chunks(x.astype(jnp.float32), chunk) for x in (q, k, v, g, beta)
  )
  total = jnp.moveaxis(jnp.cumsum(g, axis=2), 2, -1)  # [N, B, J, r, C]
  beta = jnp.moveaxis(beta, 2, -1)
  lower = jnp.tril(jnp.ones((chunk, chunk), bool))
  # Above the diagonal the differences are positive and may overflow in exp.
  gap = jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf)
  decay = jnp.exp(gap)
  seen = _einsum("nbcjk,nbmjk->nbjcm", q, k)[:, :, :, None] * decay
  overlap = _einsum("nbcjk,nbmjk->nbjcm", k, k)[:, :, :, None] * decay
  new = beta[..., None] * jnp.moveaxis(v, 2, -2)
  keys = jnp.moveaxis(k, 2, -2)[:, :, :, None]
  old = (beta * jnp.exp(total))[..., None] * keys
  solved = jax.lax.linalg.triangular_solve(
    jnp.tril(beta[..., None] * overlap, -1),
    jnp.concatenate((new, old), axis=-1),
    left_side=True,
    lower=True,
    unit_diagonal=True,
  )
  new, old = jnp.split(solved, (v.shape[-1],), axis=-1)
  if memory is None:
    heads = (*v.shape[3:5], k.shape[-1], v.shape[-1])
    memory = jnp.zeros((rows, *heads), jnp.float32)
  scanned = jax.checkpoint(_one_chunk, prevent_cse=False)
  memory, out = jax.lax.scan(scanned, memory, (q, k, total, seen, new, old))
  out = jnp.moveaxis(out, (0, -2), (1, 2))  # [B, N, C, J, r, v]
  return out.reshape(rows, -1, *out.shape[3:])[:, :length], memory


def _one_chunk(
  memory: Float[Array, "B J r k v"], parts: tuple[Array, ...]
) -> tuple[Array, Float[Array, "B J r C v"]]:
  q, k, total, seen, new, old = parts
  d = new - _einsum("bjrck,bjrkv->bjrcv", old, memory)
  read = _einsum("bcjk,bjrkv->bjrcv", q, memory)
  out = jnp.exp(total)[..., None] * read
  out = out + _einsum("bjrcm,bjrmv->bjrcv", seen, d)
  end = total[..., -1:]
  kept = jnp.exp(end)[..., None] * memory
  left = jnp.exp(end - total)[..., None] * d
  return kept + _einsum("bcjk,bjrcv->bjrkv", k, left), out


def delta_step(
  q: Float[Array, "*B J k"],
  k: Float[Array, "*B J k"],
  v: Float[Array, "*B J r v"],
  g: Float[Array, "*B J r"],
  beta: Float[Array, "*B J r"],
  memory: Float[Array, "*B J r k v"],
  *,
  layer: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "*B J r v"], Float[Array, "*B J r k v"]]:
  """The rule for one token a row, see `varl_kernels.delta_decode`.

  With `layer` the memory is that of all layers, and one of them is stepped.
  """
  mesh, own = mesh_in_use(), (q, k, v, g, beta, memory)
  if mesh is None or choose("auto") == "reference":
    return delta_decode(*own, layer=layer)
  names = (*("batch",) * (q.ndim - 2), "delta_k_heads")
  split = tuple(spec(names, q.shape[:-1], mesh_sizes()))
  return delta_decode_sharded(*own, mesh=mesh, split=split, layer=layer)


def unit(x: Float[Array, "*B k"]) -> Float[Array, "*B k"]:
  """x / sqrt(sum(x^2) + 1e-6) in fp32."""
  wide = x.astype(jnp.float32)
  square = jnp.sum(wide * wide, axis=-1, keepdims=True)
  return wide * jax.lax.rsqrt(square + L2_EPS)


class CausalConv(nn.Module):
  """silu of a depthwise causal convolution over the last `width` tokens.

  The kernel is [width, heads, w]; its last entry meets the newest token.
  """

  width: int
  dtype: Any

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "B L heads w"],
    columns: Float[Array, "B L past heads w"] | None,
    ends: Int[Array, " B"] | None,
  ) -> tuple[Float[Array, "B L heads w"], Array]:
    """Runs rows from their start, or one token a row after its columns.

    Args:
      x: zero at padding. With columns, B and L are prompts and samples.
      columns: the last width - 1 inputs of each row, fp32.
      ends: one past each row's last real token, None for L.

    Returns:
      The activations and the row's last width - 1 inputs, in fp32.
    """
    shape = (self.width, *x.shape[2:])
    init = nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
    kernel = self.param("kernel", init, shape).astype(jnp.float32)
    wide, past = x.astype(jnp.float32), self.width - 1
    if columns is not None:
      window = jnp.concatenate((columns, wide[:, :, None]), axis=2)
      y, last = jnp.sum(window * kernel, axis=2), window[:, :, 1:]
    else:
      padded = jnp.pad(wide, ((0, 0), (past, 0), (0, 0), (0, 0)))
      length = x.shape[1]
      shifted = (padded[:, i : i + length] for i in range(self.width))
      y = sum(part * tap for part, tap in zip(shifted, kernel, strict=True))
      where = length if ends is None else ends[:, None]
      rows = jnp.arange(len(x))[:, None]
      last = padded[rows, where + jnp.arange(past)]
    return nn.silu(y).astype(self.dtype), last


def _chunks(x: Array, chunk: int) -> Array:
  """[B, L, ...] to [N, B, C, ...], padded with zeros."""
  pad = [(0, 0)] * x.ndim
  pad[1] = (0, -x.shape[1] % chunk)
  x = jnp.pad(x, pad)
  return jnp.moveaxis(x.reshape(len(x), -1, chunk, *x.shape[2:]), 1, 0)


def _einsum(equation: str, left: Array, right: Array) -> Array:
  return jnp.einsum(equation, left, right, precision=jax.lax.Precision.HIGHEST)
