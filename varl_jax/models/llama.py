"""Llama: a dense decoder with grouped-query attention and rotary positions.

Qwen3's dense models are the same with `qk_norm`: queries and keys are
normalized head by head before they are rotated.

Letters of the shapes: B rows, G prompts, n samples a prompt, L tokens, P prompt
slots, R answer slots, N layers, K key-value heads, r query heads a key-value
head, H head width, D width, M width of the MLP, V vocabulary.

Parameters are a plain tree {"params": {embed, layers, norm[, lm_head]}}; the
leaves under `layers` carry a leading N because the layers are scanned. `q` is
[D, heads, H], `k` and `v` [D, K, H], `o` [heads, H, D], `gate` and `up` [D, M],
`down` [M, D]; `embed` and `lm_head` are [V, D], the layout in which the CPU
backend reads the output head fastest.

Sequences are padded on the right, so the causal mask alone keeps real tokens
from attending to padding. The norms, rotary angles, attention scores and
softmax are fp32 whatever the compute type is.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.attention import (
  Filled,
  KeyValues,
  Past,
  Reach,
  admit,
  append,
  attend,
  begin,
  filled_axes,
  past_axes,
  reach_of,
  settle,
  start_past,
)
from varl_jax.models.layers import (
  STACKED,
  Axes,
  Params,
  Projection,
  RmsNorm,
  Rope,
  embedding_table,
  gated_mlp,
  mlp_axes,
  pin,
  rope_angles,
  rotate,
)
from varl_jax.models.sharding import lookup


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
  """Shape of a model; the names differ from Hugging Face's `config.json`.

  Attributes:
    qk_norm: whether queries and keys are normalized a head (Qwen3).
  """

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  rope_theta: float = 10000.0
  rms_eps: float = 1e-6
  tie_embeddings: bool = False
  qk_norm: bool = False
  max_position: int = 2048

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads ({self.num_heads}) is a multiple of num_kv_heads"
        f" ({self.num_kv_heads})."
      )
    if self.head_dim % 2:
      raise ValueError(f"head_dim is even, got {self.head_dim}.")

  @property
  def num_params(self) -> int:
    """Number of weights."""
    q_width = self.num_heads * self.head_dim
    kv_width = self.num_kv_heads * self.head_dim
    attention = 2 * self.hidden_size * (q_width + kv_width)
    attention += 2 * self.head_dim if self.qk_norm else 0
    mlp = 3 * self.hidden_size * self.intermediate_size
    layer = attention + mlp + 2 * self.hidden_size
    tables = 1 if self.tie_embeddings else 2
    table = tables * self.vocab_size * self.hidden_size
    return self.num_layers * layer + table + self.hidden_size


class Cache(NamedTuple):
  """What decoding attends to: a prompt's keys stored once for its n samples.

  Attributes:
    past: keys and values.
    filled: how many.
  """

  past: Past
  filled: Filled


class Block(nn.Module):
  """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

  Returns the layer's input to the next one and, with `keep_kv`, the new keys
  and values [B, L, K, H] (else None, so that training does not stack them).
  """

  config: LlamaConfig
  dtype: Any
  keep_kv: bool = False

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "B L D"],
    layer: Int[Array, ""] | None,
    past: Past | None,
    rope: Rope,
    reach: Reach | None,
  ) -> tuple[Float[Array, "B L D"], KeyValues | None]:
    config = self.config
    width, head_dim = (config.hidden_size,), config.head_dim
    decoding = past is not None

    def normed(name: str, values: Array) -> Array:
      return RmsNorm(config.rms_eps, name=name)(values)

    inputs = normed("attn_norm", x)

    def heads(name: str, count: int, axis: str) -> Array:
      outputs = (count, head_dim)
      made = Projection(width, outputs, self.dtype, name=name)(inputs)
      return pin(made, axis, None, decoding=decoding)

    q = heads("q", config.num_heads, "heads")
    k = heads("k", config.num_kv_heads, "kv_heads")
    v = heads("v", config.num_kv_heads, "kv_heads")
    if config.qk_norm:
      q, k = normed("q_norm", q), normed("k_norm", k)
    q, k = rotate(q, rope), rotate(k, rope)
    mixed = attend(q, k, v, past, reach, layer)
    out = Projection((config.num_heads, head_dim), width, self.dtype, name="o")(
      mixed
    )
    x = pin(x + out, None, decoding=decoding)
    x = x + gated_mlp(
      normed("mlp_norm", x),
      config.intermediate_size,
      self.dtype,
      decoding=decoding,
    )
    x = pin(x, None, decoding=decoding)
    return x, (KeyValues(k, v) if self.keep_kv else None)


class Llama(nn.Module):
  """The decoder up to the final norm; `rl.logprobs` has the output head.

  `model.init(key, tokens)` draws parameters; `hidden`, `prefill` and `decode`
  run it on explicit parameters.

  Attributes:
    config: shape.
    dtype: compute type; parameters stay as they are given.
    remat: recompute each layer's activations in the backward pass.
  """

  config: LlamaConfig
  dtype: Any = jnp.float32
  remat: bool = False

  def __call__(
    self,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"] | None = None,
  ) -> Float[Array, "B L D"]:
    """Final hidden states of right-padded rows, zero at padding.

    Args:
      tokens: token ids; what stands past a row's length does not matter as
        long as it is a valid id.
      lengths: real tokens a row, None when all are.
    """
    x, _ = self.stack(tokens)
    if lengths is None:
      return x
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    return jnp.where(real[..., None], x, 0)

  @nn.compact
  def stack(
    self,
    tokens: Int[Array, "B L"],
    *,
    positions: Int[Array, "B L"] | None = None,
    cache: Cache | None = None,
    keep_kv: bool = False,
  ) -> tuple[Float[Array, "B L D"], KeyValues | None]:
    """Hidden states after the final norm and, with `keep_kv`, keys and values.

    Without a cache a row is a sequence from position 0; with one, B and L are
    prompts and samples, each entry a row's newest token.
    """
    config = self.config
    table = (config.vocab_size, config.hidden_size)
    embed = embedding_table(self, "embed", *table)
    if not config.tie_embeddings:
      embedding_table(self, "lm_head", *table)
    if positions is None:
      positions = jnp.arange(tokens.shape[1])[None]
    rope = rope_angles(
      positions, width=config.head_dim, theta=config.rope_theta
    )
    index, past, reach = None, None, None
    if cache is not None:
      index = jnp.arange(config.num_layers)
      past, reach = cache.past, reach_of(*cache)
    block = nn.remat(Block, prevent_cse=False) if self.remat else Block
    layers = nn.scan(
      block,
      variable_axes=STACKED,
      split_rngs={"params": True},
      # Typed as an int, but one entry an argument is meant.
      in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),  # pyright: ignore
      length=config.num_layers,
    )
    x = lookup(embed, tokens, self.dtype)
    x = pin(x, None, decoding=cache is not None)
    x, new = layers(config, self.dtype, keep_kv, name="layers")(
      x, index, past, rope, reach
    )
    return RmsNorm(config.rms_eps, name="norm")(x), new

  @nn.nowrap
  def hidden(
    self,
    params: Params,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"] | None = None,
  ) -> Float[Array, "B L D"]:
    """`__call__` on explicit parameters."""
    hidden = self.apply(params, tokens, lengths)
    assert isinstance(hidden, jax.Array)
    return hidden

  @nn.nowrap
  def prefill(
    self,
    params: Params,
    tokens: Int[Array, "G P"],
    lengths: Int[Array, " G"],
  ) -> tuple[Float[Array, "G D"], KeyValues]:
    """Hidden state of each prompt's last token, and the prompts' keys."""
    x, new = self._run(params, tokens)
    rows = jnp.arange(tokens.shape[0])
    keys = KeyValues(new.k.swapaxes(2, 3), new.v.swapaxes(2, 3))
    return x[rows, lengths - 1], keys

  @nn.nowrap
  def start(
    self,
    prompt: KeyValues,
    prompt_lengths: Int[Array, " G"],
    *,
    samples: int,
    slots: int,
    recent: int,
  ) -> Cache:
    """A cache for `samples` answers a prompt.

    Args:
      prompt: of `prefill`.
      prompt_lengths: real prompt tokens.
      samples: n.
      slots: tokens of an answer that can be settled.
      recent: tokens that can be decoded before they are.
    """
    past = start_past(prompt, samples=samples, slots=slots, recent=recent)
    return Cache(past, Filled.empty(prompt_lengths, samples))

  @nn.nowrap
  def decode(
    self, params: Params, tokens: Int[Array, "G n"], cache: Cache
  ) -> tuple[Float[Array, "G n D"], Cache]:
    """Runs one new token a row; returns its hidden state and the cache with it.

    The token comes behind all that the row has.
    """
    positions = cache.filled.positions()
    x, new = self._run(params, tokens, positions=positions, cache=cache)
    return x, Cache(*append(cache.past, new, cache.filled))

  @nn.nowrap
  def admit(
    self,
    cache: Cache,
    prompt: KeyValues,
    lengths: Int[Array, " c"],
    lanes: Int[Array, " c"],
  ) -> Cache:
    """Puts prompts into places of a cache; see `attention.admit`."""
    return Cache(*admit(*cache, prompt, lengths, lanes))

  @nn.nowrap
  def begin(self, cache: Cache, mask: Bool[Array, "G n"]) -> Cache:
    """Lets answers begin where `mask` says."""
    return cache._replace(filled=begin(cache.filled, mask))

  @nn.nowrap
  def settle(self, cache: Cache, counts: Int[Array, "G n"]) -> Cache:
    """Moves decoded tokens to where they stay; see `attention.settle`."""
    return Cache(*settle(*cache, counts))

  @nn.nowrap
  def cache_axes(self) -> Cache:
    """The logical axes of a cache."""
    return Cache(past_axes(), filled_axes())

  @nn.nowrap
  def _run(
    self, params: Params, tokens: Array, **inputs: Any
  ) -> tuple[Array, KeyValues]:
    made: Any = self.apply(
      params, tokens, keep_kv=True, method="stack", **inputs
    )
    return made

  @nn.nowrap
  def lm_head_weight(self, params: Params) -> Float[Array, "V D"]:
    """The output head, the embedding itself when they are tied."""
    name = "embed" if self.config.tie_embeddings else "lm_head"
    return params["params"][name]

  @nn.nowrap
  def axes(self) -> Params:
    """The logical axes of every parameter, in the parameters' tree."""
    config = self.config
    scale: Axes = ("layers", None)
    layers: dict[str, Any] = {
      "attn_norm": {"scale": ("layers", "embed")},
      "q": {"kernel": ("layers", "embed", "heads", "head_dim")},
      "k": {"kernel": ("layers", "embed", "kv_heads", "head_dim")},
      "v": {"kernel": ("layers", "embed", "kv_heads", "head_dim")},
      "o": {"kernel": ("layers", "heads", "head_dim", "embed")},
      **mlp_axes("layers"),
    }
    if config.qk_norm:
      layers |= {"q_norm": {"scale": scale}, "k_norm": {"scale": scale}}
    tree: dict[str, Any] = {
      "embed": ("vocab", "embed"),
      "norm": {"scale": ("embed",)},
      "layers": layers,
    }
    if not config.tie_embeddings:
      tree["lm_head"] = ("vocab", "embed")
    return {"params": tree}
