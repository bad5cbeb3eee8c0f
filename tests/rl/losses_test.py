import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.rl.losses import grpo_loss, importance_weights, ratio_sums


def reference_loss(new, old, advantages, mask, clip):
  """float64, token by token, written from the formula alone."""
  total, count = 0.0, 0
  for b in range(new.shape[0]):
    for t in range(new.shape[1]):
      if not mask[b, t]:
        continue
      ratio = np.exp(np.float64(new[b, t]) - np.float64(old[b, t]))
      kept = min(max(ratio, 1 - clip), 1 + clip)
      gain = np.float64(advantages[b])
      total -= min(ratio * gain, kept * gain)
      count += 1
  return total, count


def random_case(seed, rows=5, length=7):
  rng = np.random.default_rng(seed)
  old = -rng.exponential(2, (rows, length))
  new = old + rng.normal(0, 0.3, (rows, length))
  mask = rng.random((rows, length)) < 0.7
  return new, old, rng.normal(size=rows), mask


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clip", [0.2, 0.05])
def test_matches_the_float64_reference(seed, clip):
  new, old, advantages, mask = random_case(seed)
  args = [jnp.asarray(x) for x in (new, old, advantages, mask)]
  loss, count = grpo_loss(*args, clip_ratio=clip)
  expected, tokens = reference_loss(new, old, advantages, mask, clip)
  assert float(loss) == pytest.approx(expected, rel=1e-5, abs=1e-5)
  assert float(count) == tokens


def test_gradient_by_finite_differences():
  new, old, advantages, mask = random_case(9)
  found = jax.grad(
    lambda x: grpo_loss(
      x, jnp.asarray(old), jnp.asarray(advantages), jnp.asarray(mask)
    )[0]
  )(jnp.asarray(new))
  step = 1e-6
  expected = np.zeros_like(new)
  for index in np.ndindex(new.shape):
    for sign in (1, -1):
      moved = new.copy()
      moved[index] += sign * step
      value = reference_loss(moved, old, advantages, mask, 0.2)[0]
      expected[index] += sign * value / (2 * step)
  np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(1.5, 1, -1.2, 0), (1.5, -1, 1.5, 1.5), (0.5, 1, -0.5, -0.5),
     (0.5, -1, 0.8, 0)],
)  # fmt: skip
def test_clip_is_pessimistic(ratio, advantage, loss, slope):
  def value(new):
    return grpo_loss(
      new, jnp.zeros((1, 1)), jnp.array([advantage]), jnp.ones((1, 1))
    )[0]

  new = jnp.log(jnp.full((1, 1), ratio))
  assert float(value(new)) == pytest.approx(loss, abs=1e-6)
  assert float(jax.grad(value)(new)[0, 0]) == pytest.approx(slope, abs=1e-6)


def test_tool_span_is_masked_out():
  new = jnp.log(jnp.array([[0.5, 0.5, 0.9, 0.9, 0.25]]))
  old = jnp.log(jnp.array([[0.5, 0.4, 1, 1, 0.25]]))
  mask = jnp.array([[1, 1, 0, 0, 1]])
  loss, count = grpo_loss(new, old, jnp.array([0.6]), mask)
  assert count == 3
  assert float(loss / count) == pytest.approx(-0.64, abs=1e-6)


def test_sums_over_micro_batches_divide_once():
  # Token losses of 1 (two tokens) and 3 (six tokens): ratio 1, A = -loss.
  pieces = [(2, -1.0), (6, -3.0)]
  parts = [
      grpo_loss(
          jnp.zeros((1, 6)), jnp.zeros((1, 6)), jnp.array([gain]),
          jnp.arange(6)[None] < size,
      )
      for size, gain in pieces
  ]  # fmt: skip
  loss = sum(p[0] for p in parts) / sum(p[1] for p in parts)
  assert float(loss) == pytest.approx(2.5)
  assert np.mean([p[0] / p[1] for p in parts]) == pytest.approx(2.0)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, -1e30, 1e30])
