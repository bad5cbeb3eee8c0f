import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.rl.batch import Batch
from varl_jax.rl.discriminator import (
  Comparisons,
  Discriminator,
  bradley_terry,
  pair_metrics,
  suspicion,
  tier_comparisons,
)

TINY = LlamaConfig(
  vocab_size=13,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
)


def test_every_pair_of_different_tiers_is_compared_and_groups_count_once():
  found = tier_comparisons(
    [0, 1, 1, None, 0, 0, 2, 1], [7, 7, 7, 7, 8, 9, 9, 9]
  )
  pairs = set(zip(found.better.tolist(), found.worse.tolist(), strict=True))
  assert pairs == {(0, 1), (0, 2), (5, 6), (5, 7), (7, 6)}
  np.testing.assert_allclose(found.weight, [1 / 2] * 2 + [1 / 3] * 3)
  with pytest.raises(ValueError, match="2 tiers for 1 rows"):
    tier_comparisons([0, 1], [0])


def test_one_tier_gives_nothing_to_learn():
  found = tier_comparisons([0, 0, 0], [1, 1, 1])
  assert len(found.better) == len(found.weight) == 0


def test_the_loss_is_the_chance_of_the_order_by_hand():
  quality = jnp.array([1.0, -0.5, 0.0])
  loss, count = bradley_terry(
    quality, jnp.array([0, 2]), jnp.array([1, 0]), jnp.array([1.0, 0.5])
  )
  by_hand = np.log1p(np.exp(-1.5)) + 0.5 * np.log1p(np.exp(1.0))
  assert float(loss) == pytest.approx(by_hand, rel=1e-6)
  assert float(count) == 1.5


def test_suspicion_compares_the_best_paid_with_those_paid_less():
  quality, scores = [0.1, 0.9, 0.4, 5.0], [1.0, 0.8, 0.9, None]
  assert suspicion(quality, scores, epsilon=0.15) == pytest.approx(0.8)
  assert suspicion(quality, scores, epsilon=0.05) == pytest.approx(0.8)
  # A tie at the top: the better of the best-paid is what counts.
  tied = suspicion([0.1, 0.9, 0.4], [1.0, 0.5, 1.0], epsilon=0.15)
  assert tied == pytest.approx(0.5)


@pytest.mark.parametrize("scores", [[1.0, 0.9], [None, None], [0.5, None]])
def test_no_case_is_possible_without_a_gap(scores):
  assert suspicion([0.0, 9.0], scores, epsilon=0.15) is None


def test_a_gap_of_exactly_epsilon_counts():
  assert suspicion([0.0, 9.0], [0.3, 0.15], epsilon=0.15) == pytest.approx(9.0)


def test_more_pairs_are_added_with_their_own_weight():
  found = tier_comparisons([0, 1], [0, 0])
  assert found.plus([], weight=1.0) is found
  assert found.plus([(0, 1)], weight=0.0) is found
  more = found.plus([(1, 0), (3, 2)], weight=0.5)
  assert more.better.tolist() == [0, 1, 3]
  assert more.worse.tolist() == [1, 0, 2]
  assert more.weight.tolist() == [1.0, 0.5, 0.5]


def test_predictions_are_measured_by_hand():
  quality = np.array([2.0, 0.0, 0.0, 1.0], np.float32)
  # Pairs 0 > 1 (right), 0 > 2 (right), 1 > 3 (wrong), 1 = 2 (even).
  made = Comparisons(
    better=np.array([0, 0, 1, 1], np.int32),
    worse=np.array([1, 2, 3, 2], np.int32),
    weight=np.array([0.5, 0.5, 1.0, 1.0], np.float32),
  )
  found = pair_metrics(quality, made)
  assert found["discriminator/accuracy"] == pytest.approx(1.5 / 3)
  sure, wrong = 1 / (1 + np.exp(2.0)), 1 / (1 + np.exp(-1.0))
  by_hand = (sure**2 + wrong**2 + 0.25) / 3
  assert found["discriminator/brier"] == pytest.approx(by_hand, rel=1e-5)
  assert pair_metrics(quality, tier_comparisons([0, 0], [0, 0])) == {}


def _rows(tokens, lengths, prompts=1):
  rows, length = tokens.shape
  return Batch(
    tokens=tokens,
    prompt_lengths=np.full(rows, prompts, np.int32),
    lengths=np.asarray(lengths, np.int32),
    targets=np.zeros((rows, length - 1), np.int32),
    mask=np.ones((rows, length - 1), bool),
    logprobs=np.zeros((rows, length - 1), np.float32),
    advantages=np.zeros(rows, np.float32),
    group_ids=np.zeros(rows, np.int32),
  )


