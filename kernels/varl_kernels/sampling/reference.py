"""Sampling in plain XLA, with the logits of all rows in memory."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from varl_kernels.head import masked_logits
from varl_kernels.sampling.noise import gumbel
from varl_kernels.sampling.partials import Partial, of_tile


def sample(
  hidden: Float[Array, "*B D"],
  head: Float[Array, "V D"],
  seeds: UInt32[Array, "*B 2"],
  *,
  forbidden: Bool[Array, "V"] | None = None,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
) -> tuple[Int[Array, "*B"], Float[Array, "*B"]]:
  """`api.sample`, and for evaluation with less of the distribution.

  What is cut off is no policy to train: its log-probabilities are not those of
  the model.

  Args:
    top_k: ids that stay, the likeliest; 0 for all.
    top_p: of the likeliest ids those stay that are needed for this chance.
    min_p: ids stay whose chance is at least this share of the likeliest's.

  Returns:
    Tokens, and log-probabilities under the distribution that was drawn from.
  """
  logits = _logits(hidden, head, forbidden, temperature)
  if top_k or top_p < 1 or min_p:
    logits = _cut(logits, top_k, top_p, min_p)
  noise = gumbel((seeds[..., :1], seeds[..., 1:]), _ids(head))
  token = jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
  chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
  return token, chosen - jax.nn.logsumexp(logits, axis=-1)


def partial(
  hidden: Float[Array, "B D"],
  head: Float[Array, "V D"],
  seeds: UInt32[Array, "B 2"],
  first: Int[Array, ""],
  *,
  forbidden: Bool[Array, "V"] | None,
  temperature: float,
) -> Partial:
  """Five scalars [B] of a shard of the vocabulary, `first` its first id."""
  logits = _logits(hidden, head, forbidden, temperature)
  ids = _ids(head)[None] + first.astype(jnp.uint32)
  noise = gumbel((seeds[:, :1], seeds[:, 1:]), ids)
  found = of_tile(logits, noise, ids.astype(jnp.int32))
  return Partial(*(x[:, 0] for x in found))


def _ids(head: Array) -> UInt32[Array, " V"]:
  return jnp.arange(head.shape[0], dtype=jnp.uint32)


def _logits(
  hidden: Array, head: Array, forbidden: Array | None, temperature: float
) -> Float[Array, "*B V"]:
  if forbidden is None:
    forbidden = jnp.zeros(head.shape[0], bool)
  return masked_logits(hidden, head, forbidden, temperature=temperature)


def _cut(
  logits: Float[Array, "*B V"], top_k: int, top_p: float, min_p: float
) -> Float[Array, "*B V"]:
  """-inf at the ids that do not stay; the likeliest always does."""
  ranked = -jnp.sort(-logits, axis=-1)
  floor = jnp.full_like(ranked[..., :1], -jnp.inf)
  if top_k:
    last = min(top_k, logits.shape[-1]) - 1
    floor = jnp.maximum(floor, ranked[..., last : last + 1])
  if top_p < 1:
    chance = jax.nn.softmax(ranked, axis=-1)
    needed = jnp.cumsum(chance, axis=-1) - chance < top_p
    needed = needed.at[..., 0].set(True)
    lowest = jnp.min(jnp.where(needed, ranked, jnp.inf), -1, keepdims=True)
    floor = jnp.maximum(floor, lowest)
  if min_p:
    floor = jnp.maximum(floor, ranked[..., :1] + jnp.log(min_p))
  return jnp.where(logits < floor, -jnp.inf, logits)
