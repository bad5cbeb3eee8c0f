"""Draws the next token of every row from its hidden state, logits unseen.

    token = argmax_v (h . W_v / T + Gumbel(seeds, v))
    logprob = h . W_token / T - log sum_v exp(h . W_v / T)

Letters: B rows, D width, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, UInt32

from varl_kernels.backends import choose
from varl_kernels.head import bias_of, check
from varl_kernels.sampling import reference
from varl_kernels.sampling.partials import Partial, drawn, merge

# Mesh axes that one axis of an array is split over.
Axes = str | tuple[str, ...] | None


def sample(
  hidden: Float[Array, "*B D"],
  head: Float[Array, "V D"],
  seeds: UInt32[Array, "*B 2"],
  *,
  forbidden: Bool[Array, "V"] | None = None,
  temperature: float = 1.0,
  backend: str = "auto",
  tile: int = 0,
  interpret: bool = False,
) -> tuple[Int[Array, "*B"], Float[Array, "*B"]]:
  """One token a row and its log-probability.

  All backends draw the same tokens for the same seeds, but where two scores lie
  within the rounding of the logits.

  Args:
    hidden: states behind the last layer, finite.
    head: in any float type; multiplied in that of `hidden`.
    seeds: two words a row, such as `jax.random.key_data` of a threefry key;
      every draw wants its own.
    forbidden: ids that are never drawn, rows that pad the head among them.
    temperature: T > 0, divides the logits.
    backend: see `backends`; `auto` is the platform's.
    tile: ids a kernel takes at a time, 0 for its own choice.
    interpret: run the kernel step by step on any platform.

  Returns:
    int32 tokens and float32 log-probabilities (nats, at most 0).

  Raises:
    ValueError: shapes that do not fit, a temperature of 0 or less, or see
      `backends.choose`.
  """
  check(hidden, head, temperature)
  options = {"forbidden": forbidden, "temperature": temperature}
  backend = choose(backend, interpret=interpret)
  if backend == "reference":
    return reference.sample(hidden, head, seeds, **options)
  found = _partial(
    hidden,
    head,
    seeds,
    jnp.int32(0),
    backend=backend,
    tile=tile,
    interpret=interpret,
    **options,
  )
  return drawn(found)


def sample_sharded(
  hidden: Float[Array, "*B D"],
  head: Float[Array, "V D"],
  seeds: UInt32[Array, "*B 2"],
  *,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  rows: Sequence[Axes],
  vocab: Sequence[str],
  forbidden: Bool[Array, "V"] | None = None,
  temperature: float = 1.0,
  backend: str = "auto",
  tile: int = 0,
  interpret: bool = False,
) -> tuple[Int[Array, "*B"], Float[Array, "*B"]]:
  """`sample` where rows and vocabulary are split over a mesh.

  Every device reads its own part of the head; five scalars a row and part are
  gathered, logits never.

  Args:
    mesh: its devices; along axes that are not named all do the same.
    rows: mesh axes of each axis of *B; their product divides it.
    vocab: mesh axes that V is split over; their product divides it (pad the
      head and forbid the ids that it gains).

  Raises:
    ValueError: see `sample`.
  """
  check(hidden, head, temperature)
  backend = choose(backend, interpret=interpret)
  vocab = tuple(vocab)
  if forbidden is None:
    forbidden = jnp.zeros(head.shape[0], bool)

  def local(hidden, head, seeds, forbidden):
    part = jax.lax.axis_index(vocab) if vocab else jnp.int32(0)
    found = _partial(
      hidden,
      head,
      seeds,
      part * head.shape[0],
      forbidden=forbidden,
      temperature=temperature,
      backend=backend,
      tile=tile,
      interpret=interpret,
    )
    if vocab:
      found = merge(Partial(*(jax.lax.all_gather(x, vocab) for x in found)))
    return drawn(found)

  run = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(P(*rows), P(vocab), P(*rows), P(vocab)),
    out_specs=(P(*rows), P(*rows)),
    check_vma=False,
  )
  return run(hidden, head, seeds, forbidden)


def _partial(
  hidden: Array,
  head: Array,
  seeds: Array,
  first: Array,
  *,
  forbidden: Array | None,
  temperature: float,
  backend: str,
  tile: int,
  interpret: bool,
) -> Partial:
  """The five scalars [*B] from id `first` on, by any backend."""
  batch = hidden.shape[:-1]
  hidden = hidden.reshape(-1, hidden.shape[-1])
  seeds = seeds.reshape(-1, 2)
  if backend == "reference":
    found = reference.partial(
      hidden, head, seeds, first, forbidden=forbidden, temperature=temperature
    )
  else:
    if backend == "tpu":
      from varl_kernels.sampling.pallas_tpu import partial
    else:
      from varl_kernels.sampling.pallas_gpu import partial
    found = partial(
      hidden,
      head,
      seeds,
      first,
      bias=bias_of(forbidden, head.shape[0]),
      temperature=temperature,
      tile=tile,
      interpret=interpret,
    )
  return Partial(*(x.reshape(batch) for x in found))
