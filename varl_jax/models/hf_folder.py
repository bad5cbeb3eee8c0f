"""Hugging Face folders: config.json, *.safetensors, tokenizer files."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from varl_jax.models import tokenizer as tokenizers
from varl_jax.models.errors import ModelError
from varl_jax.models.llama import LlamaConfig, Params
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.weights import (
  assemble,
  flat_weights,
  read_config,
  refuse_pointer,
)


def load_folder(
  folder: pathlib.Path,
) -> tuple[LlamaConfig, Params, Tokenizer]:
  """Reads a folder.

  Raises:
    ModelError: a file is missing or damaged, the architecture is another one,
      or weights and config do not fit.
  """
  settings = _read_json(folder / "config.json")
  config = config_from_json(settings, folder)
  tensors = {}
  for file in _weight_files(folder):
    tensors.update(_read_safetensors(file))
  skip = {"lm_head.weight"} if config.tie_embeddings else set()
  weights = {
    name: array
    for name, array in tensors.items()
    if name not in skip and not name.endswith("rotary_emb.inv_freq")
  }
  params = assemble(config, weights, folder, gguf=False)
  stop = _as_ids(settings.get("eos_token_id"))
  if (folder / "generation_config.json").is_file():
    generation = _read_json(folder / "generation_config.json")
    stop |= _as_ids(generation.get("eos_token_id"))
  tokenizer = tokenizers.from_folder(
    folder, vocab_size=config.vocab_size, stop_ids=stop
  )
  return config, params, tokenizer


def save_folder(
  folder: pathlib.Path,
  config: LlamaConfig,
  params: Params,
  *,
  tokenizer: Tokenizer | None = None,
) -> None:
  """Writes a folder: config, fp32 weights and, if given, the tokenizer."""
  import safetensors.numpy

  folder.mkdir(parents=True, exist_ok=True)
  tree = jax.device_get(params)["params"]
  tensors = {}
  for name, array in flat_weights(config, tree):
    # safetensors writes the memory as it lies, so views must be copied.
    tensors[name] = np.ascontiguousarray(array, dtype=np.float32)
  settings = _to_json(config)
  if tokenizer is not None:
    tokenizer.save(folder)
    settings["eos_token_id"] = sorted(tokenizer.stop_ids)
    settings["pad_token_id"] = tokenizer.pad_id
  # Written as bytes: save_file leaves a file only its owner can read.
  whole = safetensors.numpy.save(tensors, metadata={"format": "pt"})
  (folder / "model.safetensors").write_bytes(whole)
  text = json.dumps(settings, indent=2) + "\n"
  (folder / "config.json").write_text(text, encoding="utf-8")


def config_from_json(
  settings: Mapping[str, Any], folder: pathlib.Path
) -> LlamaConfig:
  """The shape in a config.json; raises ModelError for what we cannot run."""
  if settings.get("model_type") != "llama":
    raise ModelError(
      f"{folder} holds a {settings.get('model_type')!r} model; only 'llama'"
      " is supported."
    )
  # Older files keep rope_theta at the top and scaling in rope_scaling.
  rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
  rope_type = rope.get("rope_type", rope.get("type", "default"))
  refused = {
    "rope scaling": rope_type if rope_type != "default" else None,
    "attention_bias": settings.get("attention_bias"),
    "mlp_bias": settings.get("mlp_bias"),
    "hidden_act": (
      settings["hidden_act"]
      if settings.get("hidden_act", "silu") != "silu"
      else None
    ),
  }
  for name, value in refused.items():
    if value:
      raise ModelError(f"{folder}: {name} {value!r} is not supported.")
  theta = rope.get("rope_theta", settings.get("rope_theta", 10000.0))

  def read(get: Callable[[str], Any]) -> LlamaConfig:
    heads, width = get("num_attention_heads"), get("hidden_size")
    return LlamaConfig(
      vocab_size=get("vocab_size"),
      hidden_size=width,
      intermediate_size=get("intermediate_size"),
      num_layers=get("num_hidden_layers"),
      num_heads=heads,
      num_kv_heads=settings.get("num_key_value_heads") or heads,
      head_dim=settings.get("head_dim") or width // heads,
      rope_theta=float(theta),
      rms_eps=float(settings.get("rms_norm_eps", 1e-6)),
      tie_embeddings=bool(settings.get("tie_word_embeddings", False)),
      max_position=int(settings.get("max_position_embeddings", 2048)),
    )

  return read_config(read, settings, folder / "config.json")


def _to_json(config: LlamaConfig) -> dict[str, Any]:
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "vocab_size": config.vocab_size,
    "hidden_size": config.hidden_size,
    "intermediate_size": config.intermediate_size,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "hidden_act": "silu",
    "rope_theta": config.rope_theta,
    "rms_norm_eps": config.rms_eps,
    "tie_word_embeddings": config.tie_embeddings,
    "max_position_embeddings": config.max_position,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": None,
  }


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  index = folder / "model.safetensors.index.json"
  if index.is_file():
    names = set(_read_json(index).get("weight_map", {}).values())
    files = [folder / name for name in sorted(names)]
  else:
    files = [folder / "model.safetensors"]
  for file in files:
    if not file.is_file():
      raise ModelError(f"{folder} has no {file.name}.")
  return files


def _read_safetensors(file: pathlib.Path) -> dict[str, np.ndarray]:
  import safetensors
  import safetensors.numpy

  refuse_pointer(file)
  try:
    tensors = safetensors.numpy.load_file(file)
  except (safetensors.SafetensorError, OSError) as error:
    raise ModelError(
      f"{file} is damaged or not safetensors: {error}."
    ) from error
  for name, array in tensors.items():
    if not jnp.issubdtype(array.dtype, jnp.floating):
      raise ModelError(
        f"{file}: {name} has the unsupported type {array.dtype}."
      )
  return tensors


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise ModelError(f"{path.parent} has no {path.name}.") from error
  except (ValueError, OSError) as error:
    raise ModelError(f"{path} cannot be read: {error}.") from error
  if not isinstance(value, dict):
    raise ModelError(f"{path} is not a JSON object.")
  return value


def _as_ids(value: Any) -> set[int]:
  if value is None:
    return set()
  return {value} if isinstance(value, int) else set(value)
