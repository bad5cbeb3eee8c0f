import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.rl.logprobs import forbidden_mask, token_logprobs
from varl_jax.sampling.sampler import Sampler

STOP, FORBIDDEN, VOCAB = 1, (0, 2, 17), 19
CONFIG = LlamaConfig(
  vocab_size=VOCAB,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=4,
  tie_embeddings=True,
  max_position=64,
)
MODEL = Llama(CONFIG)


def make_params(scale=0.5):
  shapes = jax.eval_shape(
    MODEL.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(x.ndim == 1, scale, x.shape), jnp.float32),
    shapes,
  )


PARAMS = make_params()


@functools.cache
def make_sampler(**changes):
  fields = {
    "stop_ids": (STOP,),
    "forbidden_ids": FORBIDDEN,
    "max_prompt": 32,
    "max_new": 12,
    "seed": 3,
  }
  return Sampler(model=MODEL, **(fields | changes))


def make_prompts(count, low=2, high=14):
  rng = np.random.default_rng(count)
  return [
    rng.integers(3, 17, rng.integers(low, high)).tolist() for _ in range(count)
  ]


def draw(prompts, n, *, step=5, tasks=None, sampler=None, params=PARAMS):
  sampler = sampler or make_sampler()
  tasks = range(100, 100 + len(prompts)) if tasks is None else tasks
  return sampler.generate(prompts, n, params=params, step=step, tasks=tasks)


def tokens_of(groups):
  return [[sample.tokens for sample in group] for group in groups]


def test_tokens_do_not_depend_on_the_batch():
  prompts, tasks = make_prompts(4), [100, 101, 102, 103]
  whole = draw(prompts, 4)
  turned = draw(prompts[::-1], 4, tasks=tasks[::-1])[::-1]
  assert tokens_of(turned) == tokens_of(whole)
  longer = draw([[5] * 30, *prompts[1:3]], 4, tasks=[9, 101, 102])
  assert tokens_of(longer)[1:] == tokens_of(whole)[1:3]


def test_tokens_do_not_depend_on_n_passes_or_a_restart():
  prompts = make_prompts(4)
  whole = draw(prompts, 4)
  restarted = make_sampler(max_rows=4)
  fewer = draw(prompts, 2, sampler=restarted)
  assert tokens_of(fewer) == [group[:2] for group in tokens_of(whole)]


def test_samples_steps_tasks_and_seeds_differ():
  prompt = make_prompts(1)
  whole = tokens_of(draw(prompt * 4, 4, tasks=[1, 2, 3, 4]))
  assert len({tokens for group in whole for tokens in group}) == 16
  first = whole[0]
  assert tokens_of(draw(prompt * 4, 4, tasks=[1] * 4)) == [first] * 4
  assert tokens_of(draw(prompt * 4, 4, step=6, tasks=[1] * 4))[0] != first
  other = make_sampler(seed=4)
  assert tokens_of(draw(prompt, 4, tasks=[1], sampler=other))[0] != first


def test_an_answer_ends_at_the_first_stop_token_or_the_limit():
  samples = [s for group in draw(make_prompts(4), 4) for s in group]
  for sample in samples:
    assert len(sample.tokens) == len(sample.logprobs)
    assert sample.tokens.count(STOP) == (sample.finish == "stop")
    if sample.finish == "stop":
      assert sample.tokens[-1] == STOP
    else:
      assert len(sample.tokens) == 12
    assert not set(sample.tokens) & set(FORBIDDEN)
    assert max(sample.logprobs) <= 0
  assert {sample.finish for sample in samples} == {"stop", "length"}


