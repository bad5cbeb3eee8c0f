"""Properties of the hybrid model that need no torch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models.layers import num_weights
from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5 import Qwen35
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.registry import SHAPES, make_model
from varl_jax.rl.logprobs import forbidden_mask, token_logprobs
from varl_jax.sampling.sampler import Sampler

CONFIG = Qwen35Config(
  vocab_size=41,
  hidden_size=24,
  intermediate_size=32,
  num_layers=8,
  num_heads=4,
  num_kv_heads=2,
  head_dim=16,
  rotary_dim=4,
  delta_k_heads=2,
  delta_v_heads=4,
  delta_k_dim=16,
  delta_v_dim=12,
  max_position=256,
)
MODEL = Qwen35(CONFIG)


def shapes_of(config):
  model = make_model(config)
  return jax.eval_shape(
    model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )


@functools.cache
def make_params():
  """Parameters away from their start, with decays below 1 a token."""
  rng = np.random.default_rng(0)
  tree = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, 0.15, x.shape), jnp.float32),
    shapes_of(CONFIG),
  )
  delta = tree["params"]["layers"]["delta"]
  delta["a_log"] -= 3.0
  delta["out_norm"]["scale"] += 1.0
  return tree


@functools.partial(jax.jit, static_argnums=0)
def hidden_of(model, params, tokens, lengths=None, real=None):
  return model.hidden(params, tokens, lengths, real=real)


def make_tokens(seed, *shape):
  return np.random.default_rng(seed).integers(0, 41, shape)


@pytest.mark.parametrize(
  ("name", "billions"), [("qwen3_5_9b", 8.954), ("qwen3_6_27b", 26.896)]
)
def test_the_papers_shapes_have_their_numbers_of_weights(name, billions):
  config = SHAPES[name]()
  shapes = shapes_of(config)
  assert num_weights(shapes) == config.num_params
  assert round(config.num_params / 1e9, 3) == billions
  # State bytes of a sequence: fp32 memories, and half-precision keys a token.
  model = make_model(config, dtype=jnp.bfloat16)
  _, state = jax.eval_shape(
    model.prefill,
    shapes,
    jax.ShapeDtypeStruct((1, 64), jnp.int32),
    jax.ShapeDtypeStruct((1,), jnp.int32),
  )
  memory = state.delta.memory
  assert memory.dtype == jnp.float32
  deltas = config.num_layers * 3 // 4
  assert memory.size == deltas * config.delta_v_heads * 128 * 128
  assert state.attention.k.dtype == jnp.bfloat16
  kv = 2 * num_weights(state.attention) // 64
  assert kv == {"qwen3_5_9b": 32, "qwen3_6_27b": 64}[name] * 1024


@pytest.mark.parametrize("config", [CONFIG, SHAPES["qwen3_6_27b"]()])
def test_every_parameter_has_axes_of_its_rank(config):
  axes, shapes = make_model(config).axes(), shapes_of(config)

  def fits(names, leaf):
    assert len(names) == leaf.ndim
    return names

  jax.tree.map(fits, axes, shapes, is_leaf=lambda x: isinstance(x, tuple))


def test_padding_on_either_side_changes_nothing():
  params, row = make_params(), make_tokens(1, 70)
  alone = hidden_of(MODEL, params, row[None])[0]
  padded = make_tokens(2, 2, 100)
  padded[0, :70], padded[1, 30:] = row, row
  real = np.arange(100) < 70
  both = jnp.asarray(np.stack([real, real[::-1]]))
  found = hidden_of(MODEL, params, padded, real=both)
  np.testing.assert_allclose(found[0, :70], alone, atol=1e-4)
  np.testing.assert_allclose(found[1, 30:], alone, atol=1e-4)
  assert not found[0, 70:].any()
  assert not found[1, :30].any()
  by_length = hidden_of(MODEL, params, padded, jnp.array([70, 1]))
  np.testing.assert_allclose(by_length[0], found[0], atol=1e-5)


def test_decoding_equals_the_full_forward():
  params, lengths = make_params(), np.array([3, 67], np.int32)
  prompts = make_tokens(3, 2, 70)
  answers = make_tokens(4, 2, 3, 4)
  last, state = jax.jit(MODEL.prefill)(params, prompts, lengths)
  cache = MODEL.start(state, jnp.asarray(lengths), samples=3, slots=6, recent=3)
  decode, steps = jax.jit(MODEL.decode), []
  for t in range(4):
    if t == 3:
      cache = MODEL.settle(cache, jnp.full((2, 3), 3))
    hidden, cache = decode(params, answers[..., t], cache)
    steps.append(hidden)
  assert cache.filled.positions().tolist() == [[7] * 3, [71] * 3]
  for g, length in enumerate(lengths):
    rows = np.zeros((3, 71), np.int32)
    rows[:, :length] = prompts[g, :length]
    rows[:, length : length + 4] = answers[g]
    full = hidden_of(MODEL, params, rows)
    np.testing.assert_allclose(last[g], full[0, length - 1], atol=1e-4)
    found = jnp.stack([step[g] for step in steps], axis=1)
    np.testing.assert_allclose(found, full[:, length : length + 4], atol=1e-4)


def test_decoding_changes_the_states_in_place():
  params, lengths = make_params(), jnp.array([1, 2])
  _, state = jax.eval_shape(
    MODEL.prefill, params, jnp.zeros((2, 16), jnp.int32), lengths
  )
  cache = jax.eval_shape(
    lambda state: MODEL.start(state, lengths, samples=64, slots=8, recent=8),
    state,
  )
  tokens = jnp.zeros((2, 64), jnp.int32)
  decode = jax.jit(MODEL.decode, donate_argnums=2)
  memory = decode.lower(params, tokens, cache).compile().memory_analysis()
  assert memory.temp_size_in_bytes < cache.delta.memory.size * 4


def test_what_stands_at_padding_never_reaches_the_prompts_state():
  params, lengths = make_params(), jnp.array([5, 66])
  prompts = make_tokens(5, 2, 70)
  other = np.where(np.arange(70) < lengths[:, None], prompts, 7)
  prefill = jax.jit(MODEL.prefill)
  last, state = prefill(params, prompts, lengths)
  again, same = prefill(params, other, lengths)
  np.testing.assert_array_equal(last, again)
  jax.tree.map(np.testing.assert_array_equal, state.delta, same.delta)
  alone = prefill(params, prompts[:1, :5], jnp.array([5]))[1].delta
  for a, b in zip(state.delta, alone, strict=True):
    np.testing.assert_allclose(a[:, :1], b, atol=1e-5)


def test_gradients_do_not_depend_on_remat():
  tokens, lengths = make_tokens(6, 2, 9), jnp.array([9, 5])

  @functools.partial(jax.jit, static_argnums=1)
  @jax.grad
  def gradient(params, remat):
    model = make_model(CONFIG, remat=remat)
    return (model.hidden(params, tokens, lengths) ** 3).sum()

  plain, again = gradient(make_params(), False), gradient(make_params(), True)
  for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_half_precision_keeps_its_memory_in_fp32_and_stays_near():
  tokens = make_tokens(7, 1, 20)
  model = make_model(CONFIG, dtype=jnp.bfloat16)
  half, state = jax.jit(model.prefill)(make_params(), tokens, jnp.array([20]))
  assert half.dtype == jnp.bfloat16
  assert {x.dtype for x in state.delta} == {jnp.dtype("float32")}
  full = hidden_of(MODEL, make_params(), tokens)[:, -1]
  assert jnp.abs(half - full).mean() < 0.2 * jnp.abs(full).mean()


def test_the_sampler_records_the_trainers_logprobs():
  params = make_params()
  sampler = Sampler(
    model=MODEL, stop_ids=(1,), forbidden_ids=(0,), max_prompt=32, max_new=8
  )
  prompts = [[5, 6, 7], list(range(2, 22))]
  groups = sampler.generate(prompts, 4, params=params, step=0, tasks=[0, 1])
  rows = [(p, s) for p, g in zip(prompts, groups, strict=True) for s in g]
  tokens, lengths = np.zeros((8, 28), np.int32), np.zeros(8, np.int32)
  for row, (prompt, sample) in enumerate(rows):
    lengths[row] = len(prompt) + len(sample.tokens)
    tokens[row, : lengths[row]] = (*prompt, *sample.tokens)
  found, _ = token_logprobs(
    hidden_of(MODEL, params, tokens, jnp.asarray(lengths))[:, :-1],
    MODEL.lm_head_weight(params),
    tokens[:, 1:],
    forbidden=jnp.asarray(forbidden_mask([0], 41)),
  )
  for row, (prompt, sample) in enumerate(rows):
    ours = found[row, len(prompt) - 1 : lengths[row] - 1]
    np.testing.assert_allclose(sample.logprobs, ours, atol=1e-4)
  assert len({sample.tokens for _, sample in rows}) == 8


def test_shapes_that_cannot_be():
  fields = {f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__}
  for changes, words in (
    ({"num_layers": 6}, "num_layers"),
    ({"num_kv_heads": 3}, "num_heads"),
    ({"delta_v_heads": 3}, "delta_v_heads"),
    ({"rotary_dim": 5}, "rotary_dim is even"),
    ({"interval": 1}, "interval"),
  ):
    with pytest.raises(ValueError, match=words):
      Qwen35Config(**(fields | changes))


def test_the_registry_picks_the_class():
  assert isinstance(make_model(CONFIG), Qwen35)
  dense = LlamaConfig(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
  )
  assert make_model(dense, remat=True).remat
