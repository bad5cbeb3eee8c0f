"""The delta rule against its plain recurrence in float64."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from varl_jax.models.delta_rule import (
  CausalConv,
  delta_rule,
  delta_step,
  unit,
)

KEYS, GROUP, K_DIM, V_DIM = 2, 3, 4, 5
LONGEST, CHUNK = 21, 4

rule = jax.jit(delta_rule, static_argnames="chunk")


def make_inputs(rng, rows, length, *, decay=1.0):
  """Inputs of the rule, with decays from none to nearly all."""
  heads = (rows, length, KEYS)
  q, k = (unit(rng.normal(size=(*heads, K_DIM))) for _ in "qk")
  v = rng.normal(size=(*heads, GROUP, V_DIM))
  g = -decay * rng.exponential(size=(*heads, GROUP))
  beta = rng.uniform(size=(*heads, GROUP))
  return [jnp.asarray(x, jnp.float32) for x in (q, k, v, g, beta)]


def make_memory(rng, rows):
  shape = (rows, KEYS, GROUP, K_DIM, V_DIM)
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


def recurrence(q, k, v, g, beta, memory, real):
  """One row and one head after the other, one token at a time."""
  q, k, v, g, beta = (np.asarray(x, np.float64) for x in (q, k, v, g, beta))
  memory = np.array(memory, np.float64)
  out = np.zeros(v.shape)
  for b, j, r in np.ndindex(len(v), KEYS, GROUP):
    state = memory[b, j, r]
    for t in range(v.shape[1]):
      if real[b, t]:
        state *= np.exp(g[b, t, j, r])
        change = v[b, t, j, r] - state.T @ k[b, t, j]
        state += beta[b, t, j, r] * np.outer(k[b, t, j], change)
      out[b, t, j, r] = state.T @ q[b, t, j]
  return out, memory


@hypothesis.settings(max_examples=60)
@hypothesis.given(
  seed=st.integers(0, 2**16),
  length=st.integers(1, LONGEST),
  decay=st.sampled_from([0.0, 0.1, 1.0, 300.0]),
)
def test_chunks_equal_the_recurrence_for_any_length_and_padding(
  seed, length, decay
):
  # Always the same shape: what stands past `length` is padding like any other.
  rng = np.random.default_rng(seed)
  inputs = make_inputs(rng, 2, LONGEST, decay=decay)
  memory = make_memory(rng, 2)
  real = rng.uniform(size=(2, LONGEST)) < rng.choice([0.2, 0.7, 1.0])
  real[:, length:] = False
  expected, last = recurrence(*inputs, memory, real)
  out, found = rule(*inputs, memory, real=jnp.asarray(real), chunk=CHUNK)
  np.testing.assert_allclose(found, last, atol=2e-5)
  where = np.nonzero(real)
  np.testing.assert_allclose(np.asarray(out)[where], expected[where], atol=2e-5)


def test_lengths_around_the_chunks_without_padding_or_memory():
  rng = np.random.default_rng(1)
  inputs = make_inputs(rng, 1, 9)
  nothing = np.zeros((1, KEYS, GROUP, K_DIM, V_DIM))
  for length in (1, 3, 4, 5, 8, 9):
    cut = [x[:, :length] for x in inputs]
    expected, last = recurrence(*cut, nothing, np.ones((1, length), bool))
    out, memory = rule(*cut, chunk=CHUNK)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(memory, last, atol=1e-5)


def test_the_chunk_of_64_and_repeated_keys():
  # Equal keys written at full strength are the worst case of the solve.
  rng = np.random.default_rng(2)
  q, k, v, g, beta = make_inputs(rng, 1, 150)
  k = jnp.broadcast_to(k[:, :1], k.shape)
  args = (q, k, v, g * 0.01, jnp.ones_like(beta))
  nothing = np.zeros((1, KEYS, GROUP, K_DIM, V_DIM))
  expected, last = recurrence(*args, nothing, np.ones((1, 150), bool))
  out, memory = rule(*args)
  np.testing.assert_allclose(out, expected, atol=1e-4)
  np.testing.assert_allclose(memory, last, atol=1e-4)


def test_padding_leaves_the_memory_bit_for_bit():
  rng = np.random.default_rng(3)
  memory = make_memory(rng, 2)
  real = jnp.zeros((2, LONGEST), bool)
  _, found = rule(*make_inputs(rng, 2, LONGEST), memory, real=real, chunk=CHUNK)
  np.testing.assert_array_equal(found, memory)


def test_steps_equal_the_recurrence():
  rng = np.random.default_rng(4)
  inputs, memory = make_inputs(rng, 2, 7), make_memory(rng, 2)
  expected, last = recurrence(*inputs, memory, np.ones((2, 7), bool))
  step = jax.jit(delta_step)
  for t in range(7):
    out, memory = step(*(x[:, t] for x in inputs), memory)
    np.testing.assert_allclose(out, expected[:, t], atol=1e-5)
  np.testing.assert_allclose(memory, last, atol=1e-5)


def test_gradients_equal_those_of_steps_and_ignore_padding():
  rng = np.random.default_rng(5)
  inputs, memory = make_inputs(rng, 2, 10, decay=50.0), make_memory(rng, 2)
  real = jnp.asarray(rng.uniform(size=(2, 10)) < 0.7)
  weight = jnp.where(real[..., None, None, None], 1.0, 0.0)

  def by_chunks(inputs, memory):
    out, last = delta_rule(*inputs, memory, real=real, chunk=CHUNK)
    return jnp.sum(weight * out**2) + jnp.sum(last**3)

  def by_steps(inputs, memory):
    total = 0.0
    for t in range(10):
      out, new = delta_step(*(x[:, t] for x in inputs), memory)
      keep = real[:, t, None, None, None, None]
      memory = jnp.where(keep, new, memory)
      total += jnp.sum(weight[:, t] * out**2)
    return total + jnp.sum(memory**3)

  found = jax.jit(jax.grad(by_chunks, (0, 1)))(inputs, memory)
  expected = jax.jit(jax.grad(by_steps, (0, 1)))(inputs, memory)
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-3)


def test_strong_decay_does_not_overflow():
  # 64 tokens of -30 sum to -1920: the masked half would be exp(1920).
  rng = np.random.default_rng(6)
  q, k, v, g, beta = make_inputs(rng, 1, 70)
  g = jnp.full_like(g, -30.0)

  def total(g):
    out, memory = delta_rule(q, k, v, g, beta)
    return jnp.sum(out) + jnp.sum(memory)

  value, gradient = jax.jit(jax.value_and_grad(total))(g)
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()


def test_a_convolution_sees_the_last_tokens_and_its_columns_carry_on():
  rng = np.random.default_rng(7)
  conv = CausalConv(4, jnp.float32)
  x = jnp.asarray(rng.normal(size=(3, 9, 2, 5)), jnp.float32)
  lengths = np.array([9, 6, 2])
  x = jnp.where(
    np.arange(9)[:, None, None] < lengths[:, None, None, None], x, 0
  )
  params = conv.init(jax.random.key(0), x, None, None)
  run = functools.partial(conv.apply, params)
  kernel = np.asarray(params["params"]["kernel"], np.float64)
  wide = np.asarray(x, np.float64)
  y, columns = run(x, None, jnp.asarray(lengths))
  for b, length in enumerate(lengths):
    for t in range(length):
      window = [wide[b, t - 3 + i] * kernel[i] for i in range(4) if t >= 3 - i]
      total = sum(window)
      expected = total / (1 + np.exp(-total))
      np.testing.assert_allclose(y[b, t], expected, atol=1e-5)
    last = np.concatenate([np.zeros((3, 2, 5)), wide[b, :length]])[-3:]
    np.testing.assert_allclose(columns[b], last, atol=1e-6)
  token = jnp.asarray(rng.normal(size=(3, 1, 2, 5)), jnp.float32)
  one, columns = run(token, columns[:, None], None)
  for b, length in enumerate(lengths):
    longer = jnp.concatenate([x[b : b + 1, :length], token[b : b + 1]], axis=1)
    whole, last = run(longer, None, None)
    np.testing.assert_allclose(one[b, 0], whole[0, -1], atol=1e-6)
    np.testing.assert_allclose(columns[b, 0], last[0], atol=1e-6)
