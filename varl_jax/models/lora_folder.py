"""Adapters in folders that peft reads, and back.

Matrices that hold several roles in Hugging Face's files (Qwen3.5's `q_proj` and
`in_proj_qkv`) have several adapters here; such targets are refused, and a
merged export (`export.save_folder`) holds them.
"""

import pathlib
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from varl_jax.config import LoraConfig
from varl_jax.models import lora
from varl_jax.models.assembly import assemble
from varl_jax.models.errors import ModelError
from varl_jax.models.export import write_json
from varl_jax.models.hf_folder import read_json
from varl_jax.models.layers import Params
from varl_jax.models.registry import make_model
from varl_jax.models.tensor_file import TensorFile, write_tensors
from varl_jax.models.weights import Part, by_name, linear, parts

WEIGHTS: Final = "adapter_model.safetensors"
SETTINGS: Final = "adapter_config.json"
# Settings of peft that change the numbers, with the values that are built.
_BUILT: Final = {
  "bias": "none",
  "use_rslora": False,
  "use_dora": False,
  "rank_pattern": {},
  "alpha_pattern": {},
}


def save_adapter(
  folder: pathlib.Path, config: Any, settings: LoraConfig, adapter: Params
) -> None:
  """Writes an adapter of a model of shape `config`.

  Raises:
    ModelError: a target is one role of a matrix that holds several.
  """
  table = _table(config, settings, settings.rank)
  leaves = adapter["lora"]["layers"]

  def tensor(part: Part) -> np.ndarray:
    leaf = leaves
    for key in part.path[1:]:
      leaf = leaf[key]
    undo = np.argsort(part.form.order)
    values = np.asarray(leaf[part.lead], np.float32)
    return values.transpose(undo).reshape(part.form.shape)

  folder.mkdir(parents=True, exist_ok=True)
  shapes = {part.name: part.form.shape for part in table}
  write_tensors(
    folder / WEIGHTS, shapes, np.float32, (tensor(part) for part in table)
  )
  modules = {part.name.split(".")[-3] for part in table}
  write_json(
    folder / SETTINGS,
    {
      "peft_type": "LORA",
      "task_type": "CAUSAL_LM",
      "base_model_name_or_path": None,
      "r": settings.rank,
      "lora_alpha": settings.alpha,
      "lora_dropout": 0.0,
      "target_modules": sorted(modules),
      "inference_mode": True,
      **_BUILT,
    },
  )


def load_adapter(
  folder: pathlib.Path, config: Any, settings: LoraConfig
) -> Params:
  """Reads the adapter of a model of shape `config`.

  Args:
    folder: with adapter_config.json and adapter_model.safetensors.
    config: shape of the trunk.
    settings: the targets; rank and alpha are the folder's.

  Raises:
    ModelError: a file is missing or damaged, weights are missing or unexpected,
      or the adapter is of a kind we do not run.
  """
  found = read_json(folder / SETTINGS)
  for key, value in _BUILT.items():
    if (found.get(key) or value) != value:
      raise ModelError(
        f"{folder / SETTINGS}: {key} {found[key]!r} is not supported."
      )
  rank, alpha = found.get("r"), found.get("lora_alpha")
  if not isinstance(rank, int) or not isinstance(alpha, int | float):
    raise ModelError(f"{folder / SETTINGS} does not say r and lora_alpha.")
  if not (folder / WEIGHTS).is_file():
    raise ModelError(f"{folder} has no {WEIGHTS}.")
  file = TensorFile(folder / WEIGHTS)
  table = _table(config, settings, rank)
  tree = assemble(config, file, folder, table=table)["params"]
  axes = lora.lora_axes(make_model(config).axes(), settings)
  scale = jax.tree.map(
    lambda leaf: jnp.full(leaf.shape[:-2], alpha / rank, jnp.float32),
    _leads(tree, axes["lora_scale"]),
  )
  return {"lora": tree, "lora_scale": scale}


def _leads(tree: Any, scales: Any) -> Any:
  """The tree of scales with zeros of the leading axes and two more."""
  if isinstance(scales, tuple):
    return jnp.zeros((*tree.shape[: len(scales)], 1, 1))
  return {
    name: _leads(tree["a"] if name == "scale" else tree[name], child)
    for name, child in scales.items()
  }


def _table(config: Any, settings: LoraConfig, rank: int) -> list[Part]:
  """How the adapter's leaves lie in the file."""
  targets = lora.targets(make_model(config).axes(), settings)
  inputs = {target.path: target.inputs for target in targets}
  found = []
  for name, group in by_name(parts(config)):
    for part in group:
      path = part.path[:-1]
      if path not in inputs:
        continue
      if len(group) > 1:
        raise ModelError(
          f"{'.'.join(path)} is one of {len(group)} roles of"
          f" {name.split('.')[-2]} in adapter folders; save a merged model"
          " instead."
        )
      ins = part.form.part[: inputs[path]]
      outs = part.form.part[inputs[path] :]
      stem = f"base_model.model.{name.removesuffix('.weight')}"
      for low, form in (
        ("a", linear((rank,), ins)),
        ("b", linear(outs, (rank,))),
      ):
        title = f"{stem}.lora_{low.upper()}.weight"
        found.append(Part(title, (*path, low), part.lead, form))
  return found
