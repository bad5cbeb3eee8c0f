"""From hidden states to tokens: the one place where randomness enters.

The token at a position is the arg-max of (logits / T) plus Gumbel noise drawn
from the key fold_in(seed, step, task, sample, position), so it does not depend
on what else is in the batch, on the batch's order, on n, or on a restart (up to
rounding of the logits, which may differ between batch shapes by some 1e-6).

Departure from plain sampling: the logits of forbidden ids are minus infinity
*before* the normalization, so a recorded log-probability is an entry of
log softmax(where(forbidden, -inf, logits / T)). The trainer has to do the same,
which is why both take their logits from `rl.logprobs.masked_logits`.
There is no top-k or top-p: the behaviour policy is the policy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from varl_jax.rl.logprobs import masked_logits


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
  allowed: UInt32[Array, "G n W"] | None = None,
) -> tuple[Int[Array, "G n"], Float[Array, "G n"]]:
  """The next token of every row and its log-probability, in nats.

  Args:
    hidden: what the tokens are drawn from.
    head: the output head.
    rows: settings of the rows.
    forbidden: ids that are never drawn.
    stop: ids that end an answer; see `Rows.early`.
    allowed: bit i % 32 of word i // 32 says that id i may be drawn; None allows
      all.
  """
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
  noise = gumbel(rows.keys, rows.position, head.shape[0])
  noisy = logits + jnp.where(greedy[..., None], 0, noise)
  token = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
  chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
  return token, chosen - jax.nn.logsumexp(logits, axis=-1)


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


def gumbel(
  keys: UInt32[Array, "G n 2"], positions: Int[Array, "G n"], vocab: int
) -> Float[Array, "G n V"]:
  """Gumbel noise, each entry's counter being its vocabulary id.

  The uniforms use all 32 bits and are taken near 0 (log1p), where fp32 is
  fine: the right tail reaches 22.9 instead of the 16.6 of 23-bit uniforms.
  """

  def row(key: Array, position: Array) -> Array:
    key = jax.random.fold_in(jax.random.wrap_key_data(key), position)
    bits = jax.random.bits(key, (vocab,), jnp.uint32)
    uniform = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    return -jnp.log(-jnp.log1p(-uniform))

  return jax.vmap(jax.vmap(row))(keys, positions)
