"""GGUF files: dequantized weights, and the tokenizer in their metadata.

GGUF stores the rows of the q and k projections so that rotary pairs are
neighbours; they are put back to halves here.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from varl_jax.models import tokenizer as tokenizers
from varl_jax.models.assembly import Shardings, assemble
from varl_jax.models.errors import ModelError
from varl_jax.models.hf_config import read_config
from varl_jax.models.llama import LlamaConfig, Params
from varl_jax.models.tensor_file import refuse_pointer
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.weights import gguf_parts


def load_gguf(
  path: pathlib.Path,
  *,
  dtype: Any = jnp.float32,
  shardings: Shardings | None = None,
) -> tuple[LlamaConfig, Params, Tokenizer]:
  """Reads a file.

  Args:
    path: of the file.
    dtype: of the parameters.
    shardings: see `assembly.assemble`.

  Raises:
    ModelError: damaged, another architecture, or an unsupported weight type.
  """
  try:
    import gguf
  except ImportError as error:
    raise ModelError(
      'Reading .gguf files needs: pip install "varl_jax[smollm2]".'
    ) from error
  refuse_pointer(path)
  try:
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
  except (ValueError, IndexError, KeyError, OSError) as error:
    raise ModelError(f"{path} is damaged or not GGUF: {error}.") from error
  names = {tensor.name for tensor in reader.tensors}
  config = _from_gguf(fields, path, tied="output.weight" not in names)
  tokenizer = tokenizers.from_gguf(fields, vocab_size=config.vocab_size)
  params = assemble(
    config,
    _Weights(reader.tensors, config.head_dim, path, gguf.quants.dequantize),
    path,
    table=gguf_parts(config),
    dtype=dtype,
    shardings=shardings,
  )
  return config, params, tokenizer


class _Weights:
  """The tensors of a file, dequantized one at a time."""

  def __init__(
    self,
    tensors: Any,
    head_dim: int,
    path: pathlib.Path,
    dequantize: Callable[[Any, Any], np.ndarray],
  ):
    self._tensors = {tensor.name: tensor for tensor in tensors}
    self._head_dim, self._path, self._dequantize = head_dim, path, dequantize
    # GGUF lists the sizes of axes from the innermost outwards.
    self.shapes = {
      name: tuple(int(size) for size in reversed(tensor.shape))
      for name, tensor in self._tensors.items()
    }

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    tensor = self._tensors[name]
    try:
      array = self._dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
      raise ModelError(
        f"{self._path}: {name} has the unsupported type"
        f" {tensor.tensor_type.name}."
      ) from error
    if name.endswith(("attn_q.weight", "attn_k.weight")):
      array = halves(array, self._head_dim)
    return array[start:stop]


def halves(array: np.ndarray, head_dim: int) -> np.ndarray:
  """Rows of each head from pairs (0 0' 1 1' ...) to halves (0 1 ... 0' 1')."""
  pairs = array.reshape(-1, head_dim // 2, 2, array.shape[-1])
  return pairs.swapaxes(1, 2).reshape(array.shape)


def _from_gguf(
  fields: Mapping[str, Any], path: pathlib.Path, *, tied: bool
) -> LlamaConfig:
  kind = fields.get("general.architecture")
  if kind != "llama":
    raise ModelError(
      f"{path} holds a {kind!r} model; only 'llama' is supported."
    )
  scaling = fields.get("llama.rope.scaling.type", "none")
  if scaling != "none":
    raise ModelError(f"{path}: rope scaling {scaling!r} is not supported.")

  def read(get: Callable[[str], Any]) -> LlamaConfig:
    heads = get("llama.attention.head_count")
    width = get("llama.embedding_length")
    head_dim = fields.get("llama.attention.key_length", width // heads)
    if fields.get("llama.rope.dimension_count", head_dim) != head_dim:
      raise ModelError(f"{path}: partial rotary widths are not supported.")
    return LlamaConfig(
      vocab_size=len(get("tokenizer.ggml.tokens")),
      hidden_size=width,
      intermediate_size=get("llama.feed_forward_length"),
      num_layers=get("llama.block_count"),
      num_heads=heads,
      num_kv_heads=fields.get("llama.attention.head_count_kv", heads),
      head_dim=head_dim,
      rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
      rms_eps=get("llama.attention.layer_norm_rms_epsilon"),
      tie_embeddings=tied,
      max_position=get("llama.context_length"),
    )

  return read_config(read, fields, path)
