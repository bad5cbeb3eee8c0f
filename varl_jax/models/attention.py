"""Grouped-query attention: over whole sequences, and of one token to a cache.

Letters: B rows, G prompts, n samples a prompt, L tokens, P prompt slots, R
answer slots, K key-value heads, r query heads a key-value head, H head width.
Scores and softmax are fp32.
"""

import functools
import itertools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.layers import einsum, einsum32

# Longest row whose [L, L] scores are made at once; longer ones go by blocks of
# queries, whose scores are made again in the backward pass.
MAX_WHOLE: Final = 1024
QUERY_BLOCK: Final = 256
# Queries of a band see the keys up to the band's end, so that with four bands
# 5/8 of the score matrix is computed, of which half would do.
BANDS: Final = 4


class KeyValues(NamedTuple):
  """Rotated keys and values, each [..., K, slots, H] or [..., slots, K, H]."""

  k: Array
  v: Array


class PromptAndAnswer(NamedTuple):
  """What a decoding layer attends to besides the new token.

  Attributes:
    prompt: keys and values [G, K, P, H], shared by a prompt's samples.
    answer: keys and values [G, n, K, R, H].
  """

  prompt: KeyValues
  answer: KeyValues


def attend(
  q: Float[Array, "B L heads H"],
  k: Float[Array, "B L K H"],
  v: Float[Array, "B L K H"],
  past: PromptAndAnswer | None,
  prompt_lengths: Int[Array, " B"] | None,
  step: Int[Array, ""] | None,
  real: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L heads H"]:
  """`attend_cached` where there is a past, else `attend_causal`."""
  grouped = q.reshape(*k.shape[:-1], -1, q.shape[-1])
  if past is None:
    mixed = attend_causal(grouped, k, v, real)
  else:
    assert prompt_lengths is not None and step is not None
    mixed = attend_cached(grouped, k, v, past, prompt_lengths, step)
  return mixed.reshape(q.shape)


def attend_causal(
  q: Float[Array, "B L K r H"],
  k: Float[Array, "B L K H"],
  v: Float[Array, "B L K H"],
  real: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L K r H"]:
  """Softmax attention of every token to itself and those before it.

  Args:
    real: tokens that others may attend to; None for all, which is right for
      rows padded on the right. A padding token sees itself.
  """
  length = q.shape[1]
  if length <= MAX_WHOLE:
    return _attend_from(q, k, v, real, jnp.arange(length))
  blocks = -(-length // QUERY_BLOCK)
  pad = blocks * QUERY_BLOCK - length
  q = jnp.pad(q, ((0, 0), (0, pad), (0, 0), (0, 0), (0, 0)))
  q = jnp.moveaxis(q.reshape(len(q), blocks, QUERY_BLOCK, *q.shape[2:]), 1, 0)
  parts = []
  ends = sorted({-(-blocks * band // BANDS) for band in range(BANDS + 1)})
  for first, last in itertools.pairwise(ends):
    keys = min(last * QUERY_BLOCK, length)
    seen = None if real is None else real[:, :keys]
    whole = (k[:, :keys], v[:, :keys], seen)
    where = jnp.arange(first * QUERY_BLOCK, last * QUERY_BLOCK)
    where = where.reshape(-1, QUERY_BLOCK)
    parts.append(_by_block(q[first:last], whole, where))
  mixed = jnp.moveaxis(jnp.concatenate(parts), 0, 1)
  return mixed.reshape(len(mixed), -1, *mixed.shape[3:])[:, :length]


def _by_block(q: Array, whole: tuple[Any, ...], where: Array) -> Array:
  @functools.partial(jax.checkpoint, prevent_cse=False)
  def block(piece: tuple[Array, Array]) -> Array:
    k, v, real = whole
    return _attend_from(piece[0], k, v, real, piece[1])

  return jax.lax.map(block, (q, where))


def _attend_from(
  q: Float[Array, "B C K r H"],
  k: Float[Array, "B M K H"],
  v: Float[Array, "B M K H"],
  real: Bool[Array, "B M"] | None,
  positions: Int[Array, " C"],
) -> Float[Array, "B C K r H"]:
  """Attention of the queries at `positions` to keys at 0 .. M - 1."""
  rows, queries, kv_heads, shared, width = q.shape
  keys = jnp.arange(k.shape[1])
  allowed = keys <= positions[:, None]
  if real is not None:
    itself = keys == positions[:, None]
    allowed = (allowed & real[:, None, :]) | itself
    allowed = allowed[:, None, None]
  # Queries of a key's heads are rows of one matrix [r C, H].
  q = q.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, width)
  allowed = jnp.broadcast_to(
    allowed, (*allowed.shape[:-2], shared, *allowed.shape[-2:])
  )
  allowed = allowed.reshape(*allowed.shape[:-3], -1, allowed.shape[-1])
  mixed = _mixed(q, k.swapaxes(1, 2), v.swapaxes(1, 2), allowed)
  mixed = mixed.reshape(rows, kv_heads, shared, queries, width)
  return mixed.transpose(0, 3, 1, 2, 4)


@jax.custom_vjp
def _mixed(
  q: Float[Array, "B K C H"],
  k: Float[Array, "B K M H"],
  v: Float[Array, "B K M H"],
  allowed: Bool[Array, "*B C M"],
) -> Float[Array, "B K C H"]:
  """softmax(where(allowed, q k^T / sqrt(H), -inf)) v.

  Its gradients never turn a matrix [C, M] round: those of k and v are made as
  [H, M], from the narrow factor's side.
  """
  return _mix(q, k, v, allowed)[0]


def _mix(q: Array, k: Array, v: Array, allowed: Array) -> tuple[Array, Any]:
  scores = einsum32("bkch,bkmh->bkcm", q, k) * q.shape[-1] ** -0.5
  weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
  mixed = einsum("bkcm,bkmh->bkch", weights.astype(v.dtype), v)
  return mixed, (q, k, v, weights)


def _mix_backward(kept: Any, slope: Array) -> tuple[Any, ...]:
  q, k, v, weights = kept
  to_v = einsum("bkch,bkcm->bkhm", slope, weights.astype(v.dtype))
  push = einsum32("bkch,bkmh->bkcm", slope, v)
  push = weights * (push - jnp.sum(push * weights, axis=-1, keepdims=True))
  push = (push * q.shape[-1] ** -0.5).astype(q.dtype)
  to_q = einsum("bkcm,bkmh->bkch", push, k)
  to_k = einsum("bkch,bkcm->bkhm", q, push)
  return to_q, to_k.swapaxes(2, 3), to_v.swapaxes(2, 3), None


_mixed.defvjp(_mix, _mix_backward)


def attend_cached(
  q: Float[Array, "G n K r H"],
  k: Float[Array, "G n K H"],
  v: Float[Array, "G n K H"],
  past: PromptAndAnswer,
  prompt_lengths: Int[Array, " G"],
  step: Int[Array, ""],
) -> Float[Array, "G n K r H"]:
  """Attention of one new token a row to its prompt, its answer and itself.

  `step` answer slots are filled; the new key is not among them. One softmax
  runs over the three parts.
  """
  prompt, answer = past
  slots_p, slots_a = prompt.k.shape[-2], answer.k.shape[-2]
  on_prompt = einsum32("gnkrh,gkph->gnkrp", q, prompt.k)
  in_prompt = jnp.arange(slots_p) < prompt_lengths[:, None, None, None, None]
  on_answer = einsum32("gnkrh,gnkah->gnkra", q, answer.k)
  in_answer = jnp.arange(slots_a) < step
  on_self = einsum32("gnkrh,gnkh->gnkr", q, k)[..., None]
  parts = (
    jnp.where(in_prompt, on_prompt, -jnp.inf),
    jnp.where(in_answer, on_answer, -jnp.inf),
    on_self,
  )
  scores = jnp.concatenate(parts, axis=-1) * q.shape[-1] ** -0.5
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  to_prompt, to_answer, to_self = jnp.split(
    weights, (slots_p, slots_p + slots_a), axis=-1
  )
  return (
    einsum("gnkrp,gkph->gnkrh", to_prompt, prompt.v)
    + einsum("gnkra,gnkah->gnkrh", to_answer, answer.v)
    + to_self * v[..., None, :]
  )


def empty_answer(prompt: KeyValues, *, samples: int, slots: int) -> KeyValues:
  """Room [N, G, n, K, slots, H] for the answers of prompts [N, G, K, P, H]."""
  layers, groups, kv_heads, _, width = prompt.k.shape
  shape = (layers, groups, samples, kv_heads, slots, width)
  return KeyValues(*(jnp.zeros(shape, part.dtype) for part in prompt))


def append(answer: KeyValues, new: KeyValues, step: Array) -> KeyValues:
  """Writes keys and values [N, G, n, K, H] into slot `step` of the answers."""

  def put(old: Array, part: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(
      old, part[..., None, :], step, axis=4
    )

  return KeyValues(put(answer.k, new.k), put(answer.v, new.v))
