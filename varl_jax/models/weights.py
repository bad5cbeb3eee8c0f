"""How the weights of our models lie in files: one table, both directions.

A leaf of our tree is made of parts, one a layer. A part lies in consecutive
rows of one tensor of a file; seen as `view` and with its axes put in another
order it is the part. So a mesh's slice of a leaf is a range of rows with a
selection in them, and an export is the same table read backwards.

Tensors of files are [out, in]. Qwen3.5 keeps three roles in `in_proj_qkv` and
in its convolution, one after the other, and two in `q_proj`, head by head.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config

Index = tuple[slice, ...]


class Form(NamedTuple):
  """How a part lies in a tensor.

  Attributes:
    shape: of the whole tensor.
    view: shape of the part, the tensor's rows first.
    order: axes of the view in the order of the leaf.
    first: row of the tensor at which the part begins.
    pick: (which, of how many): each entry of the view's first axis is one of
      several that alternate, as q and its gate do in every head.
  """

  shape: tuple[int, ...]
  view: tuple[int, ...]
  order: tuple[int, ...]
  first: int = 0
  pick: tuple[int, int] = (0, 1)

  @property
  def part(self) -> tuple[int, ...]:
    """Shape of the part in the leaf."""
    return tuple(self.view[axis] for axis in self.order)

  def rows(self, start: int, stop: int) -> tuple[int, int]:
    """Rows of the tensor that hold entries start to stop of the view."""
    count = math.prod(self.view[1:]) // math.prod(self.shape[1:])
    row = count * self.pick[1]
    return self.first + start * row, self.first + stop * row

  def seen(self, rows: np.ndarray) -> np.ndarray:
    """The view of whole entries, given their rows; shares their memory."""
    which, of = self.pick
    return rows.reshape(-1, of, *self.view[1:])[:, which]


class Part(NamedTuple):
  """One part of a leaf.

  Attributes:
    name: of the tensor in the file.
    path: of the leaf in the tree.
    lead: where it stands in the leaf's leading axes, () for a whole leaf.
    form: how it lies in the tensor.
  """

  name: str
  path: tuple[str, ...]
  lead: tuple[int, ...]
  form: Form


class Row(NamedTuple):
  """A leaf of a layer: its path there, names in folders and in GGUF, form."""

  path: tuple[str, ...]
  folder: str
  gguf: str
  form: Form


def parts(config: Any, prefix: str = "model.") -> list[Part]:
  """The parts of a model in a Hugging Face folder, largest tensors first.

  Args:
    config: shape of the model.
    prefix: of all names but the output head's.
  """
  found = [Part(f"{prefix}embed_tokens.weight", ("embed",), (), _table(config))]
  if not config.tie_embeddings:
    found.append(Part("lm_head.weight", ("lm_head",), (), _table(config)))
  norm = plain((config.hidden_size,))
  found.append(Part(f"{prefix}norm.weight", ("norm", "scale"), (), norm))
  for layer in range(config.num_layers):
    top, lead, rows = _layer(config, layer)
    for row in rows:
      name = f"{prefix}layers.{layer}.{row.folder}"
      found.append(Part(name, ("layers", *top, *row.path), lead, row.form))
  return found


def gguf_parts(config: LlamaConfig) -> list[Part]:
  """The parts of a Llama in a GGUF file."""
  table = _table(config)
  norm = plain((config.hidden_size,))
  found = [Part("token_embd.weight", ("embed",), (), table)]
  if not config.tie_embeddings:
    found.append(Part("output.weight", ("lm_head",), (), table))
  found.append(Part("output_norm.weight", ("norm", "scale"), (), norm))
  for layer in range(config.num_layers):
    for row in _llama(config):
      name = f"blk.{layer}.{row.gguf}.weight"
      found.append(Part(name, ("layers", *row.path), (layer,), row.form))
  return found


def tensor_of(parts_: Iterable[Part], leaf: Any) -> np.ndarray:
  """A file's tensor put together from all the parts that lie in it.

  Args:
    parts_: those with the tensor's name.
    leaf: called with a part, returns its values as they stand in the leaf.
  """
  whole = None
  for part in parts_:
    values = np.asarray(leaf(part))
    if whole is None:
      whole = np.empty(part.form.shape, values.dtype)
    start, stop = part.form.rows(0, part.form.view[0])
    undo = np.argsort(part.form.order)
    part.form.seen(whole[start:stop])[...] = values.transpose(undo)
  assert whole is not None
  return whole


def by_name(parts_: Iterable[Part]) -> Iterator[tuple[str, list[Part]]]:
  """Parts of every tensor, in the order in which tensors first appear."""
  groups: dict[str, list[Part]] = {}
  for part in parts_:
    groups.setdefault(part.name, []).append(part)
  yield from groups.items()


def plain(shape: tuple[int, ...]) -> Form:
  """A tensor that is the part."""
  return Form(shape, shape, tuple(range(len(shape))))


def linear(
  outputs: tuple[int, ...],
  inputs: tuple[int, ...],
  *,
  rows: int = 0,
  first: int = 0,
  pick: tuple[int, int] = (0, 1),
) -> Form:
  """A projection [out, in] that is the part [inputs..., outputs...].

  Args:
    outputs: axes of the part that the tensor's rows are.
    inputs: axes of the part that its columns are.
    rows: of the tensor, where other parts lie in it too.
    first: see `Form`.
    pick: see `Form`.
  """
  shape = (rows or math.prod(outputs), math.prod(inputs))
  split = len(outputs)
  order = (*range(split, split + len(inputs)), *range(split))
  return Form(shape, (*outputs, *inputs), order, first, pick)


def _table(config: Any) -> Form:
  return plain((config.vocab_size, config.hidden_size))


def _layer(
  config: Any, layer: int
) -> tuple[tuple[str, ...], tuple[int, ...], list[Row]]:
  """Path of a layer's kind, its place in the leading axes, its leaves."""
  if isinstance(config, LlamaConfig):
    return (), (layer,), _llama(config)
  assert isinstance(config, Qwen35Config)
  block, place = divmod(layer, config.interval)
  if place == config.interval - 1:
    return ("attention",), (block,), _gated_attention(config)
  return ("delta",), (block, place), _delta(config)


