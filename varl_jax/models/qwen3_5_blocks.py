"""The layers of `qwen3_5` and what they remember; letters as there."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.attention import KeyValues, Past, Reach, attend
from varl_jax.models.delta_rule import (
  CausalConv,
  delta_rule,
  delta_step,
  unit,
)
from varl_jax.models.layers import (
  STACKED,
  Projection,
  RmsNorm,
  Rope,
  gated_mlp,
  mlp_axes,
  pin,
  rotate,
)
from varl_jax.models.qwen3_5_shape import Qwen35Config


class DeltaState(NamedTuple):
  """What a delta layer remembers of a row, in fp32; past = conv_width - 1.

  Attributes:
    q: last inputs of its convolution [..., past, J, k].
    k: the same [..., past, J, k].
    v: the same [..., past, J r, v].
    memory: of the delta rule [..., J, r, k, v].
  """

  q: Array
  k: Array
  v: Array
  memory: Any


class Context(NamedTuple):
  """What all layers read.

  Attributes:
    rope: angles of the tokens' positions.
    real: tokens that are not padding, None for all.
    keys: tokens that others may attend to; None where causality suffices.
    ends: [B], one past each row's last real token; None for the end.
    reach: decoding only.
  """

  rope: Rope
  real: Bool[Array, "B L"] | None = None
  keys: Bool[Array, "B L"] | None = None
  ends: Int[Array, " B"] | None = None
  reach: Reach | None = None


# Hidden states, and the delta states of all layers while decoding.
Carry = tuple[Float[Array, "B L D"], DeltaState | None]


class DeltaBlock(nn.Module):
  """x + delta(norm(x)), then x + mlp(norm(x)).

  While decoding it reads and replaces its own entry of the carried states,
  which XLA does in place, and leaves those of rows that are not live as they
  are; over whole rows it returns the state with `keep`.
  """

  config: Qwen35Config
  dtype: Any
  keep: bool = False

  @nn.compact
  def __call__(
    self, carry: Carry, index: Int[Array, ""] | None, context: Context
  ) -> tuple[Carry, DeltaState | None]:
    config = self.config
    x, states = carry
    own, columns = None, None
    if states is not None:
      columns = states._replace(memory=None)
      own = jax.tree.map(
        lambda s: jax.lax.dynamic_index_in_dim(s, index, keepdims=False),
        columns,
      )._replace(memory=states.memory)
    inputs = RmsNorm(config.rms_eps, centered=True, name="attn_norm")(x)
    mixed, new = self._mix(inputs, own, index, context)
    x = pin(x + mixed, None, decoding=states is not None)
    normed = RmsNorm(config.rms_eps, centered=True, name="mlp_norm")(x)
    x = x + gated_mlp(
      normed, config.intermediate_size, self.dtype, decoding=states is not None
    )
    x = pin(x, None, decoding=states is not None)
    if columns is not None:
      states = jax.tree.map(
        lambda s, n: jax.lax.dynamic_update_index_in_dim(s, n, index, 0),
        columns,
        new._replace(memory=None),
      )._replace(memory=new.memory)
      return (x, states), None
    return (x, None), (new if self.keep else None)

  def _mix(
    self,
    x: Float[Array, "B L D"],
    own: DeltaState | None,
    index: Int[Array, ""] | None,
    context: Context,
  ) -> tuple[Float[Array, "B L D"], DeltaState]:
    """The layer's output and state; `memory` is all layers' while decoding."""
    config, decoding = self.config, own is not None
    key_heads = (config.delta_k_heads, config.delta_k_dim)
    value_heads = (config.delta_v_heads, config.delta_v_dim)
    width = (config.hidden_size,)
    if own is not None:
      assert context.reach is not None
      live = context.reach.filled.live

    def project(name: str, outputs: tuple[int, ...]) -> Array:
      return Projection(width, outputs, self.dtype, name=name)(x)

    def convolved(
      name: str, heads: tuple[int, int], axis: str
    ) -> tuple[Array, Array]:
      inputs = project(name, heads)
      if context.real is not None:
        inputs = jnp.where(context.real[..., None, None], inputs, 0)
      inputs = pin(inputs, axis, None, decoding=decoding)
      conv = CausalConv(config.conv_width, self.dtype, name=f"{name}_conv")
      if own is None:
        return conv(inputs, None, context.ends)
      past = getattr(own, name)
      out, last = conv(inputs, past, context.ends)
      return out, jnp.where(live[..., None, None, None], last, past)

    q, q_past = convolved("q", key_heads, "delta_k_heads")
    k, k_past = convolved("k", key_heads, "delta_k_heads")
    v, v_past = convolved("v", value_heads, "delta_v_heads")
    a, b = (project(name, value_heads[:1]) for name in "ab")
    g, beta = self._gates(a, b)
    if own is not None:
      g = jnp.where(live[..., None], g, 0)
      beta = jnp.where(live[..., None], beta, 0)
    grouped = (*v.shape[:2], config.delta_k_heads, -1)
    q = unit(q) * config.delta_k_dim**-0.5
    args = (
      q,
      unit(k),
      v.reshape(*grouped, config.delta_v_dim),
      g.reshape(grouped),
      beta.reshape(grouped),
    )
    if own is not None:
      out, memory = delta_step(*args, own.memory, layer=index)
    else:
      out, memory = delta_rule(*args, real=context.real)
    out = out.reshape(v.shape).astype(self.dtype)
    out = RmsNorm(config.rms_eps, name="out_norm")(out)
    z = project("z", value_heads).astype(jnp.float32)
    out = (out * nn.silu(z)).astype(self.dtype)
    out = pin(out, "delta_v_heads", None, decoding=decoding)
    mixed = Projection(value_heads, width, self.dtype, name="o")(out)
    return mixed, DeltaState(q_past, k_past, v_past, memory)

  def _gates(self, a: Array, b: Array) -> tuple[Array, Array]:
    """Log-decay -exp(A_log) softplus(a + dt_bias), and write strength."""
    heads = (self.config.delta_v_heads,)
    a_log = self.param("a_log", _draw_a_log, heads).astype(jnp.float32)
    bias = self.param("dt_bias", nn.initializers.ones, heads)
    wide = a.astype(jnp.float32) + bias.astype(jnp.float32)
    g = -jnp.exp(a_log) * nn.softplus(wide)
    return g, nn.sigmoid(b.astype(jnp.float32))


class AttentionBlock(nn.Module):
  """x + sigmoid(gate) * attention(norm(x)), then x + mlp(norm(x)).

  With `keep` it returns the new keys and values [B, L, K, H].
  """

  config: Qwen35Config
  dtype: Any
  keep: bool = False

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "B L D"],
    layer: Int[Array, ""] | None,
    past: Past | None,
    context: Context,
  ) -> tuple[Float[Array, "B L D"], KeyValues | None]:
    config, decoding = self.config, past is not None
    width, head_dim = (config.hidden_size,), config.head_dim

    def normed(name: str, values: Array) -> Array:
      return RmsNorm(config.rms_eps, centered=True, name=name)(values)

    inputs = normed("attn_norm", x)

    def heads(name: str, count: int, axis: str) -> Array:
      outputs = (count, head_dim)
      made = Projection(width, outputs, self.dtype, name=name)(inputs)
      return pin(made, axis, None, decoding=decoding)

    q = heads("q", config.num_heads, "heads")
    gate = heads("q_gate", config.num_heads, "heads")
    k = heads("k", config.num_kv_heads, "kv_heads")
    v = heads("v", config.num_kv_heads, "kv_heads")
    q = rotate(normed("q_norm", q), context.rope)
    k = rotate(normed("k_norm", k), context.rope)
    mixed = attend(q, k, v, past, context.reach, layer, context.keys)
    out = Projection((config.num_heads, head_dim), width, self.dtype, name="o")(
      mixed * nn.sigmoid(gate)
    )
    x = pin(x + out, None, decoding=decoding)
    x = x + gated_mlp(
      normed("mlp_norm", x),
      config.intermediate_size,
      self.dtype,
      decoding=decoding,
    )
    x = pin(x, None, decoding=decoding)
    return x, (KeyValues(k, v) if self.keep else None)


class Superblock(nn.Module):
  """interval - 1 delta layers, then one that attends.

  With `remat` each layer's activations are recomputed in the backward pass, so
  that one layer's are alive at a time and the layers' inputs are kept.
  """

  config: Qwen35Config
  dtype: Any
  remat: bool = False
  keep: bool = False

  @nn.compact
  def __call__(
    self,
    carry: Carry,
    index: Int[Array, ""] | None,
    past: Past | None,
    context: Context,
  ) -> tuple[Carry, tuple[DeltaState | None, KeyValues | None]]:
    delta, attention = DeltaBlock, AttentionBlock
    if self.remat:
      delta = nn.remat(DeltaBlock, prevent_cse=False)
      attention = nn.remat(AttentionBlock, prevent_cse=False)
    count = self.config.interval - 1
    deltas = nn.scan(
      delta,
      variable_axes=STACKED,
      split_rngs={"params": True},
      in_axes=(0, nn.broadcast),  # pyright: ignore
      length=count,
    )
    layers = None if index is None else index * count + jnp.arange(count)
    shape = (self.config, self.dtype, self.keep)
    carry, states = deltas(*shape, name="delta")(carry, layers, context)
    x, memory = carry
    x, new = attention(*shape, name="attention")(x, index, past, context)
    return (x, memory), (states, new)


def delta_axes(*lead: str | None) -> dict[str, Any]:
  """Logical axes of a `DeltaBlock`, after the leading ones."""

  def heads(name: str) -> tuple[str | None, ...]:
    return (*lead, "embed", f"delta_{name}_heads", "head_dim")

  def conv(name: str) -> dict[str, Any]:
    return {"kernel": (*lead, "conv", f"delta_{name}_heads", "head_dim")}

  return {
    "attn_norm": {"scale": (*lead, "embed")},
    "q": {"kernel": heads("k")},
    "k": {"kernel": heads("k")},
    "v": {"kernel": heads("v")},
    "z": {"kernel": heads("v")},
    "a": {"kernel": (*lead, "embed", "delta_v_heads")},
    "b": {"kernel": (*lead, "embed", "delta_v_heads")},
    "q_conv": conv("k"),
    "k_conv": conv("k"),
    "v_conv": conv("v"),
    "a_log": (*lead, "delta_v_heads"),
    "dt_bias": (*lead, "delta_v_heads"),
    "out_norm": {"scale": (*lead, "head_dim")},
    "o": {"kernel": (*lead, "delta_v_heads", "head_dim", "embed")},
    **mlp_axes(*lead),
  }


def state_axes(*samples: str | None) -> DeltaState:
  """Logical axes of the states [layers, G, ...] of all delta layers."""
  lead = ("layers", "batch", *samples)

  def past(name: str) -> tuple[str | None, ...]:
    return (*lead, None, f"delta_{name}_heads", None)

  memory = (*lead, "delta_k_heads", None, None, None)
  return DeltaState(past("k"), past("k"), past("v"), memory)  # pyright: ignore


def attention_axes(*lead: str | None) -> dict[str, Any]:
  """Logical axes of an `AttentionBlock`, after the leading ones."""
  return {
    "attn_norm": {"scale": (*lead, "embed")},
    "q": {"kernel": (*lead, "embed", "heads", "head_dim")},
    "q_gate": {"kernel": (*lead, "embed", "heads", "head_dim")},
    "k": {"kernel": (*lead, "embed", "kv_heads", "head_dim")},
    "v": {"kernel": (*lead, "embed", "kv_heads", "head_dim")},
    "q_norm": {"scale": (*lead, "head_dim")},
    "k_norm": {"scale": (*lead, "head_dim")},
    "o": {"kernel": (*lead, "heads", "head_dim", "embed")},
    **mlp_axes(*lead),
  }


def _draw_a_log(
  key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> Array:
  return jnp.log(jax.random.uniform(key, shape, dtype, 0.01, 16.0))
