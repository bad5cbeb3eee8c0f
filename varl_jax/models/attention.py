"""Grouped-query attention: over whole sequences, and of one token to a cache.

Letters: B rows, N layers, G prompts, n samples a prompt, L tokens, P prompt
slots, R answer slots, T slots of a segment's newest tokens, K key-value heads,
r query heads a key-value head, H head width.
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
# Cache slots that one token attends to at a time.
BLOCK: Final = 128


class KeyValues(NamedTuple):
  """Rotated keys and values, each [..., K, slots, H] or [..., slots, K, H]."""

  k: Array
  v: Array


class Past(NamedTuple):
  """What a token that is decoded may attend to besides itself, all layers.

  Attributes:
    prompt: keys and values [N, G, K, P, H], shared by a prompt's samples.
    answer: keys and values [N, G, n, K, R, H], read only within a segment.
    recent: keys and values [N, G, n, K, T, H] of the segment's tokens.
  """

  prompt: KeyValues
  answer: KeyValues
  recent: KeyValues


class Filled(NamedTuple):
  """Slots of a `Past` that hold tokens, from the first on.

  Attributes:
    prompt: [G].
    answer: [G, n].
    recent: the same for every row.
    live: [G, n], rows that matter; the others may compute anything.
  """

  prompt: Int[Array, " G"]
  answer: Int[Array, "G n"]
  recent: Int[Array, ""]
  live: Bool[Array, "G n"]

  def positions(self) -> Int[Array, "G n"]:
    """Where each row's next token stands."""
    return self.prompt[:, None] + self.answer + self.recent

  @classmethod
  def empty(cls, prompt: Int[Array, " G"], samples: int) -> "Filled":
    """Rows without an answer so far, all of them live."""
    shape = (len(prompt), samples)
    return cls(
      prompt, jnp.zeros(shape, jnp.int32), jnp.int32(0), jnp.ones(shape, bool)
    )


class Reach(NamedTuple):
  """What the layers read of a `Past`.

  Attributes:
    filled: slots that hold tokens.
    prompt_blocks: blocks that some row's prompt reaches into.
    answer_blocks: blocks that some live row's answer reaches into.
  """

  filled: Filled
  prompt_blocks: Int[Array, ""]
  answer_blocks: Int[Array, ""]


class _Part(NamedTuple):
  """A softmax over some of the keys: sums relative to exp(top), fp32."""

  mixed: Float[Array, "G n K r H"]
  top: Float[Array, "G n K r"]
  total: Float[Array, "G n K r"]


