"""Qwen3.5 against torch and transformers; skipped where torch is missing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models.qwen3_5 import Qwen35
from varl_jax.models.qwen3_5_shape import Qwen35Config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
  pytest.mark.filterwarnings("ignore::DeprecationWarning"),
  pytest.mark.slow,
]

CONFIG = Qwen35Config(
  vocab_size=53,
  hidden_size=32,
  intermediate_size=40,
  num_layers=8,
  num_heads=4,
  num_kv_heads=2,
  head_dim=16,
  rotary_dim=8,
  delta_k_heads=2,
  delta_v_heads=6,
  delta_k_dim=32,
  delta_v_dim=24,
  rope_theta=1e4,
)


@functools.cache
def their_model():
  """A random model whose norms, decays and gates are far from their start.

  Wider weights or faster decay make sums that nearly cancel before they are
  normalized; there two fp32 programs differ by more than 1e-4.
  """
  c = CONFIG
  settings = transformers.Qwen3_5TextConfig(
    vocab_size=c.vocab_size,
    hidden_size=c.hidden_size,
    intermediate_size=c.intermediate_size,
    num_hidden_layers=c.num_layers,
    num_attention_heads=c.num_heads,
    num_key_value_heads=c.num_kv_heads,
    head_dim=c.head_dim,
    linear_num_key_heads=c.delta_k_heads,
    linear_num_value_heads=c.delta_v_heads,
    linear_key_head_dim=c.delta_k_dim,
    linear_value_head_dim=c.delta_v_dim,
    linear_conv_kernel_dim=c.conv_width,
    max_position_embeddings=512,
    rope_parameters={
      "rope_type": "default",
      "rope_theta": c.rope_theta,
      "partial_rotary_factor": c.rotary_dim / c.head_dim,
      "mrope_section": [2, 1, 1],
      "mrope_interleaved": True,
    },
    tie_word_embeddings=False,
  )
  torch.manual_seed(0)
  model = transformers.Qwen3_5ForCausalLM(settings).float().eval()
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if "A_log" in name:
        weight.uniform_(-4, -1)
      elif weight.ndim == 1:
        weight.add_(0.3 * torch.randn_like(weight))
      elif "conv1d" in name:
        weight.normal_(0, 0.5)
      else:
        weight.normal_(0, 0.1)
  return model


def to_tree(named):
  """Our tree of arrays by their names in a causal LM, weights or gradients."""
  c = CONFIG
  keys = c.delta_k_heads * c.delta_k_dim
  split = (keys, 2 * keys)
  k_heads = (c.delta_k_heads, c.delta_k_dim)
  v_heads = (c.delta_v_heads, c.delta_v_dim)

  def shared(get):
    return {
      "attn_norm": {"scale": get("input_layernorm.weight")},
      "mlp_norm": {"scale": get("post_attention_layernorm.weight")},
      **{
        name: {"kernel": get(f"mlp.{name}_proj.weight").T}
        for name in ("gate", "up", "down")
      },
    }

  def heads(array, shape):
    return {"kernel": array.T.reshape(-1, *shape)}

  def delta(get):
    qkv = np.split(get("linear_attn.in_proj_qkv.weight"), split)
    conv = np.split(get("linear_attn.conv1d.weight")[:, 0], split)
    shapes = (k_heads, k_heads, v_heads)
    return shared(get) | {
      **{n: heads(w, s) for n, w, s in zip("qkv", qkv, shapes, strict=True)},
      **{
        f"{n}_conv": heads(w, s)
        for n, w, s in zip("qkv", conv, shapes, strict=True)
      },
      "z": heads(get("linear_attn.in_proj_z.weight"), v_heads),
      "a": {"kernel": get("linear_attn.in_proj_a.weight").T},
      "b": {"kernel": get("linear_attn.in_proj_b.weight").T},
      "a_log": get("linear_attn.A_log"),
      "dt_bias": get("linear_attn.dt_bias"),
      "out_norm": {"scale": get("linear_attn.norm.weight")},
      "o": {
        "kernel": get("linear_attn.out_proj.weight").T.reshape(*v_heads, -1)
      },
    }

  def attention(get):
    both = get("self_attn.q_proj.weight").T
    both = both.reshape(-1, c.num_heads, 2, c.head_dim)
    kv = (c.num_kv_heads, c.head_dim)
    out = get("self_attn.o_proj.weight").T
    return shared(get) | {
      "q": {"kernel": both[:, :, 0]},
      "q_gate": {"kernel": both[:, :, 1]},
      "k": heads(get("self_attn.k_proj.weight"), kv),
      "v": heads(get("self_attn.v_proj.weight"), kv),
      "q_norm": {"scale": get("self_attn.q_norm.weight")},
      "k_norm": {"scale": get("self_attn.k_norm.weight")},
      "o": {"kernel": out.reshape(c.num_heads, c.head_dim, -1)},
    }

  def layer(index, make):
    prefix = f"model.layers.{index}."
    return make(lambda name: named[prefix + name])

  def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

  blocks = range(0, c.num_layers, c.interval)
  deltas = [
    stack([layer(b + i, delta) for i in range(c.interval - 1)]) for b in blocks
  ]
  return {
    "params": {
      "embed": named["model.embed_tokens.weight"],
      "lm_head": named["lm_head.weight"],
      "norm": {"scale": named["model.norm.weight"]},
      "layers": {
        "delta": stack(deltas),
        "attention": stack(
          [layer(b + c.interval - 1, attention) for b in blocks]
        ),
      },
    }
  }


@functools.cache
def our_params():
  state = their_model().state_dict()
  return to_tree({name: w.numpy().copy() for name, w in state.items()})


def make_tokens(seed, *shape):
  return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape)


def our_logits(tokens, lengths=None, real=None):
  model = Qwen35(CONFIG)

  @jax.jit
  def run(params, tokens, lengths, real):
    hidden = model.hidden(params, tokens, lengths, real=real)
    return hidden @ model.lm_head_weight(params).T

  return np.asarray(run(our_params(), tokens, lengths, real))


def their_logits(tokens, real):
  with torch.inference_mode():
    return (
      their_model()(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(real.astype(np.int64)),
        use_cache=False,
      )
      .logits.float()
      .numpy()
    )


def check(found, expected, most=1e-4):
  difference = np.abs(found - expected).max()
  print("max abs difference", difference, "of", np.abs(expected).max())
  assert np.abs(expected).max() > 0.5
  assert difference <= most


def test_all_parameters_are_mapped():
  shapes = jax.eval_shape(
    Qwen35(CONFIG).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  found = jax.tree.map(lambda x: x.shape, our_params())
  assert found == jax.tree.map(lambda x: x.shape, shapes)


def test_logits_without_padding():
  tokens = make_tokens(0, 2, 150)
  expected = their_logits(tokens, np.ones((2, 150), bool))
  check(our_logits(tokens), expected)


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_with_padding(side):
  tokens, lengths = make_tokens(1, 4, 90), np.array([90, 64, 9, 1])
  real = np.arange(90) < lengths[:, None]
  if side == "left":
    real = real[:, ::-1].copy()
    ours = our_logits(tokens, real=jnp.asarray(real))
  else:
    ours = our_logits(tokens, jnp.asarray(lengths))
  check(ours[real], their_logits(tokens, real)[real])


def test_prefill_and_every_decoding_step():
  model, params = Qwen35(CONFIG), our_params()
  lengths, steps = np.array([70, 5, 2], np.int32), 8
  prompts, answers = make_tokens(2, 3, 80), make_tokens(3, 3, 2, steps)
  head = jax.jit(lambda hidden: hidden @ model.lm_head_weight(params).T)
  last, state = jax.jit(model.prefill)(params, prompts, lengths)
  cache = model.start(
    state, jnp.asarray(lengths), samples=2, slots=steps, recent=3
  )
  decode = jax.jit(model.decode)
  ours = []
  for t in range(steps):
    if cache.filled.recent == 3:
      cache = model.settle(cache, jnp.full((3, 2), 3))
    hidden, cache = decode(params, answers[..., t], cache)
    ours.append(np.asarray(head(hidden)))
  for g, length in enumerate(lengths):
    prompt = torch.tensor(prompts[g : g + 1, :length])
    for s in range(2):
      with torch.inference_mode():
        made = their_model()(input_ids=prompt, use_cache=True)
        check(np.asarray(head(last[g])), made.logits[0, -1].numpy())
        for t in range(steps):
          made = their_model()(
            input_ids=torch.tensor(answers[g : g + 1, s, t : t + 1]),
            cache=made.cache,
            use_cache=True,
          )
          check(ours[t][g, s], made.logits[0, -1].numpy())


def test_gradients():
  tokens, lengths = make_tokens(4, 3, 70), np.array([70, 66, 7])
  real = np.arange(70) < lengths[:, None]
  rng = np.random.default_rng(5)
  weight = rng.normal(size=(3, 70, CONFIG.vocab_size)) * real[..., None]
  weight = weight.astype(np.float32)
  model = Qwen35(CONFIG, remat=True)

  @jax.jit
  @jax.grad
  def ours(params):
    hidden = model.hidden(params, tokens, jnp.asarray(lengths))
    logits = hidden @ model.lm_head_weight(params).T
    return jnp.sum(jax.nn.log_softmax(logits) * weight)

  theirs = their_model()
  theirs.zero_grad()
  logits = theirs(
    input_ids=torch.tensor(tokens),
    attention_mask=torch.tensor(real.astype(np.int64)),
    use_cache=False,
  ).logits
  (torch.log_softmax(logits, -1) * torch.tensor(weight)).sum().backward()
  expected = to_tree(
    {name: w.grad.numpy() for name, w in theirs.named_parameters()}
  )
  found = jax.tree_util.tree_leaves_with_path(ours(our_params()))
  for (path, a), b in zip(found, jax.tree.leaves(expected), strict=True):
    error = np.abs(a - b).max() / np.abs(b).max()
    print(jax.tree_util.keystr(path), error)
    assert error <= 1e-3, jax.tree_util.keystr(path)
