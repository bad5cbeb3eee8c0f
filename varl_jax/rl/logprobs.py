"""Log-probabilities of given tokens through a chunked LM head.

Only one chunk of positions has its [B, chunk, V] float32 logits alive; the
backward pass computes them again. Sums of the head's gradient stay in float32
whatever the hidden states' type is.

On a mesh the vocabulary is split over `fsdp` and `tensor`, and a chunk's rows
over `data` alone: the chunk's hidden states travel, the head and its gradient
do not. The gradient is summed over `data` once, behind the last chunk.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.sharding import constrain, parts

# Logits alive at once on a device with chunk=0: 2**24 float32, 64 MiB.
MAX_LOGITS: Final = 2**24


def forbidden_mask(forbidden_ids: Sequence[int], vocab_size: int) -> np.ndarray:
  """Bool [V], True for ids that are never sampled."""
  mask = np.zeros(vocab_size, bool)
  mask[list(forbidden_ids)] = True
  return mask


def masked_logits(
  hidden: Float[Array, "*N D"],
  head: Float[Array, "V D"],
  forbidden: Bool[Array, "V"],
  *,
  temperature: float = 1.0,
) -> Float[Array, "*N V"]:
  """hidden head^T / temperature in float32, -inf at forbidden ids.

  Multiplies in the hidden states' type and accumulates in float32. A sampler
  that draws from softmax of this has the same distribution as the trainer.
  """
  exact = jax.lax.Precision.HIGHEST if hidden.dtype == jnp.float32 else None
  logits = jax.lax.dot_general(
    hidden,
    head.astype(hidden.dtype),
    (((hidden.ndim - 1,), (1,)), ((), ())),
    precision=exact,
    preferred_element_type=jnp.float32,
  )
  return jnp.where(forbidden, -jnp.inf, logits / temperature)


def token_logprobs(
  hidden: Float[Array, "B R D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B R"],
  *,
  forbidden: Bool[Array, "V"],
  temperature: float = 1.0,
  chunk: int = 0,
) -> tuple[Float[Array, "B R"], Float[Array, "B R"]]:
  """Log-probability of each target and entropy of its distribution.

  Position r of `hidden` predicts position r of `targets`: the caller shifts.

  Args:
    hidden: [B, R, D], finite everywhere (0 where it does not matter).
    head: [V, D].
    targets: [B, R] ids.
    forbidden: [V], ids taken out before the normalization; -inf as a target.
    temperature: divides the logits.
    chunk: positions of R whose logits are alive at once; 0 picks the most that
      stay under `MAX_LOGITS` values.

  Returns:
    float32 log-probabilities (nats, at most 0) and entropies (nats), each
    [B, R]. Gradients flow through the former only.
  """
  rows, length, _ = hidden.shape
  if chunk <= 0:
    vocab = head.shape[0] // parts("head_vocab", head.shape[0])
    chunk = MAX_LOGITS // (rows // parts("head_rows", rows) * vocab)
  chunk = min(max(chunk, 1), length)
  chunk = -(-length // -(-length // chunk))  # as many chunks, of like size
  padding = -length % chunk
  if padding:
    hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0)))
    targets = jnp.pad(targets, ((0, 0), (0, padding)))
  made: Any = _chunked(hidden, head, targets, forbidden, temperature, chunk)
  found, entropy = made
  return found[:, :length], entropy[:, :length]


def _split(values: Array, chunk: int) -> Array:
  """[B, R, ...] to [R / chunk, B, chunk, ...], rows kept whole."""
  rows, length = values.shape[:2]
  pieces = values.reshape(rows, length // chunk, chunk, *values.shape[2:])
  return jnp.moveaxis(pieces, 1, 0)


def _join(values: Array) -> Array:
  """Undoes `_split`."""
  moved = jnp.moveaxis(values, 0, 1)
  return moved.reshape(moved.shape[0], -1, *moved.shape[3:])


def _lay(
  hidden: Float[Array, "B C D"], head: Float[Array, "V D"]
) -> tuple[Array, Array]:
  """Both where a chunk of the head wants them, the head in hidden's type."""
  return (
    constrain(hidden, "head_rows", None, None),
    constrain(head.astype(hidden.dtype), "head_vocab", None),
  )


