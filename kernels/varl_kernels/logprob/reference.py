"""Log-probabilities in plain XLA, a chunk of positions at a time.

Only one chunk has its [B, chunk, V] float32 logits alive; the backward pass
computes them again from the hidden states. A whole that is one chunk keeps its
logits instead. Sums of the head's gradient stay in float32 whatever the hidden
states' type is.

A caller that splits arrays over a mesh says how by a `Layout`: a chunk's hidden
states travel, the head and its gradient do not; the gradient is summed over the
rows' shards once, behind the last chunk.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from varl_kernels.head import exactly, masked_logits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """How arrays are split while the head is in use; by default they are not.

  Logical axes are `head_rows` and `head_vocab` for the rows and the vocabulary
  of the head's products, `batch` for rows elsewhere, None for what is whole.

  Attributes:
    constrain: (array, *logical axes) to the array, split so.
    parts: (logical axis, size) to the pieces that it is cut into.
    mesh: for kernels, which know no logical axes; None without one.
    rows: its axes that `head_rows` stands for.
    vocab: its axes that `head_vocab` stands for.
  """

  constrain: Callable[..., Array] = lambda x, *axes: x
  parts: Callable[[str, int], int] = lambda axis, size: 1
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None
  rows: tuple[str, ...] = ()
  vocab: tuple[str, ...] = ()


NOT_SPLIT = Layout()


def token_logprobs(
  hidden: Float[Array, "B R D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B R"],
  forbidden: Bool[Array, "V"],
  *,
  temperature: float,
  chunk: int,
  layout: Layout = NOT_SPLIT,
) -> tuple[Float[Array, "B R"], Float[Array, "B R"]]:
  """`api.token_logprobs` of whole chunks: `chunk` divides R."""
  made: Any = _chunked(
    hidden, head, targets, forbidden, temperature, chunk, layout
  )
  return made


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _chunked(hidden, head, targets, forbidden, temperature, chunk, layout):
  made, _ = _forward(
    hidden, head, targets, forbidden, temperature, chunk, layout
  )
  return made


def _forward(hidden, head, targets, forbidden, temperature, chunk, layout):
  # Converted once, before the loop over chunks.
  cast = lay(hidden, head, layout)[1]
  kept = (hidden, head, targets, forbidden)
  if chunk == hidden.shape[1]:
    logits = _chunk_logits(hidden, cast, forbidden, temperature, layout)
    found, entropy, norm = _of_chunk(logits, targets)
    return (found, entropy), (*kept, norm, logits)

  def step(piece):
    logits = _chunk_logits(piece[0], cast, forbidden, temperature, layout)
    return _of_chunk(logits, piece[1])

  pieces = (_split(hidden, chunk), _split(targets, chunk))
  found, entropy, norm = map(_join, jax.lax.map(step, pieces))
  return (found, entropy), (*kept, norm, None)


def backward(temperature, chunk, layout, kept, gradients):
  """Gradients of the log-probabilities' operands.

  Args:
    temperature: as in the forward pass.
    chunk: positions at a time; divides R.
    layout: as in the forward pass.
    kept: hidden, head, targets, forbidden, log-normalizers [B, R], and the
      logits or None.
    gradients: of the log-probabilities, and of the entropies, which is ignored.
  """
  hidden, head, targets, forbidden, norm, logits = kept
  weight = gradients[0] / temperature
  cast = lay(hidden, head, layout)[1]
  shards = layout.parts("head_rows", len(hidden))
  pull = functools.partial(_pull, cast=cast, shards=shards, layout=layout)

  def finish(to_hidden, to_head):
    return to_hidden, to_head.sum(0).astype(head.dtype), None, None

  if logits is not None:
    return finish(*pull(logits, hidden, targets, norm, weight))

  def step(total, piece):
    hidden, targets, norm, weight = piece
    again = _chunk_logits(hidden, cast, forbidden, temperature, layout)
    to_hidden, to_head = pull(again, hidden, targets, norm, weight)
    return total + to_head, to_hidden

  pieces = tuple(_split(x, chunk) for x in (hidden, targets, norm, weight))
  zero = jnp.zeros((shards, *head.shape), jnp.float32)
  zero = layout.constrain(zero, "head_rows", "head_vocab", None)
  to_head, to_hidden = jax.lax.scan(step, zero, pieces)
  return finish(_join(to_hidden), to_head)


_chunked.defvjp(_forward, backward)


def lay(
  hidden: Float[Array, "B C D"], head: Float[Array, "V D"], layout: Layout
) -> tuple[Array, Array]:
  """Both where a chunk of the head wants them, the head in hidden's type."""
  return (
    layout.constrain(hidden, "head_rows", None, None),
    layout.constrain(head.astype(hidden.dtype), "head_vocab", None),
  )


def _pull(logits, hidden, targets, norm, weight, *, cast, shards, layout):
  """Gradients of the hidden states and, a shard of rows, of the head."""
  dot = functools.partial(
    jnp.einsum,
    precision=exactly(hidden.dtype),
    preferred_element_type=jnp.float32,
  )
  hidden = lay(hidden, cast, layout)[0]
  chance = jnp.exp(logits - norm[..., None])
  push = jnp.where(_chosen(targets, logits), 1.0, 0.0) - chance
  push = (push * weight[..., None]).astype(hidden.dtype)
  to_hidden = dot("bcv,vd->bcd", push, cast).astype(hidden.dtype)
  push = push.reshape(shards, -1, *push.shape[1:])
  hidden = hidden.reshape(shards, -1, *hidden.shape[1:])
  to_head = dot("sbcv,sbcd->svd", push, hidden)
  return (
    layout.constrain(to_hidden, "batch", None, None),
    layout.constrain(to_head, "head_rows", "head_vocab", None),
  )


def _split(values: Array, chunk: int) -> Array:
  """[B, R, ...] to [R / chunk, B, chunk, ...], rows kept whole."""
  rows, length = values.shape[:2]
  pieces = values.reshape(rows, length // chunk, chunk, *values.shape[2:])
  return jnp.moveaxis(pieces, 1, 0)


def _join(values: Array) -> Array:
  """Undoes `_split`."""
  moved = jnp.moveaxis(values, 0, 1)
  return moved.reshape(moved.shape[0], -1, *moved.shape[3:])


def _chunk_logits(
  hidden: Float[Array, "B C D"],
  head: Float[Array, "V D"],
  forbidden: Bool[Array, "V"],
  temperature: float,
  layout: Layout,
) -> Float[Array, "B C V"]:
  hidden, head = lay(hidden, head, layout)
  logits = masked_logits(hidden, head, forbidden, temperature=temperature)
  return layout.constrain(logits, "head_rows", None, "head_vocab")


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
