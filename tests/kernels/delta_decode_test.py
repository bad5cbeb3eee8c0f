"""The decode step of the delta rule, interpreted, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from varl_kernels.delta_decode import pallas_gpu, pallas_tpu
from varl_kernels.delta_decode.api import delta_decode

LAYERS, BATCH, HEADS, GROUP, KEYS, VALUES = 2, (2, 2), 4, 2, 8, 12
FORMS = ("reference", "tpu", "gpu")


@pytest.fixture(scope="module")
def case():
  """Operands; row (1, 1) has g = 0 and beta = 0, as padding does."""
  rng = np.random.default_rng(0)
  heads = (*BATCH, HEADS)
  q, k = (rng.normal(size=(*heads, KEYS)) * 0.3 for _ in "qk")
  v = rng.normal(size=(*heads, GROUP, VALUES))
  g = -rng.exponential(size=(*heads, GROUP))
  beta = rng.uniform(size=(*heads, GROUP))
  g[1, 1], beta[1, 1] = 0, 0
  memory = rng.normal(size=(LAYERS, *heads, GROUP, KEYS, VALUES))
  return [jnp.asarray(x, jnp.float32) for x in (q, k, v, g, beta, memory)]


@pytest.fixture(scope="module", params=FORMS)
def stepped(request, case):
  """One form's output and memory; heads and columns come in several blocks."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pallas_tpu, "HEADS", 2)
    patch.setattr(pallas_gpu, "COLUMNS", 8)
    run = functools.partial(
      delta_decode,
      layer=jnp.int32(1),
      backend=request.param,
      interpret=request.param != "reference",
    )
    return jax.jit(run)(*case)


def recurrence(q, k, v, g, beta, memory):
  """The rule as it is written, one head after the other."""
  q, k, v, g, beta = (np.asarray(x, np.float64) for x in (q, k, v, g, beta))
  memory = np.array(memory, np.float64)
  out = np.zeros(v.shape)
  for index in np.ndindex(g.shape):
    state, head = memory[index], index[:-1]
    state *= np.exp(g[index])
    change = beta[index] * (v[index] - state.T @ k[head])
    state += np.outer(k[head], change)
    out[index] = state.T @ q[head]
  return out, memory


def test_a_step_is_the_recurrence(case, stepped):
  out, memory = recurrence(*case[:5], case[5][1])
  np.testing.assert_allclose(stepped[0], out, atol=5e-6)
  np.testing.assert_allclose(stepped[1][1], memory, atol=5e-6)


def test_other_layers_and_padding_are_left_as_they_are(case, stepped):
  np.testing.assert_array_equal(stepped[1][0], case[5][0])
  np.testing.assert_array_equal(stepped[1][1, 1, 1], case[5][1, 1, 1])


def test_refused_operands(case):
  with pytest.raises(ValueError, match="Shapes that do not fit: q"):
    delta_decode(*case)
  wrong = [*case[:5], case[5][0].astype(jnp.bfloat16)]
  with pytest.raises(ValueError, match="The memory is float32"):
    delta_decode(*wrong)
  narrow = [x[..., :6] for x in case[:2]]
  memory = case[5][0][..., :6, :]
  with pytest.raises(ValueError, match="a power of two, got 6"):
    delta_decode(*narrow, *case[2:5], memory, backend="gpu")
