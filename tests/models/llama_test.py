import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models import loading
from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.rl.logprobs import forbidden_mask, masked_logits


def tiny_config(**changes):
  fields = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "rope_theta": 500.0,
    "max_position": 64,
  }
  return LlamaConfig(**(fields | changes))


def random_params(config, seed=0):
  """Parameters far from their start, norms included."""
  shapes = jax.eval_shape(
    Llama(config).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(
      rng.normal(1.0 if x.ndim == 1 else 0.0, 0.3, x.shape), jnp.float32
    ),
    shapes,
  )


@functools.partial(jax.jit, static_argnums=0)
def hidden_of(model, params, tokens, lengths=None):
  return model.hidden(params, tokens, lengths)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, tokens):
  none = jnp.asarray(forbidden_mask([], model.config.vocab_size))
  hidden = model.hidden(params, tokens)
  return masked_logits(hidden, model.lm_head_weight(params), none)


def reference_logits(weight, config, tokens, *, neighbours=False):
  """The forward pass in float64 numpy, one sequence, written for clarity.

  Args:
    weight: called with (layer or None, name), returns [out, in] arrays.
    config: shape.
    tokens: ids.
    neighbours: rotary pairs are (0, 1), (2, 3)... as GGUF files have them.
  """
  length, width = len(tokens), config.head_dim
  repeat = config.num_heads // config.num_kv_heads

  def norm(x, scale):
    rms = np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_eps)
    return x / rms * scale

  frequency = config.rope_theta ** (-np.arange(0, width, 2) / width)
  turn = np.exp(1j * np.arange(length)[:, None] * frequency)

  def rotated(x):  # [L, H]
    if neighbours:
      z = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
      return np.stack([z.real, z.imag], axis=-1).reshape(length, width)
    z = (x[:, : width // 2] + 1j * x[:, width // 2 :]) * turn
    return np.concatenate([z.real, z.imag], axis=-1)

  x = weight(None, "embed")[tokens]
  for layer in range(config.num_layers):
    get = functools.partial(weight, layer)
    h = norm(x, get("attn_norm"))
    q, k, v = (h @ get(name).T for name in "qkv")
    if config.qk_norm:
      q, k = (
        norm(x.reshape(length, -1, width), get(name)).reshape(length, -1)
        for x, name in ((q, "q_norm"), (k, "k_norm"))
      )
    mixed = []
    for head in range(config.num_heads):
      own = slice(head * width, (head + 1) * width)
      shared = slice(head // repeat * width, (head // repeat + 1) * width)
      scores = rotated(q[:, own]) @ rotated(k[:, shared]).T / np.sqrt(width)
      scores[np.triu_indices(length, 1)] = -np.inf
      chance = np.exp(scores - scores.max(-1, keepdims=True))
      mixed.append(chance / chance.sum(-1, keepdims=True) @ v[:, shared])
    x = x + np.concatenate(mixed, axis=-1) @ get("o").T
    h = norm(x, get("mlp_norm"))
    gate, up = h @ get("gate").T, h @ get("up").T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ get("down").T
  return norm(x, weight(None, "norm")) @ weight(None, "head").T


def tree_weight(model, params):
  tree = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])

  def weight(layer, name):
    if layer is None:
      if name == "head":
        return np.asarray(model.lm_head_weight(params), np.float64)
      return tree["norm"]["scale"] if name == "norm" else tree[name]
    (array,) = tree["layers"][name].values()
    if name in ("q", "k", "v"):
      return array[layer].reshape(model.config.hidden_size, -1).T
    if name == "o":
      return array[layer].reshape(-1, model.config.hidden_size).T
    return array[layer].T

  return weight


@pytest.mark.parametrize(
  ("tied", "kv_heads", "qk_norm"),
  [(True, 1, False), (False, 2, True), (True, 4, False)],
)
def test_logits_equal_an_independent_float64_forward(tied, kv_heads, qk_norm):
  config = tiny_config(
    tie_embeddings=tied, num_kv_heads=kv_heads, qk_norm=qk_norm
  )
  model, params = Llama(config), random_params(config)
  tokens = np.random.default_rng(1).integers(0, 37, 11)
  found = logits_of(model, params, tokens[None])[0]
  expected = reference_logits(tree_weight(model, params), config, tokens)
  assert expected.std() > 1
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_num_params_counts_the_weights():
  for changes in ({"tie_embeddings": True}, {"qk_norm": True}):
    config = tiny_config(**changes)
    sizes = [x.size for x in jax.tree.leaves(random_params(config))]
    assert config.num_params == sum(sizes)


def test_every_parameter_has_axes_of_its_rank():
  for changes in ({"tie_embeddings": True}, {"qk_norm": True}):
    config = tiny_config(**changes)

    def fits(names, leaf):
      assert len(names) == leaf.ndim
      return names

    jax.tree.map(
      fits,
      Llama(config).axes(),
      random_params(config),
      is_leaf=lambda x: isinstance(x, tuple),
    )


def test_padding_never_reaches_real_tokens():
  config = tiny_config()
  model, params = Llama(config), random_params(config)
  rng = np.random.default_rng(2)
  row = rng.integers(0, 37, 6)
  padded = rng.integers(0, 37, (2, 10))
  padded[:, :6] = row
  alone = hidden_of(model, params, row[None])[0]
  lengths = jnp.array([6, 6])
  found = hidden_of(model, params, padded, lengths)
  np.testing.assert_allclose(found[0, :6], alone, atol=1e-5)
  np.testing.assert_array_equal(found[0], found[1])
  assert not found[:, 6:].any()


def test_gradients_do_not_depend_on_remat_or_padding():
  config = tiny_config()
  params = random_params(config)
  tokens = np.random.default_rng(3).integers(0, 37, (2, 9))
  lengths = jnp.array([9, 5])

  @functools.partial(jax.jit, static_argnums=2)
  @jax.grad
  def gradient(params, tokens, remat):
    model = Llama(config, remat=remat)
    return (model.hidden(params, tokens, lengths) ** 3).sum()

  plain = gradient(params, tokens, False)
  other = tokens.copy()
  other[1, 5:] = 1
  again = gradient(params, other, True)
  for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_decoding_equals_the_full_forward():
  config = tiny_config()
  model, params = Llama(config), random_params(config)
  rng = np.random.default_rng(4)
  lengths = np.array([3, 5], np.int32)
  prompts = rng.integers(0, 37, (2, 8)).astype(np.int32)
  answers = rng.integers(0, 37, (2, 3, 4)).astype(np.int32)
  decode = jax.jit(model.decode)
  last, prompt = jax.jit(model.prefill)(params, prompts, lengths)
  cache = model.start(
    prompt, jnp.asarray(lengths), samples=3, slots=6, recent=3
  )
  steps = []
  for t in range(4):
    if t == 3:
      cache = model.settle(cache, jnp.full((2, 3), 3))
    hidden, cache = decode(params, answers[..., t], cache)
    steps.append(hidden)
  for g in range(2):
    for s in range(3):
      row = np.zeros((1, 9), np.int32)
      length = lengths[g] + 4
      row[0, :length] = (*prompts[g, : lengths[g]], *answers[g, s])
      full = hidden_of(model, params, row)[0, :length]
      np.testing.assert_allclose(last[g], full[lengths[g] - 1], atol=1e-4)
      found = jnp.stack([step[g, s] for step in steps])
      np.testing.assert_allclose(found, full[lengths[g] :], atol=1e-4)


def test_half_precision_computes_in_it_and_stays_near():
  config = tiny_config()
  params = random_params(config)
  tokens = np.random.default_rng(5).integers(0, 37, (1, 8))
  half = hidden_of(Llama(config, dtype=jnp.bfloat16), params, tokens)
  assert half.dtype == jnp.bfloat16
  full = hidden_of(Llama(config), params, tokens)
  assert jnp.abs(half - full).mean() < 0.05 * jnp.abs(full).mean()


def test_config_refuses_shapes_that_cannot_be():
  with pytest.raises(ValueError, match="multiple"):
    tiny_config(num_kv_heads=3)
  with pytest.raises(ValueError, match="even"):
    tiny_config(head_dim=7)


def test_smollm2_equals_an_independent_forward_of_the_file(smollm2):
  gguf = pytest.importorskip("gguf")
  config, params, tokenizer = smollm2
  reader = gguf.GGUFReader(loading.smollm2_file())
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  plain = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "token_embd",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
  }

  def weight(layer, name):
    prefix = "" if layer is None else f"blk.{layer}."
    tensor = tensors[f"{prefix}{plain[name]}.weight"]
    array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return array.astype(np.float64)

  tokens = tokenizer.encode("The capital of France is the city of")
  found = np.asarray(logits_of(Llama(config), params, np.array([tokens]))[0])
  expected = reference_logits(weight, config, tokens, neighbours=True)
  np.testing.assert_allclose(found, expected, atol=5e-4)
  assert tokenizer.decode([found[-1].argmax()]) == " Paris"
