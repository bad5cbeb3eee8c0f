"""Folders between us and transformers, both ways; skipped without torch."""

import jax
import numpy as np
import pytest
import tokenizers

from varl_jax.config import LoraConfig
from varl_jax.models import loading, lora
from varl_jax.models.registry import make_model
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.sampling.sampler import Sampler

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SHARED = {
  "vocab_size": 61,
  "hidden_size": 48,
  "intermediate_size": 80,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 16,
  "max_position_embeddings": 64,
  "initializer_range": 0.2,
}


def their_config(kind, tied):
  settings = SHARED | {"tie_word_embeddings": tied}
  if kind == "llama":
    return transformers.LlamaConfig(**settings, num_hidden_layers=3)
  if kind == "qwen3":
    return transformers.Qwen3Config(**settings, num_hidden_layers=3)
  return transformers.Qwen3_5TextConfig(
    **settings,
    num_hidden_layers=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
    rope_parameters={
      "rope_type": "default",
      "rope_theta": 1e7,
      "partial_rotary_factor": 0.5,
      "mrope_section": [2, 1, 1],
    },
  )


def their_model(kind, tied=False):
  torch.manual_seed(0)
  settings = their_config(kind, tied)
  name = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
  }[kind]
  model = getattr(transformers, name)(settings).eval()
  with torch.no_grad():
    for key, value in model.named_parameters():
      if key.endswith(("norm.weight", "dt_bias", "A_log")):
        value.add_(0.3 * torch.randn_like(value))
  return model


def add_tokenizer(folder):
  words = tokenizers.models.WordLevel({"<eos>": 0, "a": 1}, "a")
  backend = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(words), eos_token="<eos>"
  )
  Tokenizer(backend, vocab_size=61).save(folder)


def our_logits(config, params, tokens):
  model = make_model(config)
  hidden = jax.jit(model.hidden)(params, tokens)
  return np.asarray(hidden @ model.lm_head_weight(params).T)


def their_logits(model, tokens):
  with torch.inference_mode():
    return model(input_ids=torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize(
  ("kind", "tied"),
  [("llama", True), ("qwen3", False), ("qwen3_5", False), ("qwen3_5", True)],
)
def test_we_read_theirs_and_they_read_ours(kind, tied, tmp_path):
  theirs = their_model(kind, tied)
  theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
  add_tokenizer(tmp_path / "theirs")
  config, params, words = loading.load_model(tmp_path / "theirs")
  tokens = np.random.default_rng(0).integers(0, 61, (2, 19))
  expected = their_logits(theirs, tokens)
  assert expected.std() > 0.5
  found = our_logits(config, params, tokens)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  loading.save_model(
    tmp_path / "ours", config, params, tokenizer=words, max_shard=70_000
  )
  again, info = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "ours", dtype=torch.float32, output_loading_info=True
  )
  assert not any(info.values())
  assert type(again) is type(theirs)
  np.testing.assert_array_equal(their_logits(again.eval(), tokens), expected)
  backend = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
  assert backend.eos_token_id == 0


def test_a_checkpoint_with_a_vision_part(tmp_path):
  text = their_config("qwen3_5", False).to_dict()
  settings = transformers.Qwen3_5Config(
    text_config=text,
    vision_config={
      "depth": 1,
      "hidden_size": 16,
      "num_heads": 2,
      "intermediate_size": 16,
      "out_hidden_size": 48,
    },
  )
  torch.manual_seed(1)
  theirs = transformers.Qwen3_5ForConditionalGeneration(settings).eval()
  theirs.save_pretrained(tmp_path)
  add_tokenizer(tmp_path)
  names = list(theirs.state_dict())
  assert any(name.startswith("model.visual.") for name in names)
  config, params, _ = loading.load_model(tmp_path)
  tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
  np.testing.assert_allclose(
    our_logits(config, params, tokens), their_logits(theirs, tokens), atol=1e-4
  )


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_they_read_merged_adapters(kind, tmp_path):
  their_model(kind).save_pretrained(tmp_path / "trunk")
  add_tokenizer(tmp_path / "trunk")
  config, trunk, _ = loading.load_model(tmp_path / "trunk")
  axes = make_model(config).axes()
  adapter = lora.init(
    trunk, axes, LoraConfig(rank=3, targets="q,v,down"), jax.random.key(0)
  )
  adapter["lora"] = jax.tree.map(
    lambda x: x + 0.05 * jax.random.normal(jax.random.key(x.size), x.shape),
    adapter["lora"],
  )
  params = lora.attach(trunk, adapter, axes)
  loading.save_model(tmp_path / "merged", config, params)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "merged", dtype=torch.float32
  ).eval()
  tokens = np.random.default_rng(2).integers(0, 61, (2, 7))
  expected = their_logits(theirs, tokens)
  difference = np.abs(expected - our_logits(config, trunk, tokens)).max()
  assert difference > 0.1
  np.testing.assert_allclose(
    our_logits(config, params, tokens), expected, atol=1e-4
  )


@pytest.mark.slow
def test_smollm2_greedy_text_equals_theirs(smollm2, tmp_path):
  config, params, words = smollm2
  loading.save_model(tmp_path, config, params, tokenizer=words)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, dtype=torch.float32
  ).eval()
  texts = ("The harbour was quiet, and", "Water boils when", "def add(a, b):")
  prompts = [words.encode(text) for text in texts]
  # At this temperature noise cannot turn a lead of 1e-3 in the logits.
  sampler = Sampler(
    model=make_model(config),
    stop_ids=(),
    forbidden_ids=(),
    max_prompt=16,
    max_new=64,
    temperature=1e-5,
    seed=0,
  )
  drawn = sampler.generate(prompts, 1, params=params, step=0, tasks=[0, 1, 2])
  for prompt, (sample,) in zip(prompts, drawn, strict=True):
    with torch.inference_mode():
      expected = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=64,
        min_new_tokens=64,
        eos_token_id=None,
      )[0, len(prompt) :].tolist()
    assert words.decode(sample.tokens) == words.decode(expected)
    assert list(sample.tokens) == expected
