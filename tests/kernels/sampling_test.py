"""Sampling kernels, interpreted, against the reference; and the noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from varl_kernels.sampling import noise, pallas_tpu, reference
from varl_kernels.sampling.api import sample

ROWS, WIDTH, VOCAB, TEMPERATURE = 20, 40, 300, 0.8
# Backend and tile; neither 128 nor 16 divides the vocabulary.
FORMS = [("tpu", 0), ("tpu", 128), ("gpu", 16), ("gpu", 128)]


@pytest.fixture(scope="module")
def case():
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(ROWS, WIDTH))
  head = rng.normal(size=(VOCAB, WIDTH)) * 0.3
  return (
    jnp.asarray(hidden, jnp.float32),
    jnp.asarray(head, jnp.float32),
    make_seeds(rng, ROWS),
    jnp.asarray(rng.uniform(size=VOCAB) < 0.1),
  )


def make_seeds(rng, rows):
  return jnp.asarray(rng.integers(0, 2**32, (rows, 2)), jnp.uint32)


@functools.cache
def drawer(backend, tile=0):
  """`sample` compiled once for each form, the mask being an argument."""
  return jax.jit(
    lambda hidden, head, seeds, forbidden: sample(
      hidden, head, seeds, forbidden=forbidden, temperature=TEMPERATURE,
      backend=backend, tile=tile, interpret=backend != "reference",
    )
  )  # fmt: skip


@pytest.fixture(scope="module")
def expected(case):
  return drawer("reference")(*case)


def test_the_reference_is_the_arg_max_of_logits_and_jaxs_bits(case, expected):
  hidden, head, seeds, forbidden = (np.asarray(x) for x in case)
  keys = jax.random.wrap_key_data(jnp.asarray(seeds))
  bits = jax.jit(jax.vmap(lambda k: jax.random.bits(k, (VOCAB,), "uint32")))
  uniform = (np.asarray(bits(keys), np.float64) + 0.5) / 2**32
  logits = hidden.astype(np.float64) @ head.T / TEMPERATURE
  logits[:, forbidden] = -np.inf
  tokens = np.argmax(logits - np.log(-np.log1p(-uniform)), axis=1)
  np.testing.assert_array_equal(expected[0], tokens)
  norm = np.log(np.exp(logits).sum(1))
  found = logits[np.arange(ROWS), tokens] - norm
  np.testing.assert_allclose(expected[1], found, atol=1e-5)


@pytest.mark.parametrize(("backend", "tile"), FORMS)
def test_kernels_draw_the_references_tokens(case, expected, backend, tile):
  token, logprob = drawer(backend, tile)(*case)
  np.testing.assert_array_equal(token, expected[0])
  np.testing.assert_allclose(logprob, expected[1], atol=1e-5)
  assert len(set(np.asarray(token).tolist())) > 5
  assert float(logprob.max()) <= 0


@pytest.mark.parametrize(("backend", "tile"), FORMS[1:3])
def test_the_only_token_allowed_is_drawn_for_sure(case, backend, tile):
  for only in (0, 128, VOCAB - 1):
    forbidden = jnp.arange(VOCAB) != only
    token, logprob = drawer(backend, tile)(*case[:3], forbidden)
    assert set(np.asarray(token).tolist()) == {only}
    np.testing.assert_array_equal(logprob, 0)


def test_rows_that_pad_the_head_change_nothing(case, expected):
  hidden, head, seeds, forbidden = case
  head = jnp.pad(head, ((0, 84), (0, 0)), constant_values=9.0)
  forbidden = jnp.pad(forbidden, (0, 84), constant_values=True)
  for form in (("reference", 0), ("tpu", 128)):
    token, logprob = drawer(*form)(hidden, head, seeds, forbidden)
    np.testing.assert_array_equal(token, expected[0])
    np.testing.assert_allclose(logprob, expected[1], atol=1e-5)


def test_bfloat16_is_accumulated_in_float32_and_rows_come_in_blocks(
  case, monkeypatch
):
  monkeypatch.setattr(pallas_tpu, "MAX_ROWS", 16)
  hidden, head, seeds, _ = case
  args = hidden.astype(jnp.bfloat16), head.astype(jnp.bfloat16), seeds
  exact = reference.sample(*args)
  wide = reference.sample(*(x.astype(jnp.float32) for x in args[:2]), seeds)
  found = sample(*args, backend="tpu", interpret=True)
  for value, other in zip(found, exact, strict=True):
    np.testing.assert_allclose(value, other, atol=1e-5)
  np.testing.assert_allclose(found[1], wide[1], atol=1e-5)


def test_draws_have_the_chances_of_the_softmax():
  """400,000 draws: chi-square of 15 degrees of freedom, chance 0.001."""
  rows, vocab = 400_000, 16
  rng = np.random.default_rng(2)
  hidden = jnp.broadcast_to(jnp.asarray(rng.normal(size=8)), (rows, 8))
  head = jnp.asarray(rng.normal(size=(vocab, 8)) * 0.4)
  seeds = make_seeds(rng, rows)
  token, logprob = jax.jit(reference.sample)(hidden, head, seeds)
  some = 2048
  same, _ = sample(
    hidden[:some], head, seeds[:some], backend="tpu", interpret=True
  )
  np.testing.assert_array_equal(token[:some], same)
  logits = np.asarray(head, np.float64) @ np.asarray(hidden[0], np.float64)
  chance = np.exp(logits) / np.exp(logits).sum()
  np.testing.assert_allclose(logprob, np.log(chance)[token], atol=1e-5)
  counts = np.bincount(token, minlength=vocab)
  assert ((counts - chance * rows) ** 2 / (chance * rows)).sum() < 37.7


@pytest.mark.parametrize(("bits", "value"), [(0, 22.87), (2**32 - 1, -2.81)])
def test_noise_is_finite_at_both_ends(monkeypatch, bits, value):
  whole = jnp.full((1, 1), bits, jnp.uint32)
  monkeypatch.setattr(
    noise, "threefry2x32", lambda *_: (whole, jnp.zeros_like(whole))
  )
  assert float(noise.gumbel((whole, whole), whole)[0, 0]) == pytest.approx(
    value, abs=0.01
  )


@pytest.mark.parametrize(
  ("cut", "kept"),
  [
    ({"top_k": 2}, {0, 1}),
    ({"top_p": 0.85}, {0, 1, 2}),
    ({"top_p": 0.0}, {0}),
    ({"min_p": 0.3}, {0, 1}),
    ({"top_k": 3, "min_p": 0.3}, {0, 1}),
  ],
)
def test_evaluation_may_cut_the_distribution(cut, kept):
  chance = np.array([0.5, 0.25, 0.12, 0.08, 0.05])
  rows = 600
  hidden = jnp.ones((rows, 1))
  head = jnp.log(jnp.asarray(chance))[:, None]
  seeds = make_seeds(np.random.default_rng(3), rows)
  token, logprob = reference.sample(hidden, head, seeds, **cut)
  assert set(np.asarray(token).tolist()) == kept
  left = chance[sorted(kept)].sum()
  np.testing.assert_allclose(np.exp(logprob), chance[token] / left, rtol=1e-5)


def test_refused_arguments(case):
  hidden, head, seeds, _ = case
  for changes, words in (
    ({"temperature": 0.0}, "above 0"),
    ({"backend": "cuda"}, "Unknown backend 'cuda'"),
    ({"interpret": True}, "no kernel and cannot be interpreted"),
    ({"forbidden": jnp.zeros(3, bool), "backend": "tpu"}, "shape \\(3,\\)"),
    ({"backend": "tpu", "tile": 100}, "multiple of 128"),
    ({"backend": "gpu", "tile": 48}, "power of two"),
  ):
    with pytest.raises(ValueError, match=words):
      sample(hidden, head, seeds, **changes)
  with pytest.raises(ValueError, match="a head"):
    sample(hidden, head[:, 1:], seeds)


def test_a_variable_names_the_form_for_auto(case, monkeypatch):
  monkeypatch.setenv("VARL_KERNELS", "metal")
  with pytest.raises(ValueError, match="Unknown backend 'metal'"):
    sample(*case[:3])
