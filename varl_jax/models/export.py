"""Hugging Face folders written, whole or not at all.

Everything is written into a folder beside the target and synced. A new or
empty target is then replaced by one rename. In a folder that holds files
already (a tokenizer, an older model) the new ones take their places one by one,
config.json last: it is taken away first, so that a folder that a crash left
between two models says that it has none.
"""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from varl_jax.models import lora
from varl_jax.models.errors import ModelError
from varl_jax.models.hf_config import config_to_json
from varl_jax.models.hf_folder import INDEX, WEIGHTS
from varl_jax.models.layers import Params
from varl_jax.models.registry import make_model
from varl_jax.models.tensor_file import sync, write_tensors
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.weights import Part, by_name, parts, tensor_of

# Bytes of weights above which they are written in several files.
MAX_SHARD: Final = 5_000_000_000


def save_folder(
  folder: pathlib.Path,
  config: Any,
  params: Params,
  *,
  tokenizer: Tokenizer | None = None,
  dtype: Any = None,
  max_shard: int = MAX_SHARD,
) -> None:
  """Writes config, weights and, if given, the tokenizer; adapters are merged.

  One tensor at a time is brought to the host.

  Args:
    folder: may be missing; what it holds besides a model stays.
    config: shape of the model.
    params: the parameters, with or without adapters.
    tokenizer: written with its stop ids.
    dtype: of the weights in the file; None for that of the parameters.
    max_shard: bytes of weights above which there are several files.

  Raises:
    ModelError: the parameters lie on the devices of other processes.
  """
  leaves = jax.tree.leaves(params)
  if not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
    raise ModelError(
      "The parameters are spread over several processes; gather them into one"
      " before they are saved as a folder."
    )
  if "lora" in params:
    params = lora.merge(params, make_model(config).axes())
  folder.parent.mkdir(parents=True, exist_ok=True)
  made = pathlib.Path(
    tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)
  )
  try:
    kind = jnp.dtype(
      params["params"]["embed"].dtype if dtype is None else dtype
    )
    settings = config_to_json(config, dtype=kind.name)
    _write_weights(made, config, params["params"], kind, max_shard)
    if tokenizer is not None:
      _write_tokenizer(made, tokenizer, settings)
    write_json(made / "config.json", settings)
    _publish(made, folder)
  finally:
    shutil.rmtree(made, ignore_errors=True)


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes an object and syncs it."""
  with path.open("w", encoding="utf-8") as stream:
    stream.write(json.dumps(value, indent=2) + "\n")
    sync(stream)


def _write_weights(
  folder: pathlib.Path,
  config: Any,
  tree: Mapping[str, Any],
  dtype: np.dtype,
  max_shard: int,
) -> None:
  groups = dict(by_name(parts(config)))
  shards = _shards(groups, dtype.itemsize, max_shard)
  where = {}
  for number, names in enumerate(shards, start=1):
    file = WEIGHTS
    if len(shards) > 1:
      file = f"model-{number:05}-of-{len(shards):05}.safetensors"
    where |= dict.fromkeys(names, file)
    shapes = {name: groups[name][0].form.shape for name in names}
    arrays = _tensors([groups[name] for name in names], tree, dtype)
    write_tensors(folder / file, shapes, dtype, arrays)
  if len(shards) > 1:
    total = sum(
      int(np.prod(group[0].form.shape)) * dtype.itemsize
      for group in groups.values()
    )
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_json(folder / INDEX, index)


def _shards(
  groups: Mapping[str, list[Part]], itemsize: int, most: int
) -> list[list[str]]:
  """Names a file, in order; a tensor above the limit has a file of its own."""
  shards: list[list[str]] = [[]]
  room = most
  for name, group in groups.items():
    size = int(np.prod(group[0].form.shape)) * itemsize
    if size > room and shards[-1]:
      shards.append([])
      room = most
    shards[-1].append(name)
    room -= size
  return shards


def _tensors(
  groups: list[list[Part]], tree: Mapping[str, Any], dtype: np.dtype
) -> Iterator[np.ndarray]:
  def leaf(part: Part) -> np.ndarray:
    node: Any = tree
    for key in part.path:
      node = node[key]
    return np.asarray(node[part.lead] if part.lead else node, dtype)

  for group in groups:
    yield tensor_of(group, leaf)


def _write_tokenizer(
  folder: pathlib.Path, tokenizer: Tokenizer, settings: dict[str, Any]
) -> None:
  tokenizer.save(folder)
  named = {
    "eos_token_id": sorted(tokenizer.stop_ids),
    "pad_token_id": tokenizer.pad_id,
  }
  settings |= named
  write_json(folder / "generation_config.json", named)


def _publish(made: pathlib.Path, folder: pathlib.Path) -> None:
  """Puts the files of `made` in the place of those of `folder`."""
  made.chmod(0o777 & ~_umask())
  if not folder.exists() or not any(folder.iterdir()):
    os.replace(made, folder)
    _sync_folder(folder.parent)
    return
  (folder / "config.json").unlink(missing_ok=True)
  _sync_folder(folder)
  for old in (*folder.glob("model*.safetensors"), folder / INDEX):
    old.unlink(missing_ok=True)
  files = sorted(made.iterdir(), key=lambda file: file.name == "config.json")
  for file in files:
    os.replace(file, folder / file.name)
  _sync_folder(folder)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _sync_folder(folder: pathlib.Path) -> None:
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
