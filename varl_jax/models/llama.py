"""Llama: a dense decoder with grouped-query attention and rotary positions.

Letters of the shapes: B rows, G prompts, n samples a prompt, L tokens, P prompt
slots, R answer slots, N layers, K key-value heads, r query heads a key-value
head, H head width, D width, V vocabulary.

Parameters are a plain tree {"params": {embed, layers, norm[, lm_head]}}; the
leaves under `layers` carry a leading N because the layers are scanned. Kernels
are stored [in, out]; `embed` and `lm_head` are [V, D], the layout in which the
CPU backend reads the output head fastest.

Sequences are padded on the right, so the causal mask alone keeps real tokens
from attending to padding. The norms, rotary angles, attention scores and
softmax are fp32 whatever the compute type is.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

Params = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
  """Shape of a model; the names differ from Hugging Face's `config.json`."""

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
    mlp = 3 * self.hidden_size * self.intermediate_size
    layer = attention + mlp + 2 * self.hidden_size
    tables = 1 if self.tie_embeddings else 2
    table = tables * self.vocab_size * self.hidden_size
    return self.num_layers * layer + table + self.hidden_size


class KeyValues(NamedTuple):
  """Rotated keys and values of all layers, each [N, rows..., K, slots, H]."""

  k: Array
  v: Array


class Cache(NamedTuple):
  """What decoding attends to: a prompt's keys stored once for its n samples.

  Attributes:
    prompt: keys and values [N, G, K, P, H].
    prompt_lengths: [G], real prompt tokens.
    answer: keys and values [N, G, n, K, R, H].
    step: answer tokens already in `answer`, the same for every row.
  """

  prompt: KeyValues
  prompt_lengths: Int[Array, " G"]
  answer: KeyValues
  step: Int[Array, ""]


class RmsNorm(nn.Module):
  """x / sqrt(mean(x^2) + eps) * scale, computed in fp32."""

  eps: float

  @nn.compact
  def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(mean + self.eps)).astype(x.dtype)
    return normed * scale.astype(x.dtype)


class Rope(NamedTuple):
  """Cosines and sines of the rotary angles, each [B or 1, L, 1, H / 2]."""

  cos: Array
  sin: Array


def rope_angles(
  positions: Int[Array, "B L"], *, head_dim: int, theta: float
) -> Rope:
  """Angles position * theta^(-2 i / H) for i < H / 2, in fp32."""
  exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
  angle = positions[..., None, None].astype(jnp.float32) * theta**-exponent
  return Rope(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B L heads H"], rope: Rope) -> Array:
  """Rotates the pairs (i, i + H / 2) of each head."""
  left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cos, sin = rope
  turned = (left * cos - right * sin, right * cos + left * sin)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attend_causal(
  q: Float[Array, "B L K r H"],
  k: Float[Array, "B L K H"],
  v: Float[Array, "B L K H"],
) -> Float[Array, "B L K r H"]:
  """Softmax attention of every token to itself and those before it."""
  scores = _einsum32("blkrh,bmkh->bkrlm", q, k) * q.shape[-1] ** -0.5
  length = q.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))
  weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
  return _einsum("bkrlm,bmkh->blkrh", weights.astype(v.dtype), v)


