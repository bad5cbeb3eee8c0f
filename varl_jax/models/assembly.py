"""Parameters made in place out of the tensors of files.

One tensor after another is read, in its own type, and written into its part of
the leaf by a compiled update that reuses the leaf's memory. So beside the
leaves there is at most one tensor in memory, and on a mesh every device gets
its slice only.
"""

import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from varl_jax.models.errors import ModelError
from varl_jax.models.layers import Params
from varl_jax.models.registry import make_model
from varl_jax.models.weights import Part, by_name, parts

_LISTED = 8  # names in an error

# Called with logical axes and shapes, each a tree like the parameters.
Shardings = Callable[[Any, Any], Any]


class Source(Protocol):
  """Tensors that can be read by rows."""

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """Shape of every tensor, by name."""
    ...

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    """Entries start to stop of a tensor's first axis."""
    ...


class Arrays:
  """Arrays in memory as a source."""

  def __init__(self, arrays: Mapping[str, np.ndarray]):
    self.arrays = arrays
    self.shapes = {name: array.shape for name, array in arrays.items()}

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    return self.arrays[name][start:stop]


def assemble(
  config: Any,
  weights: Source | Mapping[str, np.ndarray],
  source: pathlib.Path | str,
  *,
  table: Iterable[Part] | None = None,
  dtype: Any = jnp.float32,
  shardings: Shardings | None = None,
) -> Params:
  """Builds the parameters; every weight must be there once, with its shape.

  Args:
    config: shape of the model.
    weights: the tensors.
    source: where they come from, for messages.
    table: how leaves lie in them; None for that of Hugging Face folders.
    dtype: of the parameters.
    shardings: where the leaves lie; None for the default device.

  Raises:
    ModelError: missing or unexpected weights, or one of another shape.
  """
  origin = Arrays(weights) if isinstance(weights, Mapping) else weights
  table = list(parts(config) if table is None else table)
  check_names({part.name for part in table}, set(origin.shapes), source)
  for part in table:
    found = origin.shapes[part.name]
    if found != part.form.shape:
      raise ModelError(
        f"{source}: {part.name} has shape {found}, the config says"
        f" {part.form.shape}."
      )
  made = shapes_of(table, dtype)
  where = None
  if shardings is not None:
    where = shardings(make_model(config).axes(), _nested(made))
  leaves: dict[tuple[str, ...], jax.Array] = {}
  for _, group in by_name(table):
    for part in group:
      leaf = _placed(
        leaves.pop(part.path, None),
        part,
        _Rows(origin, part),
        made[part.path],
        None if where is None else _at(where, ("params", *part.path)),
      )
      # Dispatch would run ahead and hold many tensors.
      leaves[part.path] = jax.block_until_ready(leaf)
  return _nested(leaves)


def shapes_of(
  table: Iterable[Part], dtype: Any
) -> dict[tuple[str, ...], jax.ShapeDtypeStruct]:
  """Shape of every leaf that a table fills, by its path."""
  leads: dict[tuple[str, ...], tuple[int, ...]] = {}
  inner = {}
  for part in table:
    old = leads.get(part.path, part.lead)
    leads[part.path] = tuple(map(max, old, part.lead))
    inner[part.path] = part.form.part
  return {
    path: jax.ShapeDtypeStruct((*(i + 1 for i in lead), *inner[path]), dtype)
    for path, lead in leads.items()
  }


def check_names(
  wanted: set[str], found: set[str], source: pathlib.Path | str
) -> None:
  """Raises ModelError with the names that are missing or unexpected."""
  problems = [
    f"{verb} the weight{'s' if len(names) > 1 else ''} {listed(names)}"
    for verb, names in (
      ("lacks", wanted - found),
      ("has, unexpected,", found - wanted),
    )
    if names
  ]
  if problems:
    raise ModelError(
      f"{source} does not hold the model that its config describes: it"
      f" {' and '.join(problems)}."
    )


def listed(names: Iterable[str]) -> str:
  """Names in order, the rest of a long list counted."""
  ordered = sorted(names)
  rest = len(ordered) - _LISTED
  return ", ".join(ordered[:_LISTED]) + (
    f" and {rest} more" if rest > 0 else ""
  )


class _Rows:
  """Slices of a part; rows that several devices share are read once."""

  def __init__(self, origin: Source, part: Part):
    self.origin, self.part = origin, part
    self.kept: tuple[tuple[int, int], np.ndarray] | None = None

  def __call__(self, index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    form = self.part.form
    start, stop, _ = index[0].indices(form.view[0])
    rows = form.rows(start, stop)
    if self.kept is None or self.kept[0] != rows:
      self.kept = None
      self.kept = (rows, self.origin.rows(self.part.name, *rows))
    return form.seen(self.kept[1])[(slice(None), *index[1:])]


def _placed(
  leaf: jax.Array | None,
  part: Part,
  read: _Rows,
  made: jax.ShapeDtypeStruct,
  where: Any,
) -> jax.Array:
  """The leaf with a part in it; makes the leaf when there is none."""
  form = part.form
  if where is None:
    values = read(tuple(slice(0, size) for size in form.view))
  else:
    values = jax.make_array_from_callback(
      form.view, _of_view(where, part, len(made.shape)), read
    )
  if not part.lead:
    return _whole(values, form.order, made.dtype, where)
  if leaf is None:
    leaf = _zeros(made.shape, made.dtype, where)
  return _put(leaf, values, part.lead, form.order, where)


def _of_view(where: Any, part: Part, ndim: int) -> Any:
  """Sharding of a part's view where the leaf's is `where`."""
  if not isinstance(where, NamedSharding):
    return where
  spec = (*where.spec, *(None,) * (ndim - len(where.spec)))
  own = spec[len(part.lead) :]
  undo = np.argsort(part.form.order)
  return NamedSharding(where.mesh, PartitionSpec(*(own[i] for i in undo)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], dtype: Any, where: Any) -> jax.Array:
  return _pinned(jnp.zeros(shape, dtype), where)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _whole(
  values: jax.Array, order: tuple[int, ...], dtype: Any, where: Any
) -> jax.Array:
  return _pinned(values.transpose(order).astype(dtype), where)


@functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def _put(
  leaf: jax.Array,
  values: jax.Array,
  lead: tuple[int, ...],
  order: tuple[int, ...],
  where: Any,
) -> jax.Array:
  values = values.transpose(order).astype(leaf.dtype)
  values = values.reshape((1,) * len(lead) + values.shape)
  start = (*lead, *(0,) * len(order))
  return _pinned(jax.lax.dynamic_update_slice(leaf, values, start), where)


def _pinned(x: jax.Array, where: Any) -> jax.Array:
  return x if where is None else jax.lax.with_sharding_constraint(x, where)


def _at(tree: Any, path: Iterable[str]) -> Any:
  return functools.reduce(lambda node, key: node[key], path, tree)


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> Params:
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    node = tree
    for key in path[:-1]:
      node = node.setdefault(key, {})
    node[path[-1]] = leaf
  return {"params": tree}