def attend(
  q: Float[Array, "B L heads H"],
  k: Float[Array, "B L K H"],
  v: Float[Array, "B L K H"],
  past: Past | None,
  reach: Reach | None,
  layer: Int[Array, ""] | None,
  real: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L heads H"]:
  """`attend_cached` where there is a past, else `attend_causal`."""
  grouped = q.reshape(*k.shape[:-1], -1, q.shape[-1])
  if past is None:
    mixed = attend_causal(grouped, k, v, real)
  else:
    assert reach is not None and layer is not None
    mixed = attend_cached(grouped, k, v, past, reach, layer)
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
    allowed = ((allowed & real[:, None, :]) | itself)[:, None]
  # Queries of a key's heads are rows of one matrix [r C, H].
  q = q.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, width)
  allowed = jnp.broadcast_to(
    allowed[..., None, :, :],
    (*allowed.shape[:-2], shared, *allowed.shape[-2:]),
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
  past: Past,
  reach: Reach,
  layer: Int[Array, ""],
) -> Float[Array, "G n K r H"]:
  """Attention of one new token a row to its prompt, its answer and itself.

  Softmaxes over the parts are merged by their log-sum-exp. Prompts and answers
  are read in blocks out of the whole cache, as far as some row reaches; a
  block beyond a row's own reach adds exactly nothing to it, so a row does not
  depend on the others.
  """
  filled, own = reach.filled, v.astype(jnp.float32)[..., None, :]
  itself = einsum32("gnkrh,gnkh->gnkr", q, k) * q.shape[-1] ** -0.5
  part = _Part(jnp.broadcast_to(own, q.shape), itself, jnp.ones_like(itself))

  def over(part: _Part, keys: KeyValues, ends: Array, blocks: Any) -> _Part:
    size = min(BLOCK, keys.k.shape[-2])

    def add(block: Any, part: _Part) -> _Part:
      cut = KeyValues(*(_block(x, layer, block, size) for x in keys))
      where = block * size + jnp.arange(size)
      return _add(part, q, cut, where < ends)

    if keys.k.shape[-2] == 0:
      return part
    if keys.k.shape[-2] == size:
      return add(0, part)
    return jax.lax.fori_loop(0, blocks, add, part)

  wide = (..., None, None, None)
  part = over(
    part, past.prompt, filled.prompt[:, None][wide], reach.prompt_blocks
  )
  part = over(part, past.answer, filled.answer[wide], reach.answer_blocks)
  recent = past.recent.k.shape[-2]
  part = over(part, past.recent, filled.recent, -(-recent // BLOCK))
  return (part.mixed / part.total[..., None]).astype(v.dtype)


def _add(
  part: _Part, q: Array, keys: KeyValues, allowed: Bool[Array, "... size"]
) -> _Part:
  """`part` with more keys, [G, K, size, H] or [G, n, K, size, H]."""
  rows = "gkph" if keys.k.ndim == 4 else "gnkph"
  scores = einsum32(f"gnkrh,{rows}->gnkrp", q, keys.k) * q.shape[-1] ** -0.5
  scores = jnp.where(allowed, scores, -jnp.inf)
  top = jnp.maximum(part.top, jnp.max(scores, axis=-1))
  weights = jnp.exp(scores - top[..., None])
  less = jnp.exp(part.top - top)
  mixed = einsum32(f"gnkrp,{rows}->gnkrh", weights.astype(keys.v.dtype), keys.v)
  return _Part(
    part.mixed * less[..., None] + mixed,
    top,
    part.total * less + jnp.sum(weights, axis=-1),
  )


def _block(x: Array, layer: Array, block: Any, size: int) -> Array:
  """[..., size, H] of a layer of [N, ..., slots, H]."""
  start = (layer, *(0,) * (x.ndim - 3), block * size, 0)
  return jax.lax.dynamic_slice(
    x, start, (1, *x.shape[1:-2], size, x.shape[-1])
  )[0]


def reach_of(past: Past, filled: Filled) -> Reach:
  """How far the rows reach, for all layers at once."""

  def blocks(lengths: Array, keys: KeyValues) -> Array:
    size = max(1, min(BLOCK, keys.k.shape[-2]))
    return (jnp.max(lengths) + size - 1) // size

  live = jnp.any(filled.live, axis=1)
  return Reach(
    filled,
    blocks(jnp.where(live, filled.prompt, 0), past.prompt),
    blocks(jnp.where(filled.live, filled.answer, 0), past.answer),
  )


def start_past(
  prompt: KeyValues, *, samples: int, slots: int, recent: int
) -> Past:
  """Prompts [N, G, K, P, H] with empty room for their samples' answers.

  What holds more than a block is padded to whole blocks.
  """
  layers, groups, kv_heads, width, head_dim = prompt.k.shape
  rows = (layers, groups, samples, kv_heads)

  def empty(slots: int) -> KeyValues:
    shape = (*rows, whole_blocks(slots), head_dim)
    return KeyValues(*(jnp.zeros(shape, part.dtype) for part in prompt))

  more = whole_blocks(width) - width
  pad = ((0, 0), (0, 0), (0, 0), (0, more), (0, 0))
  padded = KeyValues(*(jnp.pad(part, pad) for part in prompt))
  return Past(padded, empty(slots), empty(recent))


def whole_blocks(slots: int) -> int:
  """Slots to hold at least so many: any number up to a block, else blocks."""
  return slots if slots <= BLOCK else -(-slots // BLOCK) * BLOCK


def admit(
  past: Past,
  filled: Filled,
  prompt: KeyValues,
  lengths: Int[Array, " c"],
  lanes: Int[Array, " c"],
) -> tuple[Past, Filled]:
  """Puts prompts [N, c, K, slots, H] into the places `lanes` of the G.

  A place of G or more takes nothing. Answers there are at an end.
  """

  def put(old: Array, new: Array) -> Array:
    return old.at[:, lanes, :, : new.shape[3]].set(new, mode="drop")

  kept = KeyValues(*map(put, past.prompt, prompt))
  return past._replace(prompt=kept), filled._replace(
    prompt=filled.prompt.at[lanes].set(lengths, mode="drop"),
    live=filled.live.at[lanes].set(False, mode="drop"),
  )


def begin(filled: Filled, mask: Bool[Array, "G n"]) -> Filled:
  """Lets answers begin where `mask` says."""
  return filled._replace(
    answer=jnp.where(mask, 0, filled.answer), live=filled.live | mask
  )


def append(past: Past, new: KeyValues, filled: Filled) -> tuple[Past, Filled]:
  """Puts keys and values [N, G, n, K, H] behind the recent ones."""

  def put(old: Array, part: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(
      old, part[..., None, :], filled.recent, axis=4
    )

  recent = KeyValues(*map(put, past.recent, new))
  return (
    past._replace(recent=recent),
    filled._replace(recent=filled.recent + 1),
  )


def settle(
  past: Past, filled: Filled, counts: Int[Array, "G n"]
) -> tuple[Past, Filled]:
  """Moves recent keys behind each row's answer; `counts` of them are real.

  What lies behind a row's real ones is written too and means nothing; there has
  to be room for it.
  """

  def put(old: Array, new: Array, start: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=2)

  rows = jax.vmap(jax.vmap(put, (1, 1, 0), 1), (1, 1, 0), 1)
  answer = KeyValues(
    *(
      rows(old, new, filled.answer)
      for old, new in zip(past.answer, past.recent, strict=True)
    )
  )
  return (
    past._replace(answer=answer),
    filled._replace(answer=filled.answer + counts, recent=jnp.int32(0)),
  )


def past_axes() -> Past:
  """Logical axes of a `Past`."""
  prompt: Any = ("layers", "batch", "kv_heads", None, None)
  rows: Any = ("layers", "batch", "batch", "kv_heads", None, None)
  return Past(*(KeyValues(part, part) for part in (prompt, rows, rows)))


def filled_axes() -> Filled:
  """Logical axes of a `Filled`."""
  prompts: Any = ("batch",)
  rows: Any = ("batch", "batch")
  scalar: Any = ()
  return Filled(prompts, rows, scalar, rows)
