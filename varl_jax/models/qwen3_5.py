"""Qwen3.5 and Qwen3.6, dense text: gated delta layers and gated attention, 3:1.

Letters of the shapes: B rows, G prompts, n samples a prompt, L tokens, P
prompt slots, R answer slots, N superblocks, J key heads and r value heads a key
head of a delta layer, K key-value heads of an attention layer, H head width, D
width, V vocabulary.

A superblock is `interval` layers, the last of which attends; superblocks are
scanned, and so are the delta layers in one. Parameters are {"params": {embed,
lm_head, norm, layers: {delta, attention}}}; leaves under `delta` lead with
[N, interval - 1], those under `attention` with [N], so that layer i is
`delta[i // interval, i % interval]` unless it is a superblock's last. What
checkpoints hold in one matrix is split by its role: the q projection of
attention into `q` and `q_gate`, the qkv projection and convolution of a delta
layer into `q`, `k`, `v` and `q_conv`, `k_conv`, `v_conv`, so that a mesh shards
every part by heads.

All norms store scale - 1 but `out_norm` of the delta layers. Norms, rotary
angles, softmax, convolutions, decay, and the delta rule with its memory are
fp32 whatever the compute type is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.attention import (
  Filled,
  KeyValues,
  Past,
  admit,
  append,
  begin,
  filled_axes,
  past_axes,
  reach_of,
  settle,
  start_past,
)
from varl_jax.models.layers import (
  STACKED,
  Params,
  RmsNorm,
  embedding_table,
  pin,
  rope_angles,
)
from varl_jax.models.qwen3_5_blocks import (
  Context,
  DeltaState,
  Superblock,
  attention_axes,
  delta_axes,
  state_axes,
)
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.sharding import lookup


class PromptState(NamedTuple):
  """What is kept of prompts.

  Attributes:
    attention: keys and values [N, G, K, P, H] of the attention layers.
    delta: states [layers, G, ...] of the delta layers.
  """

  attention: KeyValues
  delta: DeltaState


class Cache(NamedTuple):
  """A prompt's keys stored once for its n samples, and each row's states.

  Attributes:
    past: keys and values.
    filled: how many.
    delta: states [layers, G, n, ...], in layer order.
    first: states [layers, G, ...] at the prompts' ends.
  """

  past: Past
  filled: Filled
  delta: DeltaState
  first: DeltaState


class Qwen35(nn.Module):
  """The decoder up to the final norm; `rl.logprobs` has the output head.

  Attributes:
    config: shape.
    dtype: compute type; parameters stay as they are given.
    remat: recompute each layer's activations in the backward pass.
  """

  config: Qwen35Config
  dtype: Any = jnp.float32
  remat: bool = False

  def __call__(
    self,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"] | None = None,
    real: Bool[Array, "B L"] | None = None,
  ) -> Float[Array, "B L D"]:
    """Final hidden states, zero at padding.

    Args:
      tokens: token ids; what stands at padding does not matter as long as it
        is a valid id.
      lengths: real tokens of rows padded on the right, None when all are.
      real: in the place of lengths, the real tokens of rows padded on any
        side, each row's without a gap.
    """
    keys = real
    if lengths is not None:
      real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    x, _, _ = self.stack(tokens, real=real, keys=keys)
    return x if real is None else jnp.where(real[..., None], x, 0)

  @nn.compact
  def stack(
    self,
    tokens: Int[Array, "B L"],
    *,
    real: Bool[Array, "B L"] | None = None,
    keys: Bool[Array, "B L"] | None = None,
    cache: Cache | None = None,
    keep: bool = False,
  ) -> tuple[Float[Array, "B L D"], DeltaState | None, KeyValues | None]:
    """Hidden states after the final norm, delta states, new keys and values.

    Without a cache a row is a sequence from position 0; with one, B and L are
    prompts and samples, each entry a row's newest token. The states are those
    of all delta layers: the carried ones while decoding, else None without
    `keep`.
    """
    config = self.config
    table = (config.vocab_size, config.hidden_size)
    embed = embedding_table(self, "embed", *table)
    if not config.tie_embeddings:
      embedding_table(self, "lm_head", *table)
    blocks = nn.scan(
      Superblock,
      variable_axes=STACKED,
      split_rngs={"params": True},
      in_axes=(0, nn.broadcast, nn.broadcast),  # pyright: ignore
      length=config.num_layers // config.interval,
    )
    context = self._context(tokens, real, keys, cache)
    past, index, states = None, None, None
    if cache is not None:
      past = cache.past
      index = jnp.arange(config.num_layers // config.interval)
      states = cache.delta
    x = lookup(embed, tokens, self.dtype)
    x = pin(x, None, decoding=cache is not None)
    blocks = blocks(config, self.dtype, self.remat, keep, name="layers")
    (x, states), (kept, new) = blocks((x, states), index, past, context)
    if kept is not None:
      states = jax.tree.map(lambda s: s.reshape(-1, *s.shape[2:]), kept)
    x = RmsNorm(config.rms_eps, centered=True, name="norm")(x)
    return x, states, new

  def _context(
    self,
    tokens: Array,
    real: Array | None,
    keys: Array | None,
    cache: Cache | None,
  ) -> Context:
    config, length = self.config, tokens.shape[1]
    positions, ends = jnp.arange(length)[None], None
    if keys is not None:
      positions = jnp.maximum(jnp.cumsum(keys, axis=1) - 1, 0)
    if real is not None:
      ends = jnp.max(jnp.where(real, jnp.arange(length) + 1, 0), axis=1)
    if cache is not None:
      positions = cache.filled.positions()
    rope = rope_angles(
      positions, width=config.rotary_dim, theta=config.rope_theta
    )
    if cache is None:
      return Context(rope, real, keys, ends)
    return Context(rope, reach=reach_of(cache.past, cache.filled))

  @nn.nowrap
  def hidden(
    self,
    params: Params,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"] | None = None,
    *,
    real: Bool[Array, "B L"] | None = None,
  ) -> Float[Array, "B L D"]:
    """`__call__` on explicit parameters."""
    hidden = self.apply(params, tokens, lengths, real)
    assert isinstance(hidden, jax.Array)
    return hidden

  @nn.nowrap
  def prefill(
    self,
    params: Params,
    tokens: Int[Array, "G P"],
    lengths: Int[Array, " G"],
  ) -> tuple[Float[Array, "G D"], PromptState]:
    """Hidden state of each prompt's last token, and the prompts' state."""
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    made: Any = self.apply(params, tokens, real=real, keep=True, method="stack")
    x, states, new = made
    rows = jnp.arange(tokens.shape[0])
    keys = KeyValues(new.k.swapaxes(2, 3), new.v.swapaxes(2, 3))
    return x[rows, lengths - 1], PromptState(keys, states)

  @nn.nowrap
  def start(
    self,
    prompt: PromptState,
    prompt_lengths: Int[Array, " G"],
    *,
    samples: int,
    slots: int,
    recent: int,
  ) -> Cache:
    """A cache for `samples` answers a prompt; see `llama.Llama.start`."""

    def spread(state: Array) -> Array:
      layers, groups, *rest = state.shape
      shape = (layers, groups, samples, *rest)
      return jnp.broadcast_to(state[:, :, None], shape)

    past = start_past(
      prompt.attention, samples=samples, slots=slots, recent=recent
    )
    filled = Filled.empty(prompt_lengths, samples)
    delta = jax.tree.map(spread, prompt.delta)
    return Cache(past, filled, delta, prompt.delta)

  @nn.nowrap
  def decode(
    self, params: Params, tokens: Int[Array, "G n"], cache: Cache
  ) -> tuple[Float[Array, "G n D"], Cache]:
    """Runs one new token a row; returns its hidden state and the cache with it.

    The token comes behind all that the row has.
    """
    made: Any = self.apply(
      params, tokens, cache=cache, keep=True, method="stack"
    )
    x, states, new = made
    past, filled = append(cache.past, new, cache.filled)
    return x, cache._replace(past=past, filled=filled, delta=states)

  @nn.nowrap
  def admit(
    self,
    cache: Cache,
    prompt: PromptState,
    lengths: Int[Array, " c"],
    lanes: Int[Array, " c"],
  ) -> Cache:
    """Puts prompts into places of a cache; see `attention.admit`."""
    keys = (cache.past, cache.filled, prompt.attention)
    first = jax.tree.map(
      lambda old, new: old.at[:, lanes].set(new, mode="drop"),
      cache.first,
      prompt.delta,
    )
    return Cache(*admit(*keys, lengths, lanes), cache.delta, first)

  @nn.nowrap
  def begin(self, cache: Cache, mask: Bool[Array, "G n"]) -> Cache:
    """Lets answers begin where `mask` says."""

    def spread(old: Array, first: Array) -> Array:
      chosen = mask.reshape(*mask.shape, *(1,) * (first.ndim - 2))
      return jnp.where(chosen, first[:, :, None], old)

    return cache._replace(
      filled=begin(cache.filled, mask),
      delta=jax.tree.map(spread, cache.delta, cache.first),
    )

  @nn.nowrap
  def settle(self, cache: Cache, counts: Int[Array, "G n"]) -> Cache:
    """Moves decoded tokens to where they stay; see `attention.settle`."""
    past, filled = settle(cache.past, cache.filled, counts)
    return cache._replace(past=past, filled=filled)

  @nn.nowrap
  def cache_axes(self) -> Cache:
    """The logical axes of a cache."""
    delta, first = state_axes("batch"), state_axes()
    return Cache(past_axes(), filled_axes(), delta, first)

  @nn.nowrap
  def lm_head_weight(self, params: Params) -> Float[Array, "V D"]:
    """The output head, the embedding itself when they are tied."""
    name = "embed" if self.config.tie_embeddings else "lm_head"
    return params["params"][name]

  @nn.nowrap
  def axes(self) -> Params:
    """The logical axes of every parameter, in the parameters' tree."""
    tree: dict[str, Any] = {
      "embed": ("vocab", "embed"),
      "norm": {"scale": ("embed",)},
      "layers": {
        "delta": delta_axes("layers", None),
        "attention": attention_axes("layers"),
      },
    }
    if not self.config.tie_embeddings:
      tree["lm_head"] = ("vocab", "embed")
    return {"params": tree}
