import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.rl.logprobs import forbidden_mask, masked_logits, token_logprobs

ROWS, LENGTH, WIDTH, VOCAB = 3, 10, 8, 13
FORBIDDEN = (0, 4)


@pytest.fixture(scope="module")
def case():
  rng = np.random.default_rng(0)
  allowed = [i for i in range(VOCAB) if i not in FORBIDDEN]
  return (
    rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
    rng.normal(size=(VOCAB, WIDTH)).astype(np.float32),
    rng.choice(allowed, (ROWS, LENGTH)).astype(np.int32),
  )


def reference(hidden, head, targets, temperature):
  """float64 log-softmax over the allowed ids only."""
  logits = hidden.astype(np.float64) @ head.astype(np.float64).T / temperature
  logits[..., list(FORBIDDEN)] = -np.inf
  chance = np.exp(logits - logits.max(-1, keepdims=True))
  chance /= chance.sum(-1, keepdims=True)
  safe = np.where(chance > 0, chance, 1)
  picked = np.take_along_axis(chance, targets[..., None], -1)[..., 0]
  return np.log(picked), -(chance * np.log(safe)).sum(-1)


@pytest.mark.parametrize("chunk", [0, 1, 3, 5, 10, 99])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_matches_float64(case, chunk, temperature):
  found = token_logprobs(
      *case, forbidden=forbidden_mask(FORBIDDEN, VOCAB),
      temperature=temperature, chunk=chunk,
  )  # fmt: skip
  for value, wanted in zip(found, reference(*case, temperature), strict=True):
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [0, 3])
def test_gradients_by_finite_differences(case, chunk):
  hidden, head, targets = case
  weight = np.random.default_rng(1).normal(size=targets.shape)

  def loss(h, w):
    found, _ = token_logprobs(
        h, w, targets, forbidden=forbidden_mask(FORBIDDEN, VOCAB),
        temperature=0.7, chunk=chunk,
    )  # fmt: skip
    return jnp.sum(found * weight)

  found = jax.grad(loss, (0, 1))(hidden, head)

  def exact(h, w):
    return (reference(h, w, targets, 0.7)[0] * weight).sum()

  rng = np.random.default_rng(2)
  for _ in range(6):
    a, b = rng.normal(size=hidden.shape), rng.normal(size=head.shape)
    e = 1e-6
    slope = exact(hidden + e * a, head + e * b)
    slope = (slope - exact(hidden - e * a, head - e * b)) / (2 * e)
    along = (found[0] * a).sum() + (found[1] * b).sum()
    assert float(along) == pytest.approx(slope, rel=1e-3, abs=1e-3)
  assert not np.asarray(found[1])[list(FORBIDDEN)].any()


def test_at_most_zero_even_when_certain():
  hidden = jnp.full((1, 1, 1), 1e4)
  head = jnp.array([[1.0], [-1.0]])
  found, entropy = token_logprobs(
    hidden, head, jnp.zeros((1, 1), int), forbidden=np.zeros(2, bool)
  )
  assert float(found[0, 0]) == 0.0 and float(entropy[0, 0]) == 0.0


def test_bfloat16_states_accumulate_in_float32(case):
  hidden, head, targets = case
  hidden = jnp.asarray(hidden, jnp.bfloat16)

  def loss(h, w):
    return token_logprobs(
      h, w, targets, forbidden=np.zeros(VOCAB, bool), chunk=5
    )[0].sum()

  assert masked_logits(
      hidden, jnp.asarray(head), jnp.zeros(VOCAB, bool)
  ).dtype == jnp.float32  # fmt: skip
  to_hidden, to_head = jax.grad(loss, (0, 1))(hidden, jnp.asarray(head))
  assert to_hidden.dtype == jnp.bfloat16 and to_head.dtype == jnp.float32


def test_forbidden_target_under_zero_weight_leaves_no_nan(case):
  hidden, head, targets = case
  targets = targets.copy()
  targets[0, 0] = FORBIDDEN[0]

  def loss(h, w):
    found, _ = token_logprobs(
      h, w, targets, forbidden=forbidden_mask(FORBIDDEN, VOCAB), chunk=3
    )
    return jnp.where(jnp.arange(LENGTH) == 0, 0.0, found).sum()

  for slope in jax.grad(loss, (0, 1))(hidden, head):
    assert np.isfinite(slope).all()


def test_whole_logits_never_exist(monkeypatch):
  """The compiled gradient's scratch space is a fraction of [B, R, V]."""
  rows, length, vocab = 4, 64, 4096
  hidden = jnp.zeros((rows, length, WIDTH))
  head = jnp.zeros((vocab, WIDTH))
  targets = jnp.zeros((rows, length), jnp.int32)

  def scratch(chunk):
    def loss(h, w):
      return token_logprobs(
        h, w, targets, forbidden=np.zeros(vocab, bool), chunk=chunk
      )[0].sum()

    run = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head).compile()
    return run.memory_analysis().temp_size_in_bytes

  whole = rows * length * vocab * 4
  assert scratch(2) < whole / 4 < whole <= scratch(length)
  monkeypatch.setattr("varl_jax.rl.logprobs.MAX_LOGITS", rows * vocab * 2)
  assert scratch(0) < whole / 4
