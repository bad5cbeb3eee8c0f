"""Four scalars a row, which say of a part of the vocabulary all that counts."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Partial(NamedTuple):
  """Of a part of the vocabulary; all fields have the same shape.

  Attributes:
    peak: largest logit.
    total: sum of exp(logit - peak), 0 where all logits are -inf.
    spread: sum of exp(logit - peak) times (logit - peak).
    chosen: the target's logit; 0 where the target lies in another part.
  """

  peak: Float[Array, "..."]
  total: Float[Array, "..."]
  spread: Float[Array, "..."]
  chosen: Float[Array, "..."]


def of_tile(
  logits: Float[Array, "B T"],
  targets: Int[Array, "B 1"],
  ids: Int[Array, "1 T"],
) -> Partial:
  """The scalars [B, 1] of a tile."""

  def over(values: Array) -> Array:
    return jnp.sum(values, axis=1, keepdims=True)

  peak = jnp.max(logits, axis=1, keepdims=True)
  above = logits - _finite(peak)
  chance = jnp.exp(above)
  spread = over(jnp.where(logits == -jnp.inf, 0.0, chance * above))
  chosen = over(jnp.where(ids == targets, logits, 0.0))
  return Partial(peak, over(chance), spread, chosen)


def join(left: Partial, right: Partial) -> Partial:
  """Of two parts together."""
  peak = jnp.maximum(left.peak, right.peak)
  one, other = _moved(left, peak), _moved(right, peak)
  return Partial(
    peak, one[0] + other[0], one[1] + other[1], left.chosen + right.chosen
  )


def merge(parts: Partial) -> Partial:
  """Of all parts along the first axis."""
  peak = jnp.max(parts.peak, axis=0)
  total, spread = _moved(parts, peak)
  return Partial(
    peak, total.sum(axis=0), spread.sum(axis=0), parts.chosen.sum(axis=0)
  )


def measures(
  whole: Partial,
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
  """Log-probability, entropy and log-normalizer of a whole vocabulary."""
  size = jnp.log(whole.total)
  norm = whole.peak + size
  found = jnp.minimum(whole.chosen - whole.peak - size, 0.0)
  return found, size - whole.spread / whole.total, norm


def _moved(part: Partial, peak: Array) -> tuple[Array, Array]:
  """`total` and `spread` with respect to another peak."""
  by = jnp.where(part.peak == -jnp.inf, 0.0, part.peak - _finite(peak))
  scale = jnp.exp(by)
  return part.total * scale, scale * (part.spread + by * part.total)


def _finite(peak: Array) -> Array:
  """The peak, or 0 where there is none: -inf less -inf is not a number."""
  return jnp.where(peak == -jnp.inf, 0.0, peak)
