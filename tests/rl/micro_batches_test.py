"""Micro-batches of like length: nothing lost, few shapes, the same update."""

import dataclasses

import jax
import jax.monitoring
import numpy as np
import pytest

from tests.rl.train_step_test import (
  ALLOWED,
  CONFIG,
  bigram,
  bigram_params,
  make_batch,
  rollouts,
  toy,
)
from varl_jax.config import ConfigError
from varl_jax.rl.batch import pack
from varl_jax.rl.micro_batches import Buckets
from varl_jax.types import Rollout

LIMITS = {"longest": 40, "widest": 24}
BUCKETS = Buckets(rows=2, shortest=8, **LIMITS)
BUCKETED = dataclasses.replace(CONFIG, micro_batch=2, length_bucket=8)


def of_lengths(sizes, *, prompt=1, mask=None):
  """One row a size, two rows a group."""
  made = [
    Rollout(
      task_id=str(row // 2),
      sample=row % 2,
      answer="",
      tokens=tuple(ALLOWED[(row + t) % len(ALLOWED)] for t in range(size)),
      logprobs=tuple(-1.0 - row / 16 for _ in range(size)),
      mask=(1,) * size if mask is None else (mask[row],) * size,
      finish="stop",
    )
    for row, size in enumerate(sizes)
  ]
  return pack(
    [[1] * prompt] * len(sizes),
    made,
    advantages=np.arange(len(sizes), dtype=np.float32),
    group_ids=np.arange(len(sizes)) // 2,
  )


def test_rows_of_like_length_share_a_shape():
  parts = BUCKETS.cut(of_lengths([3, 24, 7, 20, 15, 5]))
  shapes = [(p.tokens.shape, p.targets.shape) for p in parts]
  assert shapes == [((2, 32), (2, 24)), ((2, 16), (2, 16)), ((2, 8), (2, 8))]
  # Longest first; the advantage is the row's number.
  order = [a for p in parts for a in p.advantages.tolist()]
  assert order == [1, 3, 4, 2, 5, 0]


def test_every_token_is_there_once_and_filling_has_none():
  batch = of_lengths([3, 24, 7, 20, 15], prompt=4, mask=[1, 1, 0, 1, 1])
  parts = BUCKETS.cut(batch)
  real = [p.advantages[p.group_ids >= 0].tolist() for p in parts]
  assert real == [[1, 3], [4, 0]]  # Row 2 has nothing to train.
  assert sum(p.mask.sum() for p in parts) == batch.mask.sum()
  for part in parts:
    for row in np.flatnonzero(part.group_ids >= 0):
      origin = int(part.advantages[row])
      size = part.lengths[row]
      assert size == batch.lengths[origin]
      np.testing.assert_array_equal(
        part.tokens[row, :size], batch.tokens[origin, :size]
      )
      mask = part.mask[row]
      np.testing.assert_array_equal(
        part.logprobs[row][mask], batch.logprobs[origin][batch.mask[origin]]
      )
    assert not part.mask[part.group_ids < 0].any()
  odd = BUCKETS.cut(of_lengths([3]))
  assert odd[0].group_ids.tolist() == [0, -1]


def test_a_row_above_the_limit_is_refused():
  with pytest.raises(ValueError, match="above the limit of 24"):
    BUCKETS.cut(of_lengths([25]))


@pytest.mark.parametrize("seed", [3, 4])
def test_the_update_is_that_of_the_whole_minibatch(seed):
  batch = make_batch(longest=20, seed=seed)
  whole, parts = bigram(), bigram(BUCKETED, **LIMITS)
  a, first = whole.update(whole.init(bigram_params()), batch)
  b, second = parts.update(parts.init(bigram_params()), batch)
  np.testing.assert_allclose(a.params["table"], b.params["table"], atol=1e-6)
  for name, value in first.items():
    assert second[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_the_first_minibatch_has_its_own_logprobs_as_old_ones():
  """No pass before it, and the ratio is one; later ones keep the frozen."""
  learner, params, traces = toy(dataclasses.replace(CONFIG, minibatch_tasks=4))
  batch = make_batch(seed=1)
  _, metrics = learner.update(learner.init(params), batch)
  assert len(traces) == 1
  assert metrics["train/ratio_mean"] == metrics["train/ratio_max"] == 1
  learner, params, _ = toy(CONFIG)
  _, metrics = learner.update(learner.init(params), batch)
  assert metrics["train/ratio_max"] > 1


def test_buckets_are_refused_without_micro_batches():
  with pytest.raises(ConfigError, match=r"needs train\.micro_batch"):
    bigram(dataclasses.replace(CONFIG, length_bucket=8), **LIMITS)
  with pytest.raises(ValueError, match="longest and widest"):
    bigram(BUCKETED)


def varied(seed):
  """A step whose lengths, groups and scorable rows change from seed to seed."""
  rng = np.random.default_rng(seed)
  groups = int(rng.integers(1, 5))
  longest = int(rng.integers(2, 9))
  prompts, made, gains, ids = rollouts(groups, seed=seed, longest=longest)
  valid = rng.random(len(made)) < 0.9
  valid[0] = True
  return pack(
    prompts, made, advantages=gains, group_ids=ids, valid=valid,
    max_prompt=8, max_response=8,
  )  # fmt: skip


def test_no_compilation_after_the_first_steps_of_varied_lengths():
  learner = bigram(BUCKETED, longest=16, widest=8)
  compiled = []

  def count(event, duration_secs, **kwargs):
    del kwargs
    if event == "/jax/core/compile/backend_compile_duration":
      compiled.append(duration_secs)

  jax.monitoring.register_event_duration_secs_listener(count)
  try:
    state = learner.init(bigram_params())
    for seed in range(12):
      state, _ = learner.update(state, varied(seed))
    warm = len(compiled)
    for seed in range(12, 40):
      state, _ = learner.update(state, varied(seed))
  finally:
    jax.monitoring.unregister_event_duration_listener(count)
  assert 0 < warm < 15
  assert len(compiled) == warm
