"""Log-probabilities of the head and their gradients against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from varl_kernels.logprob.api import token_logprobs

ROWS, LENGTH, WIDTH, VOCAB, TEMPERATURE = 3, 7, 16, 300, 0.8
# Backend, tile and chunk; nothing divides the vocabulary or the length.
FORMS = [
  ("reference", 0, 7),
  ("reference", 0, 3),
  ("tpu", 0, 3),
  ("tpu", 128, 3),
  ("gpu", 64, 7),
]


@pytest.fixture(scope="module")
def case():
  rng = np.random.default_rng(0)
  forbidden = rng.uniform(size=VOCAB) < 0.1
  allowed = np.flatnonzero(~forbidden)
  return {
    "hidden": rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
    "head": (rng.normal(size=(VOCAB, WIDTH)) * 0.3).astype(np.float32),
    "targets": rng.choice(allowed, (ROWS, LENGTH)).astype(np.int32),
    "forbidden": forbidden,
    "weight": rng.normal(size=(ROWS, LENGTH)).astype(np.float32),
  }


def run(case, backend, tile, chunk):
  """(logprobs, entropies), gradients of hidden and head, what was kept."""

  def call(hidden, head):
    return token_logprobs(
      hidden, head, case["targets"], forbidden=jnp.asarray(case["forbidden"]),
      temperature=TEMPERATURE, chunk=chunk, backend=backend, tile=tile,
      interpret=backend != "reference",
    )  # fmt: skip

  @jax.jit
  def whole(hidden, head):
    found, pull = jax.vjp(call, hidden, head)
    weight = jnp.asarray(case["weight"])
    return found, pull((weight, jnp.ones_like(weight))), pull

  return whole(case["hidden"], case["head"])


@pytest.fixture(scope="module", params=FORMS, ids=str)
def found(request, case):
  return request.param, run(case, *request.param)


@pytest.fixture(scope="module")
def exact(case):
  """Everything in float64 with the whole logits."""
  hidden = case["hidden"].astype(np.float64)
  head = case["head"].astype(np.float64)
  logits = hidden @ head.T / TEMPERATURE
  logits[..., case["forbidden"]] = -np.inf
  norm = np.log(np.exp(logits).sum(-1, keepdims=True))
  chance = np.exp(logits - norm)
  entropy = -(chance * np.where(chance > 0, logits - norm, 0)).sum(-1)
  hot = np.arange(VOCAB) == case["targets"][..., None]
  picked = np.where(hot, logits - norm, 0).sum(-1)
  push = (hot - chance) * case["weight"][..., None] / TEMPERATURE
  return picked, entropy, push @ head, np.einsum("brv,brd->vd", push, hidden)


def test_logprobs_and_entropies(found, exact):
  _, ((picked, entropy), _, _) = found
  np.testing.assert_allclose(picked, exact[0], atol=1e-5)
  np.testing.assert_allclose(entropy, exact[1], atol=1e-5)


def test_gradients(found, exact):
  _, (_, gradients, _) = found
  for value, wanted in zip(gradients, exact[2:], strict=True):
    assert np.abs(value - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_no_logits_are_kept_for_the_backward_pass(found):
  (_, _, chunk), (_, _, pull) = found
  backend = found[0][0]
  sizes = [leaf.size for leaf in jax.tree.leaves(pull)]
  keeps = max(sizes) >= ROWS * LENGTH * VOCAB
  # One chunk that is all there is keeps its logits in the reference.
  assert keeps == (backend == "reference" and chunk == LENGTH)


@pytest.mark.parametrize("backend", ["tpu", "gpu"])
def test_a_forbidden_target_is_minus_infinity_without_nan(case, backend):
  changed = {**case, "targets": case["targets"].copy()}
  changed["targets"][0, 0] = np.flatnonzero(case["forbidden"])[0]
  changed["weight"] = case["weight"] * (np.arange(LENGTH) > 0)
  (picked, entropy), gradients, _ = run(changed, backend, 0, 3)
  assert np.isneginf(picked[0, 0])
  assert np.isfinite(np.delete(picked, 0)).all()
  for value in (entropy, *gradients):
    assert np.isfinite(value).all()


def test_refused_operands(case):
  call = functools.partial(
    token_logprobs, forbidden=jnp.zeros(VOCAB, bool), chunk=1
  )
  hidden, head, targets = case["hidden"], case["head"], case["targets"]
  with pytest.raises(ValueError, match="a head"):
    call(hidden, head[:, 1:], targets)
  with pytest.raises(ValueError, match="above 0"):
    call(hidden, head, targets, temperature=-1.0)
