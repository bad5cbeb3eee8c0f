"""Layers that the decoders share: projections, norms, rotary positions.

A projection keeps its heads as axes of the kernel, [D, heads, H] or
[heads, H, D], so that a mesh shards it by whole heads. Weights are multiplied
in the compute type; accelerators are told not to multiply fp32 in fewer bits.

Adapters: where the variable collection `lora` holds `a` [in..., r] and `b`
[r, out...] under a projection's name, it adds scale * (x a) b. The scale is the
`scale` of the collection `lora_scale`, 1 where there is none; it stands apart
because everything in `lora` is trained.
"""

import math
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from varl_jax.models.sharding import constrain, mesh_sizes

Params = Any
Axes = tuple[str | None, ...]

# Collections whose leaves have a leading axis under a scan over layers.
STACKED: Final[dict[Any, Any]] = {"params": 0, "lora": 0, "lora_scale": 0}


class Projection(nn.Module):
  """x kernel, contracting the last axes of x with the first of the kernel.

  Attributes:
    inputs: contracted axes, the last ones of x.
    outputs: axes that take their place.
    dtype: compute type, also of the result.
  """

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  dtype: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    rank = len(self.inputs)
    init = nn.initializers.lecun_normal(
      in_axis=tuple(range(rank)),
      out_axis=tuple(range(rank, rank + len(self.outputs))),
    )
    kernel = self.param("kernel", init, (*self.inputs, *self.outputs))
    x = x.astype(self.dtype)
    y = contract(x, kernel, axes=rank)
    if self.has_variable("lora", "a"):
      low = contract(x, self.get_variable("lora", "a"), axes=rank)
      added = contract(low, self.get_variable("lora", "b"), axes=1)
      scale = jnp.asarray(self.get_variable("lora_scale", "scale", 1.0))
      y = y + scale.astype(y.dtype) * added
    return y


def contract(x: Array, kernel: Array, *, axes: int) -> Array:
  """The last `axes` axes of x against the first of the kernel, in x's type.

  On one device both are made matrices first: then the kernel's gradient is one
  product of matrices too, which the CPU backend does twice as fast.
  """
  kernel = kernel.astype(x.dtype)
  inputs, outputs = x.shape[:-axes], kernel.shape[axes:]
  if math.prod(mesh_sizes().values()) == 1:
    width = math.prod(kernel.shape[:axes])
    x, kernel = x.reshape(-1, width), kernel.reshape(width, -1)
    y = jnp.matmul(x, kernel, precision=precision(x.dtype))
    return y.reshape(*inputs, *outputs)
  return jax.lax.dot_general(
    x,
    kernel,
    ((tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))), ((), ())),
    precision=precision(x.dtype),
  )


class RmsNorm(nn.Module):
  """x / sqrt(mean(x^2) + eps) * scale, normalized in fp32.

  Attributes:
    eps: added to the mean square.
    centered: store scale - 1 and multiply in fp32, as Qwen3.5 does; else
      multiply in x's type, as Llama does.
  """

  eps: float
  centered: bool = False

  @nn.compact
  def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    init = nn.initializers.zeros if self.centered else nn.initializers.ones
    scale = self.param("scale", init, (x.shape[-1],))
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean + self.eps)
    if self.centered:
      return (normed * (1 + scale.astype(jnp.float32))).astype(x.dtype)
    return normed.astype(x.dtype) * scale.astype(x.dtype)


class Rope(NamedTuple):
  """Cosines and sines of the rotary angles, each [B or 1, L, 1, W / 2]."""

  cos: Array
  sin: Array


def rope_angles(
  positions: Int[Array, "B L"], *, width: int, theta: float
) -> Rope:
  """Angles position * theta^(-2 i / W) for i < W / 2, in fp32."""
  exponent = jnp.arange(0, width, 2, dtype=jnp.float32) / width
  angle = positions[..., None, None].astype(jnp.float32) * theta**-exponent
  return Rope(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B L heads H"], rope: Rope) -> Array:
  """Rotates the pairs (i, i + W / 2) of each head's first W dimensions."""
  cos, sin = rope
  half = cos.shape[-1]
  wide = x.astype(jnp.float32)
  left, right = wide[..., :half], wide[..., half : 2 * half]
  turned = (left * cos - right * sin, right * cos + left * sin)
  rest = () if x.shape[-1] == 2 * half else (wide[..., 2 * half :],)
  return jnp.concatenate((*turned, *rest), axis=-1).astype(x.dtype)


def pin(x: Array, *names: str | None, decoding: bool) -> Array:
  """Says how activations are split over the mesh in use.

  Args:
    x: [B, L, ...], or [G, n, ...] with one token a row while decoding; samples
      take the devices that the prompts leave.
    names: logical axes after the first two.
  """
  return constrain(x, "batch", "batch" if decoding else "length", *names)


def gated_mlp(
  x: Float[Array, "B L D"], width: int, dtype: Any, *, decoding: bool
) -> Float[Array, "B L D"]:
  """down(silu(gate(x)) * up(x)), its projections belonging to the caller."""
  narrow = (x.shape[-1],)
  gate = Projection(narrow, (width,), dtype, name="gate")(x)
  up = Projection(narrow, (width,), dtype, name="up")(x)
  wide = pin(nn.silu(gate) * up, "mlp", decoding=decoding)
  return Projection((width,), narrow, dtype, name="down")(wide)


def mlp_axes(*lead: str | None) -> dict[str, Any]:
  """Logical axes of `gated_mlp` and of its norm, after the leading ones."""
  return {
    "mlp_norm": {"scale": (*lead, "embed")},
    "gate": {"kernel": (*lead, "embed", "mlp")},
    "up": {"kernel": (*lead, "embed", "mlp")},
    "down": {"kernel": (*lead, "mlp", "embed")},
  }


def embedding_table(
  module: nn.Module, name: str, vocab: int, width: int
) -> Float[Array, "V D"]:
  """A [V, D] parameter of `module`, drawn with deviation 0.02."""
  return module.param(name, nn.initializers.normal(0.02), (vocab, width))


def einsum(equation: str, left: Array, right: Array) -> Array:
  """`jnp.einsum` in the operands' type, exact for fp32."""
  return jnp.einsum(equation, left, right, precision=precision(left.dtype))


def einsum32(equation: str, left: Array, right: Array) -> Array:
  """`einsum` accumulated and returned in fp32."""
  return jnp.einsum(
    equation,
    left,
    right,
    precision=precision(left.dtype),
    preferred_element_type=jnp.float32,
  )


def precision(dtype: Any) -> jax.lax.Precision | None:
  """Accelerators multiply fp32 in fewer bits unless told not to."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def num_weights(shapes: Any) -> int:
  """Number of values in a pytree of arrays or shapes."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
