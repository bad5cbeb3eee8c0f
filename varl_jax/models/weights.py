"""The weights of a Llama by their names in files, and the tree made of them."""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from varl_jax.models.errors import ModelError
from varl_jax.models.llama import LlamaConfig, Params

_LFS_MARK = b"version https://git-lfs"


class LayerWeight(NamedTuple):
  """One weight of a layer: path in the pytree, and what the formats call it."""

  path: tuple[str, str]
  folder: str
  gguf: str


LAYER = (
  LayerWeight(("attn_norm", "scale"), "input_layernorm", "attn_norm"),
  LayerWeight(("q", "kernel"), "self_attn.q_proj", "attn_q"),
  LayerWeight(("k", "kernel"), "self_attn.k_proj", "attn_k"),
  LayerWeight(("v", "kernel"), "self_attn.v_proj", "attn_v"),
  LayerWeight(("o", "kernel"), "self_attn.o_proj", "attn_output"),
  LayerWeight(("mlp_norm", "scale"), "post_attention_layernorm", "ffn_norm"),
  LayerWeight(("gate", "kernel"), "mlp.gate_proj", "ffn_gate"),
  LayerWeight(("up", "kernel"), "mlp.up_proj", "ffn_up"),
  LayerWeight(("down", "kernel"), "mlp.down_proj", "ffn_down"),
)


def assemble(
  config: LlamaConfig,
  weights: Mapping[str, np.ndarray],
  source: pathlib.Path,
  *,
  gguf: bool,
) -> Params:
  """Builds the pytree; every weight must be there once, with its shape."""
  left = dict(weights)
  q_width = config.num_heads * config.head_dim
  kv_width = config.num_kv_heads * config.head_dim
  width, ffn = config.hidden_size, config.intermediate_size
  shapes = {
    "attn_norm": (width,),
    "mlp_norm": (width,),
    "q": (q_width, width),
    "k": (kv_width, width),
    "v": (kv_width, width),
    "o": (width, q_width),
    "gate": (ffn, width),
    "up": (ffn, width),
    "down": (width, ffn),
  }

  def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in left:
      raise ModelError(f"{source} lacks the weight {name}.")
    array = left.pop(name)
    if array.shape != shape:
      raise ModelError(
        f"{source}: {name} has shape {array.shape}, the config says {shape}."
      )
    return array.astype(np.float32)

  def stack(name: LayerWeight) -> jax.Array:
    form = "blk.{}.{}.weight" if gguf else "model.layers.{}.{}.weight"
    plain = name.gguf if gguf else name.folder
    arrays = [
      take(form.format(i, plain), shapes[name.path[0]]).T
      for i in range(config.num_layers)
    ]
    return jnp.asarray(np.stack(arrays))

  table = (config.vocab_size, width)
  embed = "token_embd.weight" if gguf else "model.embed_tokens.weight"
  norm = "output_norm.weight" if gguf else "model.norm.weight"
  head = "output.weight" if gguf else "lm_head.weight"
  tree: dict[str, Any] = {
    "embed": jnp.asarray(take(embed, table)),
    "norm": {"scale": jnp.asarray(take(norm, (width,)))},
    "layers": {},
  }
  for name in LAYER:
    outer, inner = name.path
    tree["layers"][outer] = {inner: stack(name)}
  if not config.tie_embeddings:
    tree["lm_head"] = jnp.asarray(take(head, table))
  if left:
    raise ModelError(f"{source} has the unexpected weight {sorted(left)[0]}.")
  return {"params": tree}


def flat_weights(
  config: LlamaConfig, tree: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
  """Names and arrays of a folder's weights, projections as [out, in]."""
  yield "model.embed_tokens.weight", tree["embed"]
  yield "model.norm.weight", tree["norm"]["scale"]
  if not config.tie_embeddings:
    yield "lm_head.weight", tree["lm_head"]
  for (outer, inner), folder, _ in LAYER:
    for i, array in enumerate(tree["layers"][outer][inner]):
      yield f"model.layers.{i}.{folder}.weight", array.T


def read_config(
  read: Callable[[Callable[[str], Any]], LlamaConfig],
  fields: Mapping[str, Any],
  source: pathlib.Path,
) -> LlamaConfig:
  """Calls `read` with a getter of required fields; names what is wrong."""

  def get(key: str) -> Any:
    if fields.get(key) is None:
      raise ModelError(f"{source} does not say {key}.")
    return fields[key]

  try:
    return read(get)
  except (TypeError, ValueError) as error:
    raise ModelError(f"{source} cannot be used: {error}") from error


def refuse_pointer(file: pathlib.Path) -> None:
  """Raises ModelError when Git LFS left a pointer in the file's place."""
  with file.open("rb") as stream:
    if stream.read(len(_LFS_MARK)) == _LFS_MARK:
      raise ModelError(
        f"{file} is a Git LFS pointer; fetch the file itself (git lfs pull)."
      )
