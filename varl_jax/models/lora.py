"""Low-rank adapters of a frozen trunk.

An adapter tree is {"lora": {...}, "lora_scale": {...}}, each mirroring the
parameters down to the projections: `a` [in..., r] and `b` [r, out...] there,
and `scale` = alpha / r here, all with the leading axes of the kernel. Put
beside {"params": ...} it makes every model call apply it (`layers.Projection`);
another tree on the same trunk is another adapter. Only `lora` is
trained. `b` starts at zero, so that a new adapter changes nothing.

Targets are names of projections, such as `q` or `down`, or with what they lie
in, as `attention.q`.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from varl_jax.config import ConfigError, LoraConfig
from varl_jax.models.layers import Axes, Params

_LEADING = ("layers", None)


class Target(NamedTuple):
  """A projection's kernel, stacked over layers.

  Attributes:
    path: of the projection in the parameters.
    axes: logical axes of its kernel.
    lead: how many of them are leading ones.
    inputs: how many after those are contracted.
  """

  path: tuple[str, ...]
  axes: Axes
  lead: int
  inputs: int

  @property
  def low(self) -> dict[str, Axes]:
    """Logical axes of `a` and `b`."""
    split = self.lead + self.inputs
    return {
      "a": (*self.axes[:split], "rank"),
      "b": (*self.axes[: self.lead], "rank", *self.axes[split:]),
    }


def projections(axes: Params) -> list[Target]:
  """All projections of a model, given its `axes()`."""
  return list(_walk(axes["params"], ()))


def targets(axes: Params, config: LoraConfig) -> list[Target]:
  """The projections that a config names.

  Raises:
    ConfigError: a name that the model lacks, or none at all.
  """
  known = projections(axes)
  wanted = [name.strip() for name in config.targets.split(",") if name.strip()]
  found = {name: [t for t in known if _named(t, name)] for name in wanted}
  unknown = [name for name in wanted if not found[name]]
  if unknown or not wanted:
    names = sorted({target.path[-1] for target in known})
    what = f"names {unknown[0]!r}, which" if unknown else "is empty, and"
    raise ConfigError(
      f"lora.targets {what} this model does not project; its projections are"
      f" {', '.join(names)}."
    )
  chosen = {t.path for group in found.values() for t in group}
  return [target for target in known if target.path in chosen]


def init(
  params: Params, axes: Params, config: LoraConfig, key: Array
) -> Params:
  """A new adapter, {"lora", "lora_scale"}, in fp32.

  `a` is normal with deviation 1 / sqrt(in), `b` is zero. A projection's draw
  does not depend on which others are adapted.

  Args:
    params: of the trunk; only shapes are read.
    axes: of the trunk, from the model.
    config: rank, alpha, targets.
    key: of the draw.

  Raises:
    ConfigError: a target that the model lacks, or a rank outside
      1 .. min(in, out) of a target.
  """
  lora, scale = {}, {}
  for target in targets(axes, config):
    shape = _at(params["params"], target.path)["kernel"].shape
    lead, ins, outs = _split(target, shape)
    most = min(_size(ins), _size(outs))
    if not 1 <= config.rank <= most:
      raise ConfigError(
        f"lora.rank is between 1 and {most}, the smaller side of the projection"
        f" {'.'.join(target.path)}; got {config.rank}."
      )
    own = jax.random.fold_in(key, zlib.crc32(".".join(target.path).encode()))
    draw = jax.random.normal(own, (*lead, *ins, config.rank))
    _set(lora, (*target.path, "a"), draw * _size(ins) ** -0.5)
    _set(lora, (*target.path, "b"), jnp.zeros((*lead, config.rank, *outs)))
    value = jnp.full(lead, config.alpha / config.rank, jnp.float32)
    _set(scale, (*target.path, "scale"), value)
  return {"lora": lora, "lora_scale": scale}


def lora_axes(axes: Params, config: LoraConfig) -> Params:
  """Logical axes of an adapter, in the tree of `init`.

  Raises:
    ConfigError: see `targets`.
  """
  lora, scale = {}, {}
  for target in targets(axes, config):
    for name, names in target.low.items():
      _set(lora, (*target.path, name), names)
    _set(scale, (*target.path, "scale"), target.axes[: target.lead])
  return {"lora": lora, "lora_scale": scale}


def attach(params: Params, adapter: Params, axes: Params) -> Params:
  """The trunk with an adapter, in the place of any that it had.

  Raises:
    ValueError: the adapter does not fit the trunk; the message names where.
  """
  known = {target.path: target for target in projections(axes)}
  for path, low in _adapted(adapter["lora"]):
    if path not in known:
      raise ValueError(
        f"The adapter has {'.'.join(path)}, which is no projection of the"
        " model."
      )
    shape = _at(params["params"], path)["kernel"].shape
    lead, ins, outs = _split(known[path], shape)
    rank = low["a"].shape[-1]
    wanted = ((*lead, *ins, rank), (*lead, rank, *outs))
    found = (low["a"].shape, low["b"].shape)
    if wanted != found:
      raise ValueError(
        f"The adapter of {'.'.join(path)} has shapes {found[0]} and {found[1]};"
        f" with its rank the model wants {wanted[0]} and {wanted[1]}."
      )
  names = ("lora", "lora_scale")
  return {"params": params["params"], **{n: adapter[n] for n in names}}


def split(params: Params) -> tuple[Params, Params]:
  """(trained, frozen) collections; `{**frozen, **trained}` is the whole.

  Only `lora` is trained where there is one, else everything.
  """
  trained = {"lora"} if "lora" in params else set(params)
  return (
    {name: tree for name, tree in params.items() if name in trained},
    {name: tree for name, tree in params.items() if name not in trained},
  )


def merge(params: Params, axes: Params) -> Params:
  """Parameters whose kernels hold the adapter: kernel + scale * a b.

  The sum is fp32 and then of the kernel's type.
  """
  known = {target.path: target for target in projections(axes)}
  tree = jax.tree.map(lambda leaf: leaf, params["params"])
  for path, low in _adapted(params["lora"]):
    scale = _at(params["lora_scale"], path)["scale"]
    node = _at(tree, path)
    node["kernel"] = _merged(
      node["kernel"], low["a"], low["b"], scale, known[path].lead
    )
  return {"params": tree}


def _merged(
  kernel: Array, a: Array, b: Array, scale: Array, lead: int
) -> Array:
  batch = tuple(range(lead))
  added = jax.lax.dot_general(
    a.astype(jnp.float32),
    b.astype(jnp.float32),
    (((a.ndim - 1,), (lead,)), (batch, batch)),
    precision=jax.lax.Precision.HIGHEST,
  )
  scale = scale.reshape(scale.shape + (1,) * (kernel.ndim - lead))
  return (kernel.astype(jnp.float32) + scale * added).astype(kernel.dtype)


def _walk(node: Any, path: tuple[str, ...]) -> Iterator[Target]:
  for name, child in node.items():
    if isinstance(child, Mapping):
      yield from _walk(child, (*path, name))
    elif name == "kernel" and "conv" not in child:
      lead = next(i for i, axis in enumerate(child) if axis not in _LEADING)
      inputs = 1 if child[lead] == "embed" else len(child) - lead - 1
      yield Target(path, child, lead, inputs)


def _adapted(lora: Any, path: tuple[str, ...] = ()) -> Iterator[Any]:
  """(path, {"a", "b"}) of every adapted projection."""
  for name, child in lora.items():
    if "a" in child and not isinstance(child["a"], Mapping):
      yield (*path, name), child
    else:
      yield from _adapted(child, (*path, name))


def _named(target: Target, name: str) -> bool:
  wanted = tuple(name.split("."))
  return target.path[-len(wanted) :] == wanted


def _split(target: Target, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
  """Leading, contracted and produced axes of a kernel's shape."""
  end = target.lead + target.inputs
  return shape[: target.lead], shape[target.lead : end], shape[end:]


def _size(shape: tuple[int, ...]) -> int:
  size = 1
  for length in shape:
    size *= length
  return size


def _at(tree: Any, path: tuple[str, ...]) -> Any:
  for key in path:
    tree = tree[key]
  return tree


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
  for key in path[:-1]:
    tree = tree.setdefault(key, {})
  tree[path[-1]] = value
