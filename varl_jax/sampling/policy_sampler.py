"""A sampler of the weights that are being trained, wherever they lie.

Once a call the trained weights become the ones that are read at every token:
adapters join the weights they adapt, kernels turn into the compute type (which
they would at every use; half the bytes in bfloat16), and on a mesh they are
gathered over `fsdp`, so that decoding exchanges activations alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from varl_jax.models.sharding import shardings, use
from varl_jax.sampling.sampler import Begun, Sample, Sampler

Params = Any


class PolicySampler(Sampler):
  """`Sampler` for parameters as the learner holds them."""

  def __init__(
    self,
    *,
    whole: Callable[[Params], Params],
    axes: Params,
    mesh: Mesh | None = None,
    **options: Any,
  ):
    """Prepares the sampling function.

    Args:
      whole: the learner's, from trained parameters to all of them.
      axes: the logical axes of all of them, a collection at least each.
      mesh: devices to sample on, None for a single one.
      **options: those of `Sampler`.
    """
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    super().__init__(**options, everywhere=everywhere)
    self._whole = whole
    self._axes = axes
    self._mesh = mesh
    self._dtype = jnp.dtype(options["model"].dtype)

  def generate(
    self,
    prompts_tokens: Sequence[Sequence[int]],
    n: int,
    *,
    params: Params,
    step: int,
    tasks: Sequence[int],
    begun: Sequence[Begun] | None = None,
  ) -> list[list[Sample]]:
    """`Sampler.generate`; `params` are a training state's."""
    params = self.weights(self._whole(params))
    with use(self._mesh):
      return super().generate(
        prompts_tokens, n, params=params, step=step, tasks=tasks, begun=begun
      )

  def weights(self, params: Params) -> Params:
    """What decoding reads, where it reads it."""
    if self._mesh is None and self._dtype == jnp.float32:
      return params
    axes = {name: self._axes[name] for name in params if name in self._axes}
    cast = jax.jit(
      lambda tree: decoding_weights(tree, axes, self._dtype),
      out_shardings=None if self._mesh is None else self._where(params, axes),
    )
    return cast(params)

  def _where(self, params: Params, axes: Params) -> Params:
    assert self._mesh is not None
    known = {name: params[name] for name in axes}
    # A collection without axes, such as the adapters' scales, goes everywhere.
    rest = {
      n: jax.tree.map(_scalar, params[n]) for n in params if n not in axes
    }
    axes, like = {**axes, **rest}, {**known, **params}
    return shardings(axes, like, self._mesh, over=("tensor",))


def decoding_weights(params: Params, axes: Params, dtype: Any) -> Params:
  """Matrices that a model multiplies in `dtype` in that type, others as is."""

  def cast(names: tuple[str | None, ...], leaf: jax.Array) -> jax.Array:
    wide = [name for name in names if name not in (None, "layers")]
    return leaf if len(wide) < 2 or "conv" in names else leaf.astype(dtype)

  known = {name: params[name] for name in axes}
  made = jax.tree.map(
    cast, axes, known, is_leaf=lambda node: isinstance(node, tuple)
  )
  return {**params, **made}


def _scalar(leaf: jax.Array) -> tuple[None, ...]:
  return (None,) * leaf.ndim