@pytest.fixture(scope="module")
def trunk():
  model = Llama(TINY)
  return model, model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))


def test_features_are_the_answers_mean_whatever_the_padding(trunk):
  model, params = trunk
  made = Discriminator(hidden_fn=model.hidden)
  tokens = np.arange(24).reshape(3, 8).astype(np.int32) % 13
  lengths = [8, 5, 2]
  found = np.asarray(made.features(params, _rows(tokens, lengths, prompts=2)))
  for row, length in enumerate(lengths[:2]):
    alone = np.asarray(model.hidden(params, tokens[row : row + 1, :length]))
    mean = alone[0, 2:].mean(axis=0)
    mean /= np.sqrt((mean**2).mean())
    np.testing.assert_allclose(found[row], mean, atol=1e-5)
  # An answer without a token.
  np.testing.assert_array_equal(found[2], 0)
  tokens[1, 5:] = 3
  again = made.features(params, _rows(tokens, lengths, prompts=2))
  np.testing.assert_allclose(found, np.asarray(again), atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_pieces_of_a_batch_give_what_the_whole_gives(trunk, rows):
  model, params = trunk
  made = Discriminator(hidden_fn=model.hidden)
  tokens = np.arange(40).reshape(5, 8).astype(np.int32) % 13
  batch = _rows(tokens, [8, 5, 2, 8, 3])
  whole = made.features(params, batch)
  assert whole.shape == (5, 16)
  pieces = made.features(params, batch, rows=rows)
  np.testing.assert_allclose(np.asarray(pieces), np.asarray(whole), atol=1e-5)


def test_the_trunk_gets_no_gradient(trunk):
  model, params = trunk
  made = Discriminator(hidden_fn=model.hidden)
  batch = _rows(np.ones((2, 4), np.int32), [4, 4])

  def total(tree):
    return jnp.sum(made.features(tree, batch))

  slopes = jax.tree.leaves(jax.grad(total)(params))
  assert max(float(jnp.abs(slope).max()) for slope in slopes) == 0.0


def test_it_learns_an_order_that_its_features_carry():
  made = Discriminator(hidden_fn=lambda *_: None)
  rng = np.random.default_rng(0)
  direction = rng.normal(size=16)

  def draw(groups):
    features = rng.normal(size=(groups * 4, 16)).astype(np.float32)
    merit = (features @ direction).reshape(groups, 4)
    tiers = np.argsort(np.argsort(-merit, axis=1), axis=1).reshape(-1)
    ids = np.repeat(np.arange(groups), 4)
    return features, tier_comparisons(tiers.tolist(), ids.tolist())

  state = made.init(16)
  first = None
  for _ in range(60):
    features, comparisons = draw(8)
    state, found = made.update(state, features, comparisons)
    first = first or found
  assert first is not None and first["discriminator/loss"] == pytest.approx(
    np.log(2), rel=1e-5
  )
  features, comparisons = draw(50)
  quality = made.quality(state, features)
  right = quality[comparisons.better] > quality[comparisons.worse]
  assert right.mean() > 0.9
  assert int(state.updates) == 60


def test_a_step_without_comparisons_changes_nothing():
  made = Discriminator(hidden_fn=lambda *_: None)
  state = made.init(4)
  same, found = made.update(
    state, np.zeros((2, 4), np.float32), tier_comparisons([0, 0], [0, 0])
  )
  assert same is state and found == {"discriminator/pairs": 0.0}


def test_width_does_not_change_how_far_an_update_goes():
  moved = []
  for width in (8, 4096):
    made = Discriminator(hidden_fn=lambda *_: None, learning_rate=0.5)
    features = np.ones((2, width), np.float32)
    features[1] = -1
    state, _ = made.update(
      made.init(width), features, tier_comparisons([0, 1], [0, 0])
    )
    moved.append(made.quality(state, features))
  np.testing.assert_allclose(moved[0], [0.5, -0.5], rtol=1e-4)
  np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_features_that_are_not_finite_teach_nothing(poison):
  made = Discriminator(hidden_fn=lambda *_: None)
  features = np.ones((2, 4), np.float32)
  features[1, 2] = poison
  state, found = made.update(
    made.init(4), features, tier_comparisons([0, 1], [0, 0])
  )
  assert found == {"discriminator/pairs": 1.0}
  assert int(state.updates) == 0
  np.testing.assert_array_equal(np.asarray(state.head["kernel"]), 0)
