"""Projections with adapters, and the rotation of a part of a head."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.llama_test import hidden_of, random_params, tiny_config
from varl_jax.models.layers import Projection, rope_angles, rotate
from varl_jax.models.llama import Llama


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def test_an_adapter_adds_its_scaled_product():
  module = Projection((2, 3), (4, 5), jnp.float32)
  x, kernel = normal(0, 7, 2, 3), normal(1, 2, 3, 4, 5)
  a, b = normal(2, 2, 3, 2), normal(3, 2, 4, 5)
  tree = {"params": {"kernel": kernel}, "lora": {"a": a, "b": b}}
  plain = np.einsum("nij,ijkl->nkl", x, kernel)
  added = np.einsum("nij,ijr,rkl->nkl", x, a, b)
  found = module.apply(tree, x)
  np.testing.assert_allclose(found, plain + added, atol=1e-4)
  scaled = tree | {"lora_scale": {"scale": jnp.float32(0.25)}}
  found = module.apply(scaled, x)
  np.testing.assert_allclose(found, plain + 0.25 * added, atol=1e-4)


def test_a_model_applies_the_adapters_in_its_parameters():
  config = tiny_config()
  model, params = Llama(config), random_params(config)
  n, width, rank = config.num_layers, config.hidden_size, 2
  a = normal(0, n, width, rank)
  b = normal(1, n, rank, config.num_heads, config.head_dim)
  scale = jnp.arange(1.0, n + 1)
  adapted = params | {
    "lora": {"layers": {"q": {"a": a, "b": b}}},
    "lora_scale": {"layers": {"q": {"scale": scale}}},
  }
  merged = jax.tree.map(lambda x: x, params)
  merged["params"]["layers"]["q"]["kernel"] += jnp.einsum(
    "n,ndr,nrkh->ndkh", scale, a, b
  )
  tokens = np.random.default_rng(2).integers(0, 37, (2, 9))
  expected = hidden_of(model, merged, tokens)
  np.testing.assert_allclose(
    hidden_of(model, adapted, tokens), expected, atol=1e-4
  )
  assert jnp.abs(expected - hidden_of(model, params, tokens)).max() > 0.1

  last, state = model.prefill(adapted, tokens[:, :5], jnp.array([5, 5]))
  np.testing.assert_allclose(last, expected[:, 4], atol=1e-4)
  cache = model.start(state, jnp.array([5, 5]), samples=1, slots=0, recent=2)
  hidden, _ = model.decode(adapted, tokens[:, 5:6], cache)
  np.testing.assert_allclose(hidden[:, 0], expected[:, 5], atol=1e-4)


def test_only_the_leading_dimensions_of_a_head_are_rotated():
  x = normal(0, 1, 3, 2, 10)
  rope = rope_angles(jnp.array([[0, 1, 5]]), width=4, theta=100.0)
  found = np.asarray(rotate(x, rope), np.float64)
  np.testing.assert_array_equal(found[..., 4:], x[..., 4:])
  pairs = np.asarray(x[..., :2] + 1j * x[..., 2:4])
  angle = np.array([0, 1, 5])[:, None, None] * 100.0 ** -np.array([0, 0.5])
  turned = pairs * np.exp(1j * angle)
  np.testing.assert_allclose(found[..., :2], turned.real, atol=1e-5)
  np.testing.assert_allclose(found[..., 2:4], turned.imag, atol=1e-5)
