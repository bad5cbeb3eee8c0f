"""config.json of Hugging Face folders to our configs and back, strictly.

Whatever would change the numbers and is not built is refused by name.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from varl_jax.models.errors import ModelError
from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config

# model_type of the file to the class of transformers that has its weights.
ARCHITECTURES = {
  "llama": "LlamaForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
  "qwen3_5_text": "Qwen3_5ForCausalLM",
}
# Keys that change what a model computes, with the values that are built.
_BUILT: Mapping[str, tuple[Any, ...]] = {
  "hidden_act": (None, "silu"),
  "attention_bias": (None, False),
  "mlp_bias": (None, False),
  "use_sliding_window": (None, False),
  "attn_output_gate": (None, True),
  "quantization_config": (None,),
  "num_experts": (None, 0),
}


def config_from_json(
  settings: Mapping[str, Any], folder: pathlib.Path
) -> LlamaConfig | Qwen35Config:
  """The shape in a config.json.

  A checkpoint with a vision part has the shape of its text model in
  `text_config`; only that is read.

  Raises:
    ModelError: another architecture, or something we do not run.
  """
  kind = settings.get("model_type")
  if kind == "qwen3_5":
    inner = settings.get("text_config")
    if not isinstance(inner, Mapping):
      raise ModelError(f"{folder / 'config.json'} does not say text_config.")
    shared = ("tie_word_embeddings", "quantization_config")
    over = {key: settings[key] for key in shared if key in settings}
    settings = {"model_type": "qwen3_5_text", **inner, **over}
    kind = settings["model_type"]
  if kind not in ARCHITECTURES:
    raise ModelError(
      f"{folder} holds a {kind!r} model; supported are 'llama', 'qwen3',"
      " 'qwen3_5' and 'qwen3_5_text'."
    )
  for name, values in _BUILT.items():
    if settings.get(name) not in values:
      raise ModelError(f"{folder}: {name} {settings[name]!r} is not supported.")
  rope = _rope(settings, folder)
  read = _qwen3_5 if kind == "qwen3_5_text" else _dense
  return read_config(
    lambda get: read(get, settings, rope, folder),
    settings,
    folder / "config.json",
  )


def config_to_json(config: Any, *, dtype: str) -> dict[str, Any]:
  """A config.json that transformers reads.

  Args:
    config: shape of the model.
    dtype: name of the weights' type.
  """
  hybrid = isinstance(config, Qwen35Config)
  dense = "qwen3" if getattr(config, "qk_norm", False) else "llama"
  kind = "qwen3_5_text" if hybrid else dense
  rope: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": config.rope_theta,
  }
  settings = {
    "architectures": [ARCHITECTURES[kind]],
    "model_type": kind,
    "dtype": dtype,
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
    "bos_token_id": None,
    "eos_token_id": None,
  }
  if isinstance(config, Qwen35Config):
    share = config.rotary_dim / config.head_dim
    rope |= {
      "partial_rotary_factor": share,
      # Positions of text are the same in all three sections.
      "mrope_section": _sections(config.rotary_dim // 2),
      "mrope_interleaved": True,
    }
    settings |= {
      "partial_rotary_factor": share,
      "full_attention_interval": config.interval,
      "layer_types": _layer_types(config.num_layers, config.interval),
      "linear_num_key_heads": config.delta_k_heads,
      "linear_num_value_heads": config.delta_v_heads,
      "linear_key_head_dim": config.delta_k_dim,
      "linear_value_head_dim": config.delta_v_dim,
      "linear_conv_kernel_dim": config.conv_width,
    }
  elif not config.qk_norm:
    settings["mlp_bias"] = False
  return settings | {"rope_parameters": rope}


def read_config(
  read: Callable[[Callable[[str], Any]], Any],
  fields: Mapping[str, Any],
  source: pathlib.Path,
) -> Any:
  """Calls `read` with a getter of required fields; names what is wrong."""

  def get(key: str) -> Any:
    if fields.get(key) is None:
      raise ModelError(f"{source} does not say {key}.")
    return fields[key]

  try:
    return read(get)
  except (TypeError, ValueError, AttributeError) as error:
    raise ModelError(f"{source} cannot be used: {error}") from error


def _rope(
  settings: Mapping[str, Any], folder: pathlib.Path
) -> Mapping[str, Any]:
  """Rotary settings; older files keep theta at the top, scaling in its own."""
  rope: dict[str, Any] = {}
  for key in ("rope_scaling", "rope_parameters"):
    found = settings.get(key) or {}
    if not isinstance(found, Mapping):
      raise ModelError(f"{folder}: {key} {found!r} cannot be read.")
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "mrope"):
      raise ModelError(f"{folder}: rope scaling {kind!r} is not supported.")
    rope |= found
  known = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
  }
  unknown = sorted(set(rope) - known)
  if unknown:
    raise ModelError(
      f"{folder}: rope parameter {unknown[0]!r} is not supported."
    )
  top = ("rope_theta", "partial_rotary_factor")
  above = {key: settings[key] for key in top if settings.get(key) is not None}
  return {**above, **{k: v for k, v in rope.items() if v is not None}}


def _shared(get: Callable[[str], Any], settings: Any) -> dict[str, Any]:
  heads, width = get("num_attention_heads"), get("hidden_size")
  return {
    "vocab_size": get("vocab_size"),
    "hidden_size": width,
    "intermediate_size": get("intermediate_size"),
    "num_layers": get("num_hidden_layers"),
    "num_heads": heads,
    "num_kv_heads": settings.get("num_key_value_heads") or heads,
    "head_dim": settings.get("head_dim") or width // heads,
    "rms_eps": float(settings.get("rms_norm_eps", 1e-6)),
    "tie_embeddings": bool(settings.get("tie_word_embeddings", False)),
    "max_position": int(settings.get("max_position_embeddings", 2048)),
  }


def _dense(
  get: Callable[[str], Any],
  settings: Mapping[str, Any],
  rope: Mapping[str, Any],
  folder: pathlib.Path,
) -> LlamaConfig:
  share = rope.get("partial_rotary_factor", 1.0)
  kinds = set(settings.get("layer_types") or ())
  if share != 1.0 or "mrope_section" in rope:
    raise ModelError(f"{folder}: partial rotary widths are not supported.")
  if kinds - {"full_attention"}:
    raise ModelError(
      f"{folder}: layers of type {sorted(kinds - {'full_attention'})[0]!r}"
      f" in a {settings['model_type']!r} model are not supported."
    )
  return LlamaConfig(
    **_shared(get, settings),
    rope_theta=float(rope.get("rope_theta", 10000.0)),
    qk_norm=settings["model_type"] == "qwen3",
  )


def _qwen3_5(
  get: Callable[[str], Any],
  settings: Mapping[str, Any],
  rope: Mapping[str, Any],
  folder: pathlib.Path,
) -> Qwen35Config:
  shared = _shared(get, settings)
  layers = shared["num_layers"]
  kinds = settings.get("layer_types")
  interval = settings.get("full_attention_interval")
  if interval is None:
    found = kinds or _layer_types(layers, 4)
    interval = list(found).index("full_attention") + 1
  if kinds is not None and list(kinds) != _layer_types(layers, interval):
    raise ModelError(
      f"{folder}: layer_types is not one attention layer after every"
      f" {interval - 1} linear ones, which is what is supported."
    )
  if rope.get("rope_theta") is None:
    raise ModelError(f"{folder / 'config.json'} does not say rope_theta.")
  share = rope.get("partial_rotary_factor", 0.25)
  return Qwen35Config(
    **shared,
    rope_theta=float(rope["rope_theta"]),
    rotary_dim=int(shared["head_dim"] * share),
    interval=interval,
    delta_k_heads=get("linear_num_key_heads"),
    delta_v_heads=get("linear_num_value_heads"),
    delta_k_dim=get("linear_key_head_dim"),
    delta_v_dim=get("linear_value_head_dim"),
    conv_width=get("linear_conv_kernel_dim"),
  )


def _layer_types(layers: int, interval: int) -> list[str]:
  return [
    "linear_attention" if (i + 1) % interval else "full_attention"
    for i in range(layers)
  ]


def _sections(half: int) -> list[int]:
  """Half the rotary width in three sections: time, height, width."""
  third = half // 3
  return [half - 2 * third, third, third]
