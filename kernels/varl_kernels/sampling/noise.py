"""Gumbel noise as a function of (row seeds, vocabulary id), in plain jnp.

The same lines run in the reference and inside the kernels, so that all forms
draw the same tokens. Row seeds are the two words of a jax threefry key; the
bits at an id are those that `jax.random.bits(key, (V,), uint32)` has there.
Nothing but 32-bit adds, shifts and exclusive ors: the hardware's own generator
would be another one on every platform, and none where kernels are interpreted.
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = 0x1BD11BDA
_BELOW_ONE: Final = 1.0 - 2.0**-24


def threefry2x32(
  key: tuple[UInt32[Array, "..."], UInt32[Array, "..."]],
  high: UInt32[Array, "..."],
  low: UInt32[Array, "..."],
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
  """Twenty rounds of the block cipher on the counter (high, low)."""
  keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
  high, low = high + keys[0], low + keys[1]
  for group in range(5):
    for turn in _ROTATIONS[group % 2]:
      high = high + low
      low = (low << jnp.uint32(turn)) | (low >> jnp.uint32(32 - turn))
      low = low ^ high
    high = high + keys[(group + 1) % 3]
    low = low + keys[(group + 2) % 3] + jnp.uint32(group + 1)
  return high, low


def gumbel(
  seeds: tuple[UInt32[Array, "B 1"], UInt32[Array, "B 1"]],
  ids: UInt32[Array, "1 T"],
) -> Float[Array, "B T"]:
  """Gumbel noise of each row at these vocabulary ids.

  The uniforms use all 32 bits and are taken near 0 (log1p), where float32 is
  fine: the right tail reaches 22.9 instead of the 16.6 of 23-bit uniforms. The
  left tail ends at -2.8, so that a token never loses its only chance.
  """
  high, low = threefry2x32(seeds, jnp.uint32(0), ids)  # pyright: ignore
  bits = high ^ low
  # Halves, because not every compiler turns 32 unsigned bits into a float; the
  # sum is rounded once, as that conversion would.
  upper = (bits >> jnp.uint32(16)).astype(jnp.int32).astype(jnp.float32)
  lower = (bits & jnp.uint32(0xFFFF)).astype(jnp.int32).astype(jnp.float32)
  uniform = (upper * 65536.0 + lower + 0.5) * jnp.float32(2.0**-32)
  uniform = jnp.minimum(uniform, jnp.float32(_BELOW_ONE))
  return -jnp.log(-jnp.log1p(-uniform))