def _chunk_logits(
  hidden: Float[Array, "B C D"],
  head: Float[Array, "V D"],
  forbidden: Bool[Array, "V"],
  temperature: float,
) -> Float[Array, "B C V"]:
  hidden, head = _lay(hidden, head)
  logits = masked_logits(hidden, head, forbidden, temperature=temperature)
  return constrain(logits, "head_rows", None, "head_vocab")


def _chosen(targets: Int[Array, "B C"], logits: Array) -> Bool[Array, "B C V"]:
  """True at each target: selecting by it leaves the vocabulary split."""
  ids = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
  return ids == targets[..., None]


def _of_chunk(
  logits: Float[Array, "B C V"], targets: Int[Array, "B C"]
) -> tuple[Array, Array, Array]:
  norm = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.sum(jnp.where(_chosen(targets, logits), logits, 0.0), axis=-1)
  chance = jnp.exp(logits - norm[..., None])
  finite = jnp.where(logits == -jnp.inf, 0.0, logits)
  entropy = norm - jnp.sum(chance * finite, axis=-1)
  return chosen - norm, entropy, norm


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _chunked(hidden, head, targets, forbidden, temperature, chunk):
  return _forward(hidden, head, targets, forbidden, temperature, chunk)[0]


def _forward(hidden, head, targets, forbidden, temperature, chunk):
  # Converted once, before the loop over chunks.
  cast = _lay(hidden, head)[1]
  kept = (hidden, head, targets, forbidden)
  if chunk == hidden.shape[1]:
    logits = _chunk_logits(hidden, cast, forbidden, temperature)
    found, entropy, norm = _of_chunk(logits, targets)
    return (found, entropy), (*kept, norm, logits)

  def step(piece):
    logits = _chunk_logits(piece[0], cast, forbidden, temperature)
    return _of_chunk(logits, piece[1])

  pieces = (_split(hidden, chunk), _split(targets, chunk))
  found, entropy, norm = map(_join, jax.lax.map(step, pieces))
  return (found, entropy), (*kept, norm, None)


def _backward(temperature, chunk, kept, gradients):
  hidden, head, targets, forbidden, norm, logits = kept
  weight = gradients[0] / temperature
  cast = _lay(hidden, head)[1]
  shards = parts("head_rows", len(hidden))
  exact = jax.lax.Precision.HIGHEST if hidden.dtype == jnp.float32 else None
  dot = functools.partial(
    jnp.einsum, precision=exact, preferred_element_type=jnp.float32
  )

  def pull(logits, hidden, targets, norm, weight):
    """Gradients of the hidden states and, a shard of rows, of the head."""
    hidden = _lay(hidden, cast)[0]
    chance = jnp.exp(logits - norm[..., None])
    push = jnp.where(_chosen(targets, logits), 1.0, 0.0) - chance
    push = (push * weight[..., None]).astype(hidden.dtype)
    to_hidden = dot("bcv,vd->bcd", push, cast).astype(hidden.dtype)
    push = push.reshape(shards, -1, *push.shape[1:])
    hidden = hidden.reshape(shards, -1, *hidden.shape[1:])
    to_head = dot("sbcv,sbcd->svd", push, hidden)
    return (
      constrain(to_hidden, "batch", None, None),
      constrain(to_head, "head_rows", "head_vocab", None),
    )

  def finish(to_hidden, to_head):
    return to_hidden, to_head.sum(0).astype(head.dtype), None, None

  if logits is not None:
    return finish(*pull(logits, hidden, targets, norm, weight))

  def step(total, piece):
    hidden, targets, norm, weight = piece
    again = _chunk_logits(hidden, cast, forbidden, temperature)
    to_hidden, to_head = pull(again, hidden, targets, norm, weight)
    return total + to_head, to_hidden

  pieces = tuple(_split(x, chunk) for x in (hidden, targets, norm, weight))
  zero = jnp.zeros((shards, *head.shape), jnp.float32)
  zero = constrain(zero, "head_rows", "head_vocab", None)
  to_head, to_hidden = jax.lax.scan(step, zero, pieces)
  return finish(_join(to_hidden), to_head)


_chunked.defvjp(_forward, _backward)