def test_anything_may_lie_under_the_mask(junk):
  new, old, advantages, mask = random_case(3)
  clean = grpo_loss(*map(jnp.asarray, (new, old, advantages, mask)))
  for dirty_new, dirty_old in ((junk, junk), (junk, 0.0), (0.0, junk)):
    a = jnp.asarray(np.where(mask, new, dirty_new))
    b = jnp.asarray(np.where(mask, old, dirty_old))

    def value(x, y=b):
      return grpo_loss(x, y, jnp.asarray(advantages), jnp.asarray(mask))[0]

    assert float(value(a)) == pytest.approx(float(clean[0]), rel=1e-6)
    slope = np.asarray(jax.grad(value)(a))
    assert np.isfinite(slope).all() and (slope[~mask] == 0).all()


def test_row_without_tokens_may_have_a_nan_advantage():
  loss, count = grpo_loss(
      jnp.zeros((2, 2)), jnp.zeros((2, 2)), jnp.array([1.0, np.nan]),
      jnp.array([[1, 1], [0, 0]]),
  )  # fmt: skip
  assert (float(loss), float(count)) == (-2.0, 2.0)


def test_fully_masked_contributes_nothing():
  args = (jnp.full((2, 3), jnp.nan),) * 2
  loss, count = grpo_loss(*args, jnp.ones(2), jnp.zeros((2, 3)))
  assert (float(loss), float(count)) == (0.0, 0.0)


def test_masked_tokens_are_in_neither_number():
  new, old, advantages, mask = random_case(5)
  kept = grpo_loss(*map(jnp.asarray, (new, old, advantages, mask)))
  wide = [np.pad(x, ((0, 0), (0, 4))) for x in (new, old, mask)]
  more = grpo_loss(
      jnp.asarray(wide[0]), jnp.asarray(wide[1]), jnp.asarray(advantages),
      jnp.asarray(wide[2]),
  )  # fmt: skip
  assert float(kept[0]) == pytest.approx(float(more[0]), rel=1e-6)
  assert kept[1] == more[1]


def test_no_gradient_into_old_logprobs():
  new, old, advantages, mask = (jnp.asarray(x) for x in random_case(1))
  slope = jax.grad(lambda x: grpo_loss(new, x, advantages, mask)[0])(old)
  assert not np.asarray(slope).any()


def test_far_off_ratio_stays_finite():
  loss, _ = grpo_loss(
    jnp.zeros((1, 1)), jnp.full((1, 1), -1e4), jnp.zeros(1), jnp.ones((1, 1))
  )
  assert float(loss) == 0.0


def test_ratio_sums():
  ratio = jnp.array([[1.5, 0.5, 1.1], [1.5, 0.5, 9.0]])
  found = ratio_sums(
      jnp.log(ratio), jnp.zeros((2, 3)), jnp.array([1.0, -1.0]),
      jnp.array([[1, 1, 1], [1, 1, 0]]),
  )  # fmt: skip
  assert float(found["clipped_sum"]) == 2
  assert float(found["ratio_sum"]) == pytest.approx(5.1)
  assert float(found["ratio_max"]) == pytest.approx(1.5)


def test_importance_weights_are_a_token_at_a_time_and_capped():
  trainer = jnp.log(jnp.array([[0.5, 0.8, 0.1]]))
  sampler = jnp.log(jnp.array([[0.4, 0.1, 0.2]])).at[0, 2].set(jnp.nan)
  mask = jnp.array([[1, 1, 0]])
  found = importance_weights(trainer, sampler, mask, cap=2.0)
  np.testing.assert_allclose(found, [[1.25, 2.0, 0.0]], rtol=1e-6)
  loss, count = grpo_loss(
    trainer, trainer, jnp.array([1.0]), mask, weights=found
  )
  assert float(loss) == pytest.approx(-3.25, rel=1e-6) and count == 2
