"""The learner against a float64 step written from the formulas alone."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.config import TrainConfig
from varl_jax.rl.batch import pack
from varl_jax.rl.train_step import Learner
from varl_jax.types import Rollout

VOCAB, FORBIDDEN = 11, (0, 5)
ALLOWED = [i for i in range(VOCAB) if i not in FORBIDDEN]
CONFIG = TrainConfig(
  tasks_per_step=4,
  minibatch_tasks=2,
  samples=2,
  learning_rate=0.05,
  temperature=0.7,
  weight_decay=0.01,
  warmup_updates=2,
  max_grad_norm=0.5,
)


def bigram_hidden(params, tokens, lengths):
  """One-hot of the current token: the head's columns are next-token logits."""
  del params, lengths
  return jax.nn.one_hot(tokens, VOCAB)


def bigram(config=CONFIG, **options):
  return Learner(
    hidden_fn=bigram_hidden,
    head_fn=lambda params: params["table"],
    vocab_size=VOCAB,
    config=config,
    forbidden_ids=FORBIDDEN,
    **options,
  )


def bigram_params(seed=0):
  table = np.random.default_rng(seed).normal(size=(VOCAB, VOCAB))
  return {"table": table.astype(np.float32)}


def rollouts(groups=4, samples=2, *, seed=0, longest=7, tool=True):
  rng = np.random.default_rng(seed)
  made, prompts = [], []
  for row in range(groups * samples):
    size = int(rng.integers(2, longest + 1))
    mask = [1] * size
    if tool and size > 3:
      mask[2] = 0
    prompts.append(rng.choice(ALLOWED, rng.integers(1, 5)).tolist())
    made.append(
      Rollout(
        task_id=str(row // samples),
        sample=row % samples,
        answer="",
        tokens=tuple(rng.choice(ALLOWED, size).tolist()),
        logprobs=(-1.0,) * size,
        mask=tuple(mask),
        finish="stop",
      )
    )
  ids = np.arange(groups * samples) // samples
  gains = rng.normal(size=groups * samples)
  return prompts, made, gains, ids


def make_batch(*args, valid=None, **options):
  prompts, made, gains, ids = rollouts(*args, **options)
  return pack(prompts, made, advantages=gains, group_ids=ids, valid=valid)


def exact_logprobs(table, prev, temperature):
  logits = table[:, prev] / temperature
  logits[list(FORBIDDEN)] = -np.inf
  chance = np.exp(logits - logits.max())
  chance /= chance.sum()
  return chance


def exact_step(table, data, config, minibatch):
  """All mini-batches of one step in float64; returns tables after each."""
  prompts, made, gains, ids = data
  table = table.astype(np.float64)
  rows = [
    (ids[i], ([p[-1], *r.tokens])[t], token, float(np.float32(gains[i])))
    for i, (p, r) in enumerate(zip(prompts, made, strict=True))
    for t, token in enumerate(r.tokens)
    if r.mask[t]
  ]
  old = [exact_logprobs(table, prev, config.temperature)[token]
         for _, prev, token, _ in rows]  # fmt: skip
  first, second = np.zeros_like(table), np.zeros_like(table)
  losses, norms = [], []
  for update in range(len(set(ids)) // minibatch):
    low, high = update * minibatch, (update + 1) * minibatch
    chosen = [k for k, row in enumerate(rows) if low <= row[0] < high]
    slope, loss = np.zeros_like(table), 0.0
    for k in chosen:
      _, prev, token, gain = rows[k]
      chance = exact_logprobs(table, prev, config.temperature)
      ratio = chance[token] / old[k]
      kept = min(max(ratio, 1 - config.clip_ratio), 1 + config.clip_ratio)
      loss -= min(ratio * gain, kept * gain)
      if ratio * gain <= kept * gain:
        push = -chance
        push[token] += 1
        slope[:, prev] -= gain * ratio * push / config.temperature
    slope /= len(chosen)
    losses.append(loss / len(chosen))
    norms.append(np.sqrt((slope**2).sum()))
    slope *= min(1.0, config.max_grad_norm / norms[-1])
    first = 0.9 * first + 0.1 * slope
    second = 0.999 * second + 0.001 * slope**2
    lr = config.learning_rate * min(1, (update + 1) / config.warmup_updates)
    change = first / (1 - 0.9 ** (update + 1))
    change /= np.sqrt(second / (1 - 0.999 ** (update + 1))) + 1e-8
    table = table - lr * (change + config.weight_decay * table)
  return table, losses, norms


def test_a_step_of_two_minibatches_matches_float64():
  data = rollouts()
  params = bigram_params()
  learner = bigram()
  batch = pack(data[0], data[1], advantages=data[2], group_ids=data[3])
  state, metrics = learner.update(learner.init(params), batch)
  table, losses, norms = exact_step(params["table"], data, CONFIG, 2)
  np.testing.assert_allclose(state.params["table"], table, atol=2e-5)
  assert metrics["train/loss"] == pytest.approx(np.mean(losses), abs=1e-5)
  assert metrics["train/grad_norm"] == pytest.approx(np.mean(norms), rel=1e-4)
  assert metrics["train/updates"] == 2 and int(state.updates) == 2
  assert metrics["train/tokens"] == batch.mask.sum()
  assert all(np.isfinite(value) for value in metrics.values())


def test_one_token_shift_by_hand():
  """p(next | current): ids 1 -> 2 at 0.5, 2 -> 3 at 0.25, 3 -> 2 at 0.125."""
  table = np.zeros((4, 4), np.float32)
  table[:, 1] = np.log([1e-9, 0.25, 0.5, 0.25])
  table[:, 2] = np.log([1e-9, 0.5, 0.25, 0.25])
  table[:, 3] = np.log([1e-9, 0.5, 0.125, 0.375])
  learner = Learner(
    hidden_fn=lambda p, tokens, lengths: jax.nn.one_hot(tokens, 4),
    head_fn=lambda p: p,
    vocab_size=4,
    config=TrainConfig(),
  )
  sampled = Rollout(
      task_id="t", sample=0, answer="", tokens=(2, 3, 2), logprobs=(0.0,) * 3,
      mask=(1, 1, 1), finish="stop",
  )  # fmt: skip
  batch = pack([[3, 3, 1]], [sampled], advantages=[1.0], group_ids=[0])
  found = learner.logprobs(jnp.asarray(table), batch)[0, :3]
  np.testing.assert_allclose(found, np.log([0.5, 0.25, 0.125]), rtol=1e-5)


@pytest.mark.parametrize("micro", [1, 3])
def test_micro_batches_equal_the_whole_with_unequal_lengths(micro):
  batch = make_batch(longest=20, seed=3)
  whole = bigram()
  parts = bigram(dataclasses.replace(CONFIG, micro_batch=micro))
  a, first = whole.update(whole.init(bigram_params()), batch)
  b, second = parts.update(parts.init(bigram_params()), batch)
  np.testing.assert_allclose(a.params["table"], b.params["table"], atol=1e-6)
  for name, value in first.items():
    assert second[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_masked_micro_batch_changes_nothing():
  config = dataclasses.replace(CONFIG, minibatch_tasks=4, micro_batch=1)
  learner = bigram(config)
  prompts, made, gains, ids = rollouts(seed=4)
  blank = [dataclasses.replace(r, mask=(0,) * len(r.mask)) for r in made[:2]]
  full = pack(prompts, blank + made[2:], advantages=gains, group_ids=ids)
  less = pack(prompts[2:], made[2:], advantages=gains[2:], group_ids=ids[2:])
  a, _ = learner.update(learner.init(bigram_params()), full)
  b, _ = learner.update(learner.init(bigram_params()), less)
  np.testing.assert_allclose(a.params["table"], b.params["table"], atol=1e-6)


def test_minibatch_without_a_token_is_skipped_and_counted():
  learner = bigram()
  valid = [False] * 4 + [True] * 4
  batch = make_batch(valid=valid)
  state, metrics = learner.update(learner.init(bigram_params()), batch)
  assert metrics["train/skipped"] == 1 and metrics["train/updates"] == 1
  assert int(state.updates) == 1

  params = bigram_params()
  none = make_batch(valid=[False] * 8)
  state, metrics = learner.update(learner.init(params), none)
  np.testing.assert_array_equal(state.params["table"], params["table"])
  assert metrics == {
    "train/updates": 0.0,
    "train/nonfinite": 0.0,
    "train/tokens": 0.0,
    "train/skipped": 2.0,
  }


def test_ratio_is_one_at_identical_weights():
  learner = bigram(dataclasses.replace(CONFIG, minibatch_tasks=4))
  _, metrics = learner.update(learner.init(bigram_params()), make_batch())
  assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-6)
  assert metrics["train/ratio_max"] == pytest.approx(1, abs=1e-5)
  assert metrics["train/clip_fraction"] == 0


def test_sampler_disagreement_is_measured_and_not_trained_on():
  learner = bigram()
  batch = make_batch()
  params = bigram_params()
  true = learner.logprobs(params, batch)
  assert (true[batch.mask] <= 0).all()
  offset = np.where(batch.mask, true - 0.1, np.nan).astype(np.float32)
  shifted = dataclasses.replace(batch, logprobs=offset)
  a, metrics = learner.update(learner.init(params), shifted)
  b, _ = learner.update(learner.init(params), batch)
  assert metrics["train/sampler_gap_mean"] == pytest.approx(0.1, abs=1e-5)
  assert metrics["train/sampler_gap_max"] == pytest.approx(0.1, abs=1e-5)
  np.testing.assert_array_equal(a.params["table"], b.params["table"])


def test_sampler_logprobs_as_old_ones():
  params = bigram_params()
  both = []
  for mode in ("recomputed", "sampler"):
    learner = bigram(old_logprobs=mode)
    batch = make_batch()
    true = learner.logprobs(params, batch)
    batch = dataclasses.replace(batch, logprobs=true)
    state, metrics = learner.update(learner.init(params), batch)
    assert metrics["train/sampler_gap_max"] < 1e-5
    both.append(state.params["table"])
  np.testing.assert_allclose(*both, atol=1e-6)


def test_importance_weights_scale_the_loss():
  config = dataclasses.replace(CONFIG, minibatch_tasks=4)
  params, batch = bigram_params(), make_batch()
  plain, capped = bigram(config), bigram(config, importance_cap=2.0)
  lower = plain.logprobs(params, batch) - np.log(1.5)
  batch = dataclasses.replace(batch, logprobs=lower.astype(np.float32))
  _, a = plain.update(plain.init(params), batch)
  _, b = capped.update(capped.init(params), batch)
  assert b["train/loss"] == pytest.approx(1.5 * a["train/loss"], rel=1e-4)
  with pytest.raises(ValueError, match="nothing to correct"):
    bigram(importance_cap=2.0, old_logprobs="sampler")


def test_padding_and_what_lies_in_it_do_not_matter():
  def poisoned(params, tokens, lengths):
    hidden = bigram_hidden(params, tokens, lengths)
    real = jnp.arange(tokens.shape[1])[None, :, None] < lengths[:, None, None]
    return jnp.where(real, hidden, jnp.nan)

  prompts, made, gains, ids = rollouts(seed=6)
  tables = []
  for hidden, pad, limit in ((bigram_hidden, 1, 20), (poisoned, 0, None)):
    learner = bigram()
    learner._hidden_fn = hidden
    batch = pack(
        prompts, made, advantages=gains, group_ids=ids, pad_id=pad,
        max_prompt=limit, max_response=limit,
    )  # fmt: skip
    state, _ = learner.update(learner.init(bigram_params()), batch)
    tables.append(np.asarray(state.params["table"]))
  assert np.isfinite(tables[1]).all()
  np.testing.assert_allclose(*tables, atol=1e-6)


def test_gradient_that_is_not_finite_leaves_the_state():
  learner, params = bigram(), bigram_params()
  batch = make_batch()
  gains = batch.advantages.copy()
  gains[0] = np.inf
  broken = dataclasses.replace(batch, advantages=gains)
  state, metrics = learner.update(learner.init(params), broken)
  assert metrics["train/nonfinite"] == 1 and metrics["train/updates"] == 1
  assert np.isfinite(state.params["table"]).all()
  assert all(np.isfinite(value) for value in metrics.values())


def test_update_consumes_the_state_but_not_the_given_parameters():
  learner = bigram()
  params = jax.tree.map(jnp.asarray, bigram_params())
  state = learner.init(params)
  learner.update(state, make_batch())
  assert state.params["table"].is_deleted()
  np.testing.assert_array_equal(params["table"], bigram_params()["table"])


class Toy(nn.Module):
  """Embedding, causal mean of the past, one dense layer; tied head."""

  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, tokens, lengths):
    embed = nn.Embed(VOCAB, 16, name="embed", dtype=self.dtype)
    x = embed(tokens)
    real = jnp.arange(tokens.shape[1])[None, :, None] < lengths[:, None, None]
    total = jnp.cumsum(jnp.where(real, x, 0), axis=1)
    past = total / jnp.arange(1, tokens.shape[1] + 1)[None, :, None]
    mixed = jnp.concatenate([x, past.astype(self.dtype)], -1)
    return x + nn.Dense(16, dtype=self.dtype)(jnp.tanh(mixed))


def toy(config, dtype=jnp.float32, **options):
  model = Toy(dtype=dtype)
  traces = []

  def hidden_fn(params, tokens, lengths):
    traces.append(tokens.shape)
    return model.apply(params, tokens, lengths)

  params = model.init(
    jax.random.key(0), jnp.ones((1, 4), jnp.int32), jnp.full(1, 4)
  )
  learner = Learner(
    hidden_fn=hidden_fn,
    head_fn=lambda p: p["params"]["embed"]["embedding"],
    vocab_size=VOCAB,
    config=config,
    forbidden_ids=FORBIDDEN,
    **options,
  )
  return learner, params, traces


def test_no_second_compilation_while_shapes_repeat():
  learner, params, traces = toy(CONFIG)
  state, _ = learner.update(learner.init(params), make_batch(seed=0))
  assert len(traces) == 2  # old logprobs, update
  for seed, groups in ((1, 4), (2, 4), (3, 3), (4, 1)):
    state, _ = learner.update(state, make_batch(groups, seed=seed))
  assert len(traces) == 2
  learner.update(state, make_batch(longest=60, seed=5))
  assert len(traces) == 4


def test_same_inputs_same_bits():
  found = []
  for _ in range(2):
    learner, params, _ = toy(CONFIG)
    state = learner.init(params)
    for seed in range(2):
      state, metrics = learner.update(state, make_batch(seed=seed))
    found.append((jax.device_get(state), metrics))
  jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rewarded_tokens_become_likelier(dtype):
  config = dataclasses.replace(
    CONFIG, learning_rate=0.01, max_grad_norm=1.0, warmup_updates=0
  )
  learner, params, _ = toy(config, dtype)
  batch = make_batch(seed=8)
  batch = dataclasses.replace(
    batch, advantages=np.where(np.arange(8) % 2, 1, -1).astype(np.float32)
  )
  before = learner.logprobs(params, batch)
  state = learner.init(params)
  for _ in range(5):
    state, _ = learner.update(state, batch)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state.params))
  moved = np.where(
    batch.mask, learner.logprobs(state.params, batch) - before, 0
  )
  assert (moved.sum(1) * batch.advantages).sum() > 1.0