def test_any_of_several_stop_ids_ends_an_answer():
  sampler = make_sampler(stop_ids=tuple(range(3, 17)))
  samples = [
    s for group in draw(make_prompts(4), 4, sampler=sampler) for s in group
  ]
  ends = {s.tokens[-1] for s in samples if s.finish == "stop"}
  assert len(ends) > 1
  assert all(not set(s.tokens[:-1]) & set(range(3, 17)) for s in samples)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_those_the_trainer_computes(temperature):
  prompts = make_prompts(4)
  sampler = make_sampler(temperature=temperature)
  groups = draw(prompts, 4, sampler=sampler)
  rows = [
    (prompt, sample)
    for prompt, group in zip(prompts, groups, strict=True)
    for sample in group
  ]
  tokens = np.zeros((16, 32), np.int32)
  lengths = np.zeros(16, np.int32)
  for row, (prompt, sample) in enumerate(rows):
    lengths[row] = len(prompt) + len(sample.tokens)
    tokens[row, : lengths[row]] = (*prompt, *sample.tokens)

  @jax.jit
  def trainer(tokens, lengths):
    found, _ = token_logprobs(
      MODEL.hidden(PARAMS, tokens, lengths)[:, :-1],
      MODEL.lm_head_weight(PARAMS),
      tokens[:, 1:],
      forbidden=jnp.asarray(forbidden_mask(FORBIDDEN, VOCAB)),
      temperature=temperature,
    )
    return found

  found = np.asarray(trainer(tokens, lengths))
  for row, (prompt, sample) in enumerate(rows):
    ours = found[row, len(prompt) - 1 : lengths[row] - 1]
    np.testing.assert_allclose(sample.logprobs, ours, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_first_tokens_have_the_models_frequencies(temperature):
  prompt, rows = [4, 9, 3], 4096
  # The same prompt as 1024 tasks of the shape other tests have compiled.
  sampler = make_sampler(temperature=temperature)
  samples = []
  for step in range(rows // 16):
    for group in draw([prompt] * 4, 4, step=step, sampler=sampler):
      samples.extend(group)
  counts = np.bincount([s.tokens[0] for s in samples], minlength=VOCAB)
  hidden = jax.jit(MODEL.hidden)(PARAMS, jnp.array([prompt]))[0, -1]
  logits = MODEL.lm_head_weight(PARAMS) @ hidden / temperature
  logits = np.where(np.isin(np.arange(VOCAB), FORBIDDEN), -np.inf, logits)
  expected = np.asarray(jax.nn.softmax(logits)) * rows
  assert counts[list(FORBIDDEN)].sum() == 0
  common = expected > 5
  assert common.sum() >= 4
  error = (counts - expected)[common]
  # Chi-square with at most 15 degrees of freedom: 37.7 has chance 0.001.
  assert (error**2 / expected[common]).sum() < 37.7


def test_tokens_of_one_row_are_independent_over_positions():
  groups = draw(make_prompts(4), 4, params=make_params(0.0))
  # Without weights the policy is uniform, so repeats are rare.
  rows = [s.tokens for group in groups for s in group]
  pairs = [a == b for row in rows for a, b in itertools.pairwise(row)]
  assert 0 < np.mean(pairs) < 0.15


def test_nothing_compiles_again_within_a_bucket():
  sampler, counts = make_sampler(max_new=2), set()
  for step, (low, high) in enumerate([(2, 4), (8, 16), (15, 17)]):
    draw(make_prompts(4, low, high), 2, step=step, sampler=sampler)
    counts.add(sampler.compile_count())
  draw(make_prompts(3, 2, 9), 2, sampler=sampler)
  assert counts == {sampler.compile_count()}
  draw(make_prompts(4, 18, 30), 2, sampler=sampler)
  assert counts != {sampler.compile_count()}


def test_the_longest_prompt_fits_and_a_longer_one_is_refused():
  sampler = make_sampler()
  prompts = [[5] * 32, *make_prompts(3)]
  assert len(draw(prompts, 4, sampler=sampler)[0]) == 4
  with pytest.raises(ValueError, match="Prompt 1 has 33 tokens"):
    draw([[5], [5] * 33], 2, sampler=sampler)
  with pytest.raises(ValueError, match="Prompt 0 has 0 tokens"):
    draw([[]], 2, sampler=sampler)


def test_refused_arguments():
  with pytest.raises(ValueError, match="n is at least 1"):
    draw(make_prompts(1), 0)
  with pytest.raises(ValueError, match="2 prompts with 1 task"):
    draw(make_prompts(2), 2, tasks=[1])
  for changes, words in (
    ({"temperature": 0.0}, "above 0"),
    ({"max_new": 0}, "at least 1"),
    ({"max_new": 40}, "64 positions"),
    ({"forbidden_ids": (STOP,)}, "both stop and forbidden"),
    ({"stop_ids": (19,)}, "outside the vocabulary"),
  ):
    with pytest.raises(ValueError, match=words):
      make_sampler(**changes)


def test_no_prompts_give_no_answers():
  assert draw([], 2) == []
