"""Attention over blocks of queries against all scores at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models import attention
from varl_jax.models.attention import attend_causal


def make_qkv(length):
  rng = np.random.default_rng(length)
  shapes = ((2, length, 2, 3, 4), (2, length, 2, 4), (2, length, 2, 4))
  return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def by_hand(q, k, v, real):
  """float64, one query at a time."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  out = np.zeros(q.shape)
  for b, t, j, r in np.ndindex(q.shape[:4]):
    seen = [m for m in range(t + 1) if real[b, m] or m == t]
    scores = k[b, seen, j] @ q[b, t, j, r] / 2
    chance = np.exp(scores - scores.max())
    out[b, t, j, r] = chance / chance.sum() @ v[b, seen, j]
  return out


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 7, 16, 21])
def test_blocks_equal_all_scores_at_once(length, padded, monkeypatch):
  qkv = make_qkv(length)
  real = np.ones((2, length), bool)
  real[1, : length // 2] = not padded
  mask = jnp.asarray(real) if padded else None
  expected = by_hand(*qkv, real)
  np.testing.assert_allclose(attend_causal(*qkv, mask), expected, atol=1e-5)
  monkeypatch.setattr(attention, "MAX_WHOLE", 0)
  monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
  np.testing.assert_allclose(attend_causal(*qkv, mask), expected, atol=1e-5)


def test_gradients_of_blocks(monkeypatch):
  qkv = make_qkv(13)

  def loss(qkv):
    return jnp.sum(attend_causal(*qkv) ** 3)

  expected = jax.grad(loss)(qkv)
  monkeypatch.setattr(attention, "MAX_WHOLE", 0)
  monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
  found = jax.grad(loss)(qkv)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-4)


def test_long_rows_never_have_all_scores():
  length = 4 * attention.MAX_WHOLE
  shapes = [
    jax.ShapeDtypeStruct(s, jnp.bfloat16)
    for s in ((1, length, 1, 2, 8), (1, length, 1, 8), (1, length, 1, 8))
  ]

  def loss(q, k, v):
    return jnp.sum(attend_causal(q, k, v).astype(jnp.float32))

  text = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*shapes))
  assert f"{attention.QUERY_BLOCK},{length}]" in text
  assert f"{length},{length}]" not in text