def _llama(config: LlamaConfig) -> list[Row]:
  width, head = (config.hidden_size,), config.head_dim
  heads, kv = (config.num_heads, head), (config.num_kv_heads, head)
  rows = [
    _kernel("q", "self_attn.q_proj", "attn_q", linear(heads, width)),
    *_key_value_out(width, kv, heads),
    *_around(config),
  ]
  return rows + (_head_norms(head) if config.qk_norm else [])


def _gated_attention(config: Qwen35Config) -> list[Row]:
  width, head = (config.hidden_size,), config.head_dim
  heads, kv = (config.num_heads, head), (config.num_kv_heads, head)
  both = 2 * config.num_heads * head
  name = "self_attn.q_proj"
  return [
    _kernel("q", name, "", linear(heads, width, rows=both, pick=(0, 2))),
    _kernel("q_gate", name, "", linear(heads, width, rows=both, pick=(1, 2))),
    *_key_value_out(width, kv, heads),
    *_head_norms(head),
    *_around(config),
  ]


def _delta(config: Qwen35Config) -> list[Row]:
  width = (config.hidden_size,)
  keys = (config.delta_k_heads, config.delta_k_dim)
  values = (config.delta_v_heads, config.delta_v_dim)
  total = 2 * math.prod(keys) + math.prod(values)
  conv = config.conv_width
  found, first = [], 0
  for name, heads in (("q", keys), ("k", keys), ("v", values)):
    form = linear(heads, width, rows=total, first=first)
    found.append(_kernel(name, "linear_attn.in_proj_qkv", "", form))
    form = Form((total, 1, conv), (*heads, conv), (2, 0, 1), first)
    found.append(_kernel(f"{name}_conv", "linear_attn.conv1d", "", form))
    first += math.prod(heads)
  for name in "ab":
    form = linear(values[:1], width)
    found.append(_kernel(name, f"linear_attn.in_proj_{name}", "", form))
  vector = plain(values[:1])
  return [
    *found,
    _kernel("z", "linear_attn.in_proj_z", "", linear(values, width)),
    _kernel("o", "linear_attn.out_proj", "", linear(width, values)),
    _scale("out_norm", "linear_attn.norm", "", values[1]),
    Row(("a_log",), "linear_attn.A_log", "", vector),
    Row(("dt_bias",), "linear_attn.dt_bias", "", vector),
    *_around(config),
  ]


def _key_value_out(
  width: tuple[int], kv: tuple[int, int], heads: tuple[int, int]
) -> list[Row]:
  return [
    _kernel("k", "self_attn.k_proj", "attn_k", linear(kv, width)),
    _kernel("v", "self_attn.v_proj", "attn_v", linear(kv, width)),
    _kernel("o", "self_attn.o_proj", "attn_output", linear(width, heads)),
  ]


def _head_norms(width: int) -> list[Row]:
  return [
    _scale("q_norm", "self_attn.q_norm", "attn_q_norm", width),
    _scale("k_norm", "self_attn.k_norm", "attn_k_norm", width),
  ]


def _around(config: Any) -> list[Row]:
  """Norms and feed-forward, the same in all layers of all models."""
  width, wide = config.hidden_size, config.intermediate_size
  up, down = linear((wide,), (width,)), linear((width,), (wide,))
  return [
    _scale("attn_norm", "input_layernorm", "attn_norm", width),
    _scale("mlp_norm", "post_attention_layernorm", "ffn_norm", width),
    _kernel("gate", "mlp.gate_proj", "ffn_gate", up),
    _kernel("up", "mlp.up_proj", "ffn_up", up),
    _kernel("down", "mlp.down_proj", "ffn_down", down),
  ]


def _kernel(name: str, folder: str, gguf: str, form: Form) -> Row:
  return Row((name, "kernel"), f"{folder}.weight", gguf, form)


def _scale(name: str, folder: str, gguf: str, width: int) -> Row:
  return Row((name, "scale"), f"{folder}.weight", gguf, plain((width,)))
