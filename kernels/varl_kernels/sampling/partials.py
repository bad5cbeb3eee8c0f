"""Five scalars a row, which say of a part of the vocabulary all that counts.

Parts are tiles of the vocabulary in the kernels, shards of it on a mesh. Their
logits are never put together.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Partial(NamedTuple):
  """Of a part of the vocabulary; all fields have the same shape.

  Attributes:
    peak: largest logit.
    total: sum of exp(logit - peak), 0 where all logits are -inf.
    score: largest sum of logit and noise.
    token: its id, int32; the smallest of equals.
    logit: its logit.
  """

  peak: Float[Array, "..."]
  total: Float[Array, "..."]
  score: Float[Array, "..."]
  token: Int[Array, "..."]
  logit: Float[Array, "..."]


def of_tile(
  logits: Float[Array, "B T"],
  noise: Float[Array, "B T"],
  ids: Int[Array, "1 T"],
) -> Partial:
  """The scalars [B, 1] of a tile; `ids` ascend."""
  peak = jnp.max(logits, axis=1, keepdims=True)
  total = jnp.sum(jnp.exp(logits - _finite(peak)), axis=1, keepdims=True)
  noisy = logits + noise
  score = jnp.max(noisy, axis=1, keepdims=True)
  ids = jnp.broadcast_to(ids, logits.shape)
  # The last id where nothing equals the best, which is not a number then.
  other = jnp.max(ids, axis=1, keepdims=True)
  token = jnp.min(jnp.where(noisy == score, ids, other), axis=1, keepdims=True)
  logit = jnp.max(
    jnp.where(ids == token, logits, -jnp.inf), axis=1, keepdims=True
  )
  return Partial(peak, total, score, token, logit)


def join(left: Partial, right: Partial) -> Partial:
  """Of two parts together; equal scores go to `left`."""
  peak = jnp.maximum(left.peak, right.peak)
  base = _finite(peak)
  total = left.total * jnp.exp(left.peak - base) + right.total * jnp.exp(
    right.peak - base
  )
  better = right.score > left.score
  return Partial(
    peak,
    total,
    jnp.where(better, right.score, left.score),
    jnp.where(better, right.token, left.token),
    jnp.where(better, right.logit, left.logit),
  )


def merge(parts: Partial) -> Partial:
  """Of all parts along the first axis; equal scores go to the first."""
  peak = jnp.max(parts.peak, axis=0)
  total = jnp.sum(parts.total * jnp.exp(parts.peak - _finite(peak)), axis=0)
  best = jnp.argmax(parts.score, axis=0)[None]

  def chosen(values: Array) -> Array:
    return jnp.take_along_axis(values, best, axis=0)[0]

  return Partial(
    peak, total, chosen(parts.score), chosen(parts.token), chosen(parts.logit)
  )


def drawn(whole: Partial) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
  """Token and its log-probability (nats, at most 0) of a whole vocabulary."""
  logprob = whole.logit - whole.peak - jnp.log(whole.total)
  return whole.token, jnp.minimum(logprob, 0.0)


def _finite(peak: Array) -> Array:
  """The peak, or 0 where there is none: -inf less -inf is not a number."""
  return jnp.where(peak == -jnp.inf, 0.0, peak)
