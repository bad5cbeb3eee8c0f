"""Clipped policy loss as a sum and a count (Appendix E).

The token mean is one fraction: sums and counts add up over micro-batches and
devices, and whoever owns the optimizer step divides once. There is no KL term
and no entropy bonus.

Tokens of constant groups and of one-answer groups stay in the count with
advantage 0, as a plain token mean has them; rows that could not be scored are
out of the mask (`rl.batch`), hence in neither number.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

# exp() of more overflows soon; a ratio this far off is clipped or broken.
MAX_LOG_RATIO: Final = 20.0


def _log_ratio(
  logprobs: Array, old_logprobs: Array, mask: Array
) -> tuple[Array, Array]:
  inside = mask > 0
  # Selecting before the subtraction keeps NaN and -inf out of the gradient.
  new = jnp.where(inside, logprobs, 0.0).astype(jnp.float32)
  old = jnp.where(inside, old_logprobs, 0.0).astype(jnp.float32)
  change = new - jax.lax.stop_gradient(old)
  return jnp.clip(change, -MAX_LOG_RATIO, MAX_LOG_RATIO), inside


def grpo_loss(
  logprobs: Float[Array, "B L"],
  old_logprobs: Float[Array, "B L"],
  advantages: Float[Array, "B"],
  mask: Num[Array, "B L"],
  *,
  clip_ratio: float = 0.2,
  weights: Float[Array, "B L"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Sum over trained tokens of -min(r A, clip(r, 1 - c, 1 + c) A).

  r = exp(logprobs - old_logprobs) a token, A the advantage of its row.

  Args:
    logprobs: [B, L] nats, under the parameters being trained.
    old_logprobs: [B, L] nats, frozen before the step's first update.
    advantages: [B].
    mask: [B, L], above 0 for trained tokens; what the other arguments hold
      elsewhere does not matter, NaN included.
    clip_ratio: c.
    weights: [B, L] constant factors a token, see `importance_weights`.

  Returns:
    The float32 sum and the number of trained tokens; divide once, after adding
    both over all micro-batches.
  """
  change, inside = _log_ratio(logprobs, old_logprobs, mask)
  ratio = jnp.exp(change)
  gain = jnp.where(inside, advantages.astype(jnp.float32)[:, None], 0.0)
  clipped = jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
  objective = jnp.minimum(ratio * gain, clipped * gain)
  if weights is not None:
    kept = jnp.where(inside, weights, 0.0)
    objective *= jax.lax.stop_gradient(kept)
  objective = jnp.where(inside, objective, 0.0)
  return -jnp.sum(objective), jnp.sum(inside, dtype=jnp.float32)


def ratio_sums(
  logprobs: Float[Array, "B L"],
  old_logprobs: Float[Array, "B L"],
  advantages: Float[Array, "B"],
  mask: Num[Array, "B L"],
  *,
  clip_ratio: float = 0.2,
) -> dict[str, Float[Array, ""]]:
  """Sums that describe the step; arguments as in `grpo_loss`.

  Returns:
    `ratio_sum`, `ratio_max` (0 without a trained token) and `clipped_sum`, the
    tokens whose gradient the clip removes.
  """
  change, inside = _log_ratio(logprobs, old_logprobs, mask)
  ratio = jnp.where(inside, jnp.exp(change), 0.0)
  gain = advantages[:, None]
  high = (gain > 0) & (ratio > 1.0 + clip_ratio)
  low = (gain < 0) & (ratio < 1.0 - clip_ratio)
  return {
    "ratio_sum": jnp.sum(ratio),
    "ratio_max": jnp.max(ratio),
    "clipped_sum": jnp.sum(inside & (high | low), dtype=jnp.float32),
  }


def importance_weights(
  trainer_logprobs: Float[Array, "B L"],
  sampler_logprobs: Float[Array, "B L"],
  mask: Num[Array, "B L"],
  *,
  cap: float,
) -> Float[Array, "B L"]:
  """min(p_trainer / p_sampler, cap) a token, a constant; 0 off the mask.

  Corrects for a sampler whose numerics differ from the trainer's. A token at a
  time: a product over a long answer would magnify the drift.
  """
  change, inside = _log_ratio(trainer_logprobs, sampler_logprobs, mask)
  weights = jnp.minimum(jnp.exp(change), cap)
  return jax.lax.stop_gradient(jnp.where(inside, weights, 0.0))
