"""The gated delta rule for one token a row, in plain XLA."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def delta_decode(
  q: Float[Array, "*B J k"],
  k: Float[Array, "*B J k"],
  v: Float[Array, "*B J r v"],
  g: Float[Array, "*B J r"],
  beta: Float[Array, "*B J r"],
  memory: Float[Array, "*B J r k v"],
  *,
  layer: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "*B J r v"], Float[Array, "*B J r k v"]]:
  """`api.delta_decode`; products with the memory are made once."""
  if layer is not None:
    own = jax.lax.dynamic_index_in_dim(memory, layer, keepdims=False)
    out, new = delta_decode(q, k, v, g, beta, own)
    return out, jax.lax.dynamic_update_index_in_dim(memory, new, layer, 0)
  q, k, v, g, beta = (x.astype(jnp.float32) for x in (q, k, v, g, beta))
  both = jnp.stack((k, q), axis=-2)
  read = jnp.einsum(
    "...jtk,...jrkv->...jrtv",
    both,
    memory,
    precision=jax.lax.Precision.HIGHEST,
  )
  decay = jnp.exp(g)[..., None]
  d = beta[..., None] * (v - decay * read[..., 0, :])
  match = jnp.sum(q * k, axis=-1)[..., None, None]
  out = decay * read[..., 1, :] + match * d
  written = k[..., None, :, None] * d[..., None, :]
  return out, decay[..., None] * memory + written
