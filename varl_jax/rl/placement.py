"""Where the learner's arrays lie on a mesh.

Weights, gradients and both moments of the optimizer are split alike, so that no
device ever holds a whole one; rows of a batch are split over `data` and `fsdp`.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from varl_jax.models.sharding import shardings, spec

Params = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
  """A mesh and the logical axes of the weights on it.

  Attributes:
    mesh: from `models.sharding.make_mesh`.
    axes: from the model's `axes()`, with those of the adapters under `lora`
      where there are some.
  """

  mesh: Mesh
  axes: Params

  @property
  def row_parts(self) -> int:
    """Pieces that a batch's rows are cut into."""
    return math.prod(self.mesh.shape[axis] for axis in ("data", "fsdp"))

  @property
  def everywhere(self) -> NamedSharding:
    """The same values on every device."""
    return NamedSharding(self.mesh, PartitionSpec())

  def of_params(self, params: Params) -> Params:
    """A sharding a leaf of a tree of collections, such as {"lora": ...}."""
    axes = {name: self.axes[name] for name in params if name in self.axes}
    found = shardings(axes, {name: params[name] for name in axes}, self.mesh)
    rest = {
      name: jax.tree.map(lambda _: self.everywhere, params[name])
      for name in params
      if name not in axes
    }
    return {**found, **rest}

  def of_optimizer(
    self,
    optimizer: optax.GradientTransformation,
    opt_state: optax.OptState,
    params: Params,
  ) -> Any:
    """Moments lie where their weights do, counters everywhere."""
    return optax.tree_utils.tree_map_params(
      optimizer,
      lambda _, where: where,
      opt_state,
      self.of_params(params),
      transform_non_params=lambda _: self.everywhere,
    )

  def of_rows(self, pieces: dict[str, np.ndarray]) -> dict[str, NamedSharding]:
    """Arrays [M, B, ...] with their B split; whole where B does not divide."""
    sizes = dict(self.mesh.shape)
    found = {}
    for name, value in pieces.items():
      names = (None, "batch", *(None,) * (value.ndim - 2))
      found[name] = NamedSharding(self.mesh, spec(names, value.shape, sizes))
    return found


def split_trained(params: Params) -> tuple[Params, Params]:
  """The collections that are trained and those that are kept as they are.

  With adapters, the collection `lora`, only they are trained.
  """
  if not isinstance(params, dict) or "lora" not in params:
    return params, {}
  rest = {name: part for name, part in params.items() if name != "lora"}
  return {"lora": params["lora"]}, rest
