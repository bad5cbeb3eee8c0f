"""Where arrays lie: one table from logical axes to axes of the device mesh.

The mesh is ('data', 'fsdp', 'tensor'). Rows of a batch are split over the first
two, the width D of every weight over `fsdp`, heads, feed-forward columns and
the vocabulary over `tensor`. Between layers, where activations have none of
these, their positions are split over `tensor`: that is what the backward pass
keeps, and it would lie whole on every part. XLA's partitioner derives the
collectives: all axes are of type Auto, asked for by name because newer versions
of jax make explicit ones unless told.

The output head lies differently while it is in use (`rl.logprobs`): its
vocabulary is split over `fsdp` too and its rows over `data` alone, so that
neither the head nor its gradient is ever gathered.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from varl_jax.config import ConfigError, MeshConfig

AXES: Final = ("data", "fsdp", "tensor")
Names = tuple[str | None, ...]

# Takes the mesh axes that the others of an array leave.
LAST: Final = "length"
# Logical axis to mesh axes; () is kept whole.
RULES: Final[Mapping[str, tuple[str, ...]]] = {
  "layers": (),
  "embed": ("fsdp",),
  "heads": ("tensor",),
  "kv_heads": ("tensor",),
  "head_dim": (),
  "mlp": ("tensor",),
  "vocab": ("tensor",),
  "delta_k_heads": ("tensor",),
  "delta_v_heads": ("tensor",),
  "conv": (),
  "rank": (),
  "batch": ("data", "fsdp"),
  "length": ("tensor",),
  "head_rows": ("data",),
  "head_vocab": ("fsdp", "tensor"),
}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
  """The mesh of a config, over all devices unless some are given.

  A mesh of one device takes the first one, whatever else there is.

  Raises:
    ConfigError: the axes' product is another number than that of the devices.
  """
  shape = (config.data, config.fsdp, config.tensor)
  devices = jax.devices() if devices is None else list(devices)
  if math.prod(shape) == 1:
    devices = devices[:1]
  if math.prod(shape) != len(devices):
    named = " x ".join(map(str, shape))
    raise ConfigError(
      f"The mesh data x fsdp x tensor = {named} takes {math.prod(shape)}"
      f" devices and there are {len(devices)}; set mesh.data, mesh.fsdp and"
      f" mesh.tensor to numbers whose product is {len(devices)}."
    )
  kinds = (AxisType.Auto,) * len(AXES)
  return jax.make_mesh(shape, AXES, axis_types=kinds, devices=devices)


def spec(
  names: Sequence[str | None], shape: Sequence[int], sizes: Mapping[str, int]
) -> PartitionSpec:
  """How an array of `shape` with these logical axes is split.

  A mesh axis is used once, by the first logical axis that names it; `length`
  comes behind all others wherever it stands. Mesh axes are dropped from the end
  of an entry until their product divides the dimension; what is dropped means
  that the dimension is repeated there.

  Args:
    names: one a dimension, None for one that is kept whole.
    shape: of the array.
    sizes: devices an axis of the mesh.

  Raises:
    ValueError: another number of names than dimensions, or an unknown name.
  """
  return PartitionSpec(*(axes or None for axes in _split(names, shape, sizes)))


def _split(
  names: Sequence[str | None], shape: Sequence[int], sizes: Mapping[str, int]
) -> list[tuple[str, ...]]:
  """The mesh axes of each dimension, see `spec`."""
  if len(names) != len(shape):
    raise ValueError(
      f"{len(names)} logical axes {tuple(names)} for an array of shape"
      f" {tuple(shape)}."
    )
  taken: set[str] = set()
  entries: list[tuple[str, ...]] = [()] * len(names)
  for i in sorted(range(len(names)), key=lambda i: names[i] == LAST):
    name, size = names[i], shape[i]
    if name is not None and name not in RULES:
      raise ValueError(
        f"Unknown logical axis {name!r}; RULES has {', '.join(RULES)}."
      )
    wanted = RULES[name] if name else ()
    axes = tuple(a for a in wanted if a not in taken and sizes.get(a, 1) > 1)
    while axes and size % math.prod(sizes[a] for a in axes):
      axes = axes[:-1]
    taken.update(axes)
    entries[i] = axes
  return entries


def shardings(
  axes_tree: Any,
  shapes_tree: Any,
  mesh: Mesh,
  *,
  over: Sequence[str] = AXES,
) -> Any:
  """A `NamedSharding` a leaf.

  Args:
    axes_tree: like `shapes_tree`, each leaf a tuple of logical names.
    shapes_tree: arrays or `jax.ShapeDtypeStruct`s.
    mesh: from `make_mesh`.
    over: mesh axes to use; along the others everything is repeated.

  Raises:
    ValueError: the trees differ, or a tuple does not fit its array.
  """
  sizes = {axis: mesh.shape[axis] for axis in over}
  return jax.tree.map(
    lambda names, leaf: NamedSharding(mesh, spec(names, leaf.shape, sizes)),
    axes_tree,
    shapes_tree,
    is_leaf=lambda node: isinstance(node, tuple),
  )


def use(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """Makes `constrain` speak of `mesh` in what is traced inside."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def mesh_sizes() -> dict[str, int]:
  """Devices an axis of the mesh in use, empty without one."""
  mesh = jax.sharding.get_abstract_mesh()
  return {} if mesh.empty else dict(mesh.shape)


def mesh_in_use() -> jax.sharding.AbstractMesh | None:
  """The mesh that `use` set if it has several devices, else None."""
  mesh = jax.sharding.get_abstract_mesh()
  return None if mesh.empty or mesh.size == 1 else mesh


def axes_of(name: str, size: int) -> tuple[str, ...]:
  """Mesh axes that a dimension is split over under the mesh in use."""
  return _split((name,), (size,), mesh_sizes())[0]


def parts(name: str, size: int) -> int:
  """Pieces that a dimension is cut into under the mesh in use, 1 without."""
  sizes = mesh_sizes()
  return math.prod(sizes[a] for a in axes_of(name, size))


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
  """Pins how `x` is split under the mesh in use; `x` itself without one.

  Raises:
    ValueError: see `spec`.
  """
  sizes = mesh_sizes()
  entries = spec(names, x.shape, sizes)
  if math.prod(sizes.values()) == 1:
    return x
  return jax.lax.with_sharding_constraint(x, entries)


def place(tree: Any, where: Any) -> Any:
  """Puts host arrays onto devices.

  Args:
    tree: arrays that every process holds whole.
    where: one sharding for all leaves, or one a leaf.
  """
  if isinstance(where, jax.sharding.Sharding):
    where = jax.tree.map(lambda _: where, tree)

  def put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array):
      return jax.device_put(leaf, sharding)
    # Each process hands over the pieces of its own devices only.
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(
      whole.shape, sharding, lambda index: whole[index]
    )

  return jax.tree.map(put, tree, where)


def lookup(table: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
  """Rows [B, L, D] of an embedding [V, D], D still split as the table's is.

  The tokens travel to every part of the table. Left to itself, the partitioner
  gathers the table, and adds up its gradient whole.
  """
  tokens = constrain(tokens, "head_rows", None)
  rows = table.at[tokens].get(mode="clip").astype(dtype)
  return constrain(rows, "head_rows", None, "embed")
