"""Log-probabilities and entropies of given tokens through the output head.

    logprob = h . W_target / T - log sum_v exp(h . W_v / T)

The logits of all tokens never exist at once. A kernel keeps the hidden states
and one number a token for the backward pass, which is the reference's.

Letters: B rows, R positions, D width, V vocabulary.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from varl_kernels.backends import choose
from varl_kernels.head import bias_of, check
from varl_kernels.logprob import reference
from varl_kernels.logprob.partials import Partial, measures, merge
from varl_kernels.logprob.reference import NOT_SPLIT, Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
  """What a kernel's two passes are told."""

  temperature: float
  chunk: int
  layout: Layout
  backend: str
  tile: int
  interpret: bool


def token_logprobs(
  hidden: Float[Array, "B R D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B R"],
  *,
  forbidden: Bool[Array, "V"],
  temperature: float = 1.0,
  chunk: int,
  layout: Layout = NOT_SPLIT,
  backend: str = "auto",
  tile: int = 0,
  interpret: bool = False,
) -> tuple[Float[Array, "B R"], Float[Array, "B R"]]:
  """Log-probability of each target and entropy of its distribution.

  Args:
    hidden: finite everywhere (0 where it does not matter).
    head: in any float type; multiplied in that of `hidden`.
    targets: ids.
    forbidden: ids taken out before the normalization; -inf as a target.
    temperature: T > 0, divides the logits.
    chunk: positions of R whose logits are alive at once, in a kernel's
      backward pass alone.
    layout: how arrays are split over a mesh.
    backend: see `backends`; `auto` is the platform's.
    tile: ids a kernel takes at a time, 0 for its own choice.
    interpret: run the kernel step by step on any platform.

  Returns:
    float32 log-probabilities (nats, at most 0) and entropies (nats). Gradients
    flow through the former only.

  Raises:
    ValueError: shapes that do not fit, a temperature of 0 or less, or see
      `backends.choose`.
  """
  length = hidden.shape[1]
  check(hidden, head, temperature)
  backend = choose(backend, interpret=interpret)
  chunk = min(max(chunk, 1), length)
  chunk = -(-length // -(-length // chunk))  # as many chunks, of like size
  padding = -length % chunk
  if padding:
    hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0)))
    targets = jnp.pad(targets, ((0, 0), (0, padding)))
  if backend == "reference":
    found, entropy = reference.token_logprobs(
      hidden,
      head,
      targets,
      forbidden,
      temperature=temperature,
      chunk=chunk,
      layout=layout,
    )
  else:
    options = _Options(
      temperature=temperature,
      chunk=chunk,
      layout=layout,
      backend=backend,
      tile=tile,
      interpret=interpret,
    )
    made: Any = _by_kernel(hidden, head, targets, forbidden, options)
    found, entropy = made
  return found[:, :length], entropy[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _by_kernel(hidden, head, targets, forbidden, options):
  return _forward(hidden, head, targets, forbidden, options)[0]


def _forward(hidden, head, targets, forbidden, options):
  layout = options.layout
  wide, cast = reference.lay(hidden, head, layout)
  local = functools.partial(_local, options=options)
  if layout.mesh is not None:
    rows, vocab = P(layout.rows), P(layout.vocab)
    local = jax.shard_map(
      local,
      mesh=layout.mesh,
      in_specs=(rows, vocab, rows, vocab),
      out_specs=(rows, rows, rows),
      check_vma=False,
    )
  found, entropy, norm = local(wide, cast, targets, forbidden)
  return (found, entropy), (hidden, head, targets, forbidden, norm, None)


def _backward(options, kept, gradients):
  return reference.backward(
    options.temperature, options.chunk, options.layout, kept, gradients
  )


_by_kernel.defvjp(_forward, _backward)


def _local(hidden, head, targets, forbidden, *, options: _Options):
  """Logprobs, entropies and log-normalizers of one device's rows."""
  if options.backend == "tpu":
    from varl_kernels.logprob.pallas_tpu import partial
  else:
    from varl_kernels.logprob.pallas_gpu import partial
  axes = options.layout.vocab
  part = jax.lax.axis_index(axes) if axes else jnp.int32(0)
  found = partial(
    hidden.reshape(-1, hidden.shape[-1]),
    head,
    targets.reshape(-1),
    part * head.shape[0],
    bias=bias_of(forbidden, head.shape[0]),
    temperature=options.temperature,
    tile=options.tile,
    interpret=options.interpret,
  )
  if axes:
    found = merge(Partial(*(jax.lax.all_gather(x, axes) for x in found)))
  return tuple(x.reshape(targets.shape) for x in measures(found))
