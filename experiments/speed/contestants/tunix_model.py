"""The model as Tunix loads it, for its sampler and its trainer."""

import importlib.metadata
import json
import pathlib
from typing import Any

import jax.numpy as jnp
from tunix.models.llama3 import model as llama
from tunix.models.llama3 import params as weights


def load(folder: str, *, remat: bool = False) -> tuple[Any, Any]:
  """The shape of a Hugging Face folder, and the model in float32."""
  said = json.loads((pathlib.Path(folder) / "config.json").read_text())
  rope = said.get("rope_parameters") or said
  shape = llama.ModelConfig(
    num_layers=said["num_hidden_layers"],
    vocab_size=said["vocab_size"],
    embed_dim=said["hidden_size"],
    hidden_dim=said["intermediate_size"],
    num_heads=said["num_attention_heads"],
    head_dim=said["hidden_size"] // said["num_attention_heads"],
    num_kv_heads=said["num_key_value_heads"],
    rope_theta=int(rope["rope_theta"]),
    norm_eps=said["rms_norm_eps"],
    weight_tying=said["tie_word_embeddings"],
    remat_config=llama.RematConfig.DECODER if remat else llama.RematConfig.NONE,
  )
  made = weights.create_model_from_safe_tensors(
    folder, shape, dtype=jnp.float32
  )
  return shape, made


def versions() -> dict[str, str]:
  """Of Tunix and of what it runs on."""
  return {
    name: importlib.metadata.version(name)
    for name in ("google-tunix", "jax", "flax")
  }
