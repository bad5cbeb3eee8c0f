"""Llama and Qwen3 against torch and transformers; skipped without torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models import loading
from varl_jax.models.llama import Llama, LlamaConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def tiny(**changes):
  fields = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rms_eps": 1e-5,
    "max_position": 64,
  }
  return LlamaConfig(**(fields | changes))


KINDS = {
  "llama": tiny(),
  "llama_tied_full_heads": tiny(tie_embeddings=True, num_kv_heads=4),
  "qwen3": tiny(qk_norm=True, rms_eps=1e-6, rope_theta=1e6),
}


def their_model(config):
  name = "Qwen3" if config.qk_norm else "Llama"
  settings = getattr(transformers, f"{name}Config")(
    vocab_size=config.vocab_size,
    hidden_size=config.hidden_size,
    intermediate_size=config.intermediate_size,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    num_key_value_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    max_position_embeddings=config.max_position,
    rms_norm_eps=config.rms_eps,
    rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    tie_word_embeddings=config.tie_embeddings,
    initializer_range=0.15,
  )
  torch.manual_seed(0)
  model = getattr(transformers, f"{name}ForCausalLM")(settings)
  with torch.no_grad():
    for weight in model.parameters():
      if weight.ndim == 1:
        weight.add_(0.3 * torch.randn_like(weight))
  return model.float().eval()


def to_tree(config, named):
  """Our tree of arrays by their names there, weights or gradients."""

  def layer(index):
    def get(name):
      return named[f"model.layers.{index}.{name}.weight"]

    def heads(name, count):
      kernel = get(f"self_attn.{name}_proj").T
      return {"kernel": kernel.reshape(-1, count, config.head_dim)}

    out = get("self_attn.o_proj").T
    out = out.reshape(config.num_heads, config.head_dim, -1)
    norms = ("q_norm", "k_norm") if config.qk_norm else ()
    return {
      "attn_norm": {"scale": get("input_layernorm")},
      "mlp_norm": {"scale": get("post_attention_layernorm")},
      "q": heads("q", config.num_heads),
      "k": heads("k", config.num_kv_heads),
      "v": heads("v", config.num_kv_heads),
      "o": {"kernel": out},
      **{n: {"scale": get(f"self_attn.{n}")} for n in norms},
      **{n: {"kernel": get(f"mlp.{n}_proj").T} for n in ("gate", "up", "down")},
    }

  layers = [layer(i) for i in range(config.num_layers)]
  tree = {
    "embed": named["model.embed_tokens.weight"],
    "norm": {"scale": named["model.norm.weight"]},
    "layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers),
  }
  if not config.tie_embeddings:
    tree["lm_head"] = named["lm_head.weight"]
  return {"params": tree}


def our_logits(config, params, tokens, lengths):
  model = Llama(config)
  hidden = jax.jit(model.hidden)(params, tokens, lengths)
  return np.asarray(hidden @ model.lm_head_weight(params).T)


def their_logits(model, tokens, lengths):
  mask = np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]
  with torch.inference_mode():
    return model(
      input_ids=torch.tensor(tokens), attention_mask=torch.tensor(mask)
    ).logits.numpy()


def check(found, expected, most=1e-4):
  difference = np.abs(found - expected).max()
  print("max abs difference", difference, "of", np.abs(expected).max())
  assert np.abs(expected).max() > 0.5
  assert difference <= most


@pytest.fixture(params=KINDS)
def pair(request):
  """(config, their model, our parameters) of one kind."""
  config = KINDS[request.param]
  theirs = their_model(config)
  state = {name: w.numpy().copy() for name, w in theirs.state_dict().items()}
  return config, theirs, to_tree(config, state)


def test_logits(pair):
  config, theirs, params = pair
  tokens = np.random.default_rng(0).integers(0, 61, (3, 17))
  lengths = [17, 9, 1]
  ours = our_logits(config, params, tokens, jnp.asarray(lengths))
  expected = their_logits(theirs, tokens, lengths)
  for row, length in enumerate(lengths):
    check(ours[row, :length], expected[row, :length])


def test_prefill_and_every_decoding_step(pair):
  config, theirs, params = pair
  model, head = Llama(config), Llama(config).lm_head_weight(params).T
  rng = np.random.default_rng(1)
  prompts, answers = rng.integers(0, 61, (2, 8)), rng.integers(0, 61, (2, 1, 5))
  lengths = np.array([8, 3], np.int32)
  last, state = jax.jit(model.prefill)(params, prompts, lengths)
  cache = model.start(state, jnp.asarray(lengths), samples=1, slots=0, recent=6)
  decode, steps = jax.jit(model.decode), []
  for t in range(5):
    hidden, cache = decode(params, answers[..., t], cache)
    steps.append(np.asarray(hidden[:, 0] @ head))
  for g, length in enumerate(lengths):
    with torch.inference_mode():
      made = theirs(
        input_ids=torch.tensor(prompts[g : g + 1, :length]), use_cache=True
      )
      check(np.asarray(last[g] @ head), made.logits[0, -1].numpy())
      for t in range(5):
        made = theirs(
          input_ids=torch.tensor(answers[g, :, t : t + 1]),
          cache=made.cache,
          use_cache=True,
        )
        check(steps[t][g], made.logits[0, -1].numpy())


def test_gradients(pair):
  config, theirs, params = pair
  tokens = np.random.default_rng(2).integers(0, 61, (3, 12))
  lengths = np.array([12, 7, 2])
  real = np.arange(12) < lengths[:, None]
  weight = np.random.default_rng(3).normal(size=(3, 12, 61)) * real[..., None]
  weight = weight.astype(np.float32)
  model = Llama(config, remat=True)

  @jax.jit
  @jax.grad
  def ours(params):
    hidden = model.hidden(params, tokens, jnp.asarray(lengths))
    logits = hidden @ model.lm_head_weight(params).T
    return jnp.sum(jax.nn.log_softmax(logits) * weight)

  logits = theirs(
    input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real)
  ).logits
  (torch.log_softmax(logits, -1) * torch.tensor(weight)).sum().backward()
  expected = to_tree(
    config, {name: w.grad.numpy() for name, w in theirs.named_parameters()}
  )
  found = jax.tree_util.tree_leaves_with_path(ours(params))
  for (path, a), b in zip(found, jax.tree.leaves(expected), strict=True):
    error = np.abs(a - b).max() / np.abs(b).max()
    print(jax.tree_util.keystr(path), error)
    assert error <= 1e-3, jax.tree_util.keystr(path)


@pytest.mark.slow
def test_smollm2_logits(smollm2):
  pytest.importorskip("accelerate")  # transformers wants it for GGUF files
  config, params, tokenizer = smollm2
  path = loading.smollm2_file()
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
  ).eval()
  texts = ("Rain fell on the harbour all night, and", "2 + 2 =")
  rows = [tokenizer.encode(text) for text in texts]
  lengths = [len(row) for row in rows]
  tokens = np.zeros((2, max(lengths)), np.int32)
  for row, ids in enumerate(rows):
    tokens[row, : len(ids)] = ids
  ours = our_logits(config, params, tokens, jnp.asarray(lengths))
  expected = their_logits(theirs, tokens.astype(np.int64), lengths)
  for row, length in enumerate(lengths):
    check(ours[row, :length], expected[row, :length], most=5e-4)
