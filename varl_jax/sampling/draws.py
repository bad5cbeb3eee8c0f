"""From hidden states to tokens: the one place where randomness enters.

The token at a position is the arg-max of (logits / T) plus Gumbel noise drawn
from the key fold_in(seed, step, task, sample, position), so it does not depend
on what else is in the batch, on the batch's order, on n, or on a restart (up to
rounding of the logits, which may differ between batch shapes by some 1e-6).

Departure from plain sampling: the logits of forbidden ids are minus infinity
*before* the normalization, so a recorded log-probability is an entry of
log softmax(where(forbidden, -inf, logits / T)). The trainer has to do the same,
which is why both take their logits from `varl_kernels.head`.
There is no top-k or top-p: the behaviour policy is the policy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32
from varl_kernels.backends import choose
from varl_kernels.head import masked_logits
from varl_kernels.sampling.api import sample, sample_sharded
from varl_kernels.sampling.noise import gumbel

from varl_jax.models.sharding import axes_of, mesh_in_use, mesh_sizes, spec


class Rows(NamedTuple):
  """How each slot draws its next token.

  Attributes:
    keys: of (seed, step, task, sample).
    position: of the token in its answer.
    left: tokens still to draw.
    early: of these, the first ones that no stop id may be among.
    temperature: T; at 0 the likeliest token, its log-probability that at T = 1.
    stops: stop ids of the request, -1 where there are fewer.
  """

  keys: UInt32[Array, "G n 2"]
  position: Int[Array, "G n"]
  left: Int[Array, "G n"]
  early: Int[Array, "G n"]
  temperature: Float[Array, "G n"]
  stops: Int[Array, "G n E"]


def rows_axes() -> Rows:
  """Logical axes of `Rows`."""
  flat: Any = ("batch", "batch")
  wide: Any = ("batch", "batch", None)
  return Rows(wide, flat, flat, flat, flat, wide)


def draw(
  hidden: Float[Array, "G n D"],
  head: Float[Array, "V D"],
  rows: Rows,
  *,
  forbidden: Bool[Array, "V"],
  stop: Bool[Array, "V"],
  temperature: float | None = None,
  allowed: UInt32[Array, "G n W"] | None = None,
) -> tuple[Int[Array, "G n"], Float[Array, "G n"]]:
  """The next token of every row and its log-probability, in nats.

  Args:
    hidden: what the tokens are drawn from.
    head: the output head.
    rows: settings of the rows.
    forbidden: ids that are never drawn.
    stop: ids that end an answer; see `Rows.early`.
    temperature: of all rows where these ask for nothing else: no stop ids of
      their own, nothing early, no mask. Then the sampling kernel draws, where
      the platform has it, and no logits are kept. None for rows that differ.
    allowed: bit i % 32 of word i // 32 says that id i may be drawn; None allows
      all.
  """
  if temperature is not None:
    return _draw_alike(hidden, head, rows, forbidden, temperature)
  greedy = rows.temperature <= 0
  heat = jnp.where(greedy, 1, rows.temperature)[..., None]
  early = (rows.early > 0)[..., None]
  ids = jnp.arange(head.shape[0])
  own = jnp.any(rows.stops[..., None, :] == ids[:, None], axis=-1)
  without = forbidden | (early & (stop | own))
  if allowed is not None:
    words = jnp.take(allowed, ids // 32, axis=-1)
    without |= (words >> (ids % 32).astype(jnp.uint32)) & 1 == 0
  logits = masked_logits(hidden, head, without, temperature=heat)
  seeds = _seeds(rows.keys, rows.position)[..., None]
  noise = gumbel((seeds[..., 0, :], seeds[..., 1, :]), ids.astype(jnp.uint32))
  noisy = logits + jnp.where(greedy[..., None], 0, noise)
  token = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
  chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
  return token, chosen - jax.nn.logsumexp(logits, axis=-1)


def _draw_alike(
  hidden: Float[Array, "G n D"],
  head: Float[Array, "V D"],
  rows: Rows,
  forbidden: Bool[Array, "V"],
  temperature: float,
) -> tuple[Int[Array, "G n"], Float[Array, "G n"]]:
  """`draw` at one temperature, by the kernel of the platform."""
  seeds, mesh = _seeds(rows.keys, rows.position), mesh_in_use()
  options: dict[str, Any] = dict(forbidden=forbidden, temperature=temperature)
  if mesh is None or choose("auto") == "reference":
    return sample(hidden, head, seeds, **options)
  return sample_sharded(
    hidden,
    head,
    seeds,
    mesh=mesh,
    rows=tuple(spec(("batch", "batch"), hidden.shape[:-1], mesh_sizes())),
    vocab=axes_of("vocab", head.shape[0]),
    **options,
  )


def ends(
  token: Int[Array, "G n"], rows: Rows, stop: Bool[Array, "V"]
) -> Bool[Array, "G n"]:
  """Whether a token is the last of its answer."""
  own = jnp.any(rows.stops == token[..., None], axis=-1)
  return stop[token] | own | (rows.left <= 1)


def row_keys(words: UInt32[Array, "... 4"]) -> UInt32[Array, "... 2"]:
  """Keys of (seed, step, task, sample)."""

  def key(word: Array) -> Array:
    made = jax.random.key(word[0])
    for part in word[1:]:
      made = jax.random.fold_in(made, part)
    return jax.random.key_data(made)

  flat = jax.vmap(key)(words.reshape(-1, words.shape[-1]))
  return flat.reshape(*words.shape[:-1], -1)


def _seeds(
  keys: UInt32[Array, "G n 2"], positions: Int[Array, "G n"]
) -> UInt32[Array, "G n 2"]:
  """Of the token at a position of each row."""

  def one(key: Array, position: Array) -> Array:
    made = jax.random.fold_in(jax.random.wrap_key_data(key), position)
    return jax.random.key_data(made)

  return jax.vmap(jax.vmap(one))(keys, positions)