def attend_cached(
  q: Float[Array, "G n K r H"],
  k: Float[Array, "G n K H"],
  v: Float[Array, "G n K H"],
  past: tuple[KeyValues, KeyValues],
  prompt_lengths: Int[Array, " G"],
  step: Int[Array, ""],
) -> Float[Array, "G n K r H"]:
  """Attention of one new token a row to its prompt, its answer and itself.

  `past` is one layer's (prompt [G, K, P, H], answer [G, n, K, R, H]); the new
  key is not in it yet. One softmax runs over the three parts.
  """
  prompt, answer = past
  slots_p, slots_a = prompt.k.shape[-2], answer.k.shape[-2]
  on_prompt = _einsum32("gnkrh,gkph->gnkrp", q, prompt.k)
  in_prompt = jnp.arange(slots_p) < prompt_lengths[:, None, None, None, None]
  on_answer = _einsum32("gnkrh,gnkah->gnkra", q, answer.k)
  in_answer = jnp.arange(slots_a) < step
  on_self = _einsum32("gnkrh,gnkh->gnkr", q, k)[..., None]
  parts = (
    jnp.where(in_prompt, on_prompt, -jnp.inf),
    jnp.where(in_answer, on_answer, -jnp.inf),
    on_self,
  )
  scores = jnp.concatenate(parts, axis=-1) * q.shape[-1] ** -0.5
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  to_prompt, to_answer, to_self = jnp.split(
    weights, (slots_p, slots_p + slots_a), axis=-1
  )
  return (
    _einsum("gnkrp,gkph->gnkrh", to_prompt, prompt.v)
    + _einsum("gnkra,gnkah->gnkrh", to_answer, answer.v)
    + to_self * v[..., None, :]
  )


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
    past: tuple[KeyValues, KeyValues] | None,
    rope: Rope,
    prompt_lengths: Int[Array, " B"] | None,
    step: Int[Array, ""] | None,
  ) -> tuple[Float[Array, "B L D"], KeyValues | None]:
    config = self.config
    rows, kv_heads = x.shape[:2], config.num_kv_heads

    def dense(name: str, features: int, inputs: Array) -> Array:
      return nn.Dense(
        features,
        use_bias=False,
        dtype=self.dtype,
        precision=_precision(self.dtype),
        name=name,
      )(inputs)

    def heads(name: str, count: int, inputs: Array) -> Array:
      flat = dense(name, count * config.head_dim, inputs)
      return flat.reshape(*rows, count, config.head_dim)

    normed = RmsNorm(config.rms_eps, name="attn_norm")(x)
    q = rotate(heads("q", config.num_heads, normed), rope)
    q = q.reshape(*rows, kv_heads, -1, config.head_dim)
    k = rotate(heads("k", kv_heads, normed), rope)
    v = heads("v", kv_heads, normed)
    if past is None:
      mixed = attend_causal(q, k, v)
    else:
      assert prompt_lengths is not None and step is not None
      mixed = attend_cached(q, k, v, past, prompt_lengths, step)
    x = x + dense("o", config.hidden_size, mixed.reshape(*rows, -1))

    normed = RmsNorm(config.rms_eps, name="mlp_norm")(x)
    gate = dense("gate", config.intermediate_size, normed)
    up = dense("up", config.intermediate_size, normed)
    x = x + dense("down", config.hidden_size, nn.silu(gate) * up)
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
    embed = self.param(
      "embed",
      nn.initializers.normal(0.02),
      (config.vocab_size, config.hidden_size),
    )
    if not config.tie_embeddings:
      self.param(
        "lm_head",
        nn.initializers.normal(0.02),
        (config.vocab_size, config.hidden_size),
      )
    if positions is None:
      positions = jnp.arange(tokens.shape[1])[None]
    rope = rope_angles(
      positions, head_dim=config.head_dim, theta=config.rope_theta
    )
    past, lengths, step = None, None, None
    if cache is not None:
      past = (cache.prompt, cache.answer)
      lengths, step = cache.prompt_lengths, cache.step
    block = nn.remat(Block, prevent_cse=False) if self.remat else Block
    layers = nn.scan(
      block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      # Typed as an int, but one entry an argument is meant.
      in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),  # pyright: ignore
      length=config.num_layers,
    )
    x = jnp.take(embed, tokens, axis=0).astype(self.dtype)
    x, new = layers(config, self.dtype, keep_kv, name="layers")(
      x, past, rope, lengths, step
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
  def empty_answer(
    self, prompt: KeyValues, *, samples: int, slots: int
  ) -> KeyValues:
    """Room for `slots` answer tokens of `samples` rows a prompt."""
    layers, groups, kv_heads, _, width = prompt.k.shape
    shape = (layers, groups, samples, kv_heads, slots, width)
    return KeyValues(*(jnp.zeros(shape, part.dtype) for part in prompt))

  @nn.nowrap
  def decode(
    self, params: Params, tokens: Int[Array, "G n"], cache: Cache
  ) -> tuple[Float[Array, "G n D"], Cache]:
    """Runs one new token a row; returns its hidden state and the cache with it.

    The token sits at position prompt_length + step.
    """
    positions = (cache.prompt_lengths + cache.step)[:, None]
    x, new = self._run(params, tokens, positions=positions, cache=cache)

    def put(old: Array, part: Array) -> Array:
      return jax.lax.dynamic_update_slice_in_dim(
        old, part[..., None, :], cache.step, axis=4
      )

    answer = KeyValues(put(cache.answer.k, new.k), put(cache.answer.v, new.v))
    return x, cache._replace(answer=answer, step=cache.step + 1)

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


def _einsum(equation: str, left: Array, right: Array) -> Array:
  return jnp.einsum(equation, left, right, precision=_precision(left.dtype))


def _einsum32(equation: str, left: Array, right: Array) -> Array:
  return jnp.einsum(
    equation,
    left,
    right,
    precision=_precision(left.dtype),
    preferred_element_type=jnp.float32,
  )


def _precision(dtype: Any) -> jax.lax.Precision | None:
  """Accelerators multiply fp32 in fewer bits unless told not to."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
