"""Against torch and transformers; skipped where torch is not installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models import loading
from varl_jax.models.hf_folder import config_from_json
from varl_jax.models.llama import Llama
from varl_jax.models.weights import assemble

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_tiny_llama_logits(tied, kv_heads, tmp_path):
  torch.manual_seed(0)
  settings = transformers.LlamaConfig(
    vocab_size=61,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=kv_heads,
    head_dim=16,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=tied,
    initializer_range=0.3,
  )
  theirs = transformers.LlamaForCausalLM(settings).eval()
  config = config_from_json(settings.to_dict(), tmp_path)
  weights = {k: v.numpy() for k, v in theirs.state_dict().items()}
  if tied:
    del weights["lm_head.weight"]
  params = assemble(config, weights, tmp_path, gguf=False)
  tokens = np.random.default_rng(0).integers(0, 61, (3, 17))
  lengths = [17, 9, 1]
  ours = our_logits(config, params, tokens, jnp.asarray(lengths))
  expected = their_logits(theirs, tokens, lengths)
  for row, length in enumerate(lengths):
    difference = np.abs(ours[row, :length] - expected[row, :length]).max()
    print("max abs difference", difference)
    assert difference <= 1e-4


def test_they_read_a_folder_we_wrote(tmp_path):
  config = loading.LlamaConfig(
    vocab_size=29,
    hidden_size=32,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=777.0,
    max_position=32,
  )
  params = Llama(config).init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))
  loading.save_model(tmp_path, config, params)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, dtype=torch.float32
  )
  tokens = np.random.default_rng(1).integers(0, 29, (2, 8))
  ours = our_logits(config, params, tokens, jnp.array([8, 8]))
  np.testing.assert_allclose(
    ours, their_logits(theirs, tokens, [8, 8]), atol=1e-4
  )


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
    difference = np.abs(ours[row, :length] - expected[row, :length]).max()
    print("max abs difference", difference)
    assert difference <= 5e-4
