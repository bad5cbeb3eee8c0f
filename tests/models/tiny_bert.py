"""A random BERT of a few thousand weights in a folder of HF's layout."""

import json

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from varl_jax.models.tensor_file import write_tensors

WORDS = "a knee that hurts is sore fever of the child and gout ##s ##y".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CONFIG = {
  "model_type": "bert",
  "architectures": ["BertModel"],
  "vocab_size": len(SPECIAL) + len(WORDS),
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 3,
  "intermediate_size": 40,
  "max_position_embeddings": 48,
  "type_vocab_size": 2,
  "layer_norm_eps": 1e-12,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.0,
  "attention_probs_dropout_prob": 0.0,
  "pad_token_id": 0,
}


def shapes(config, prefix=""):
  width, inner = config["hidden_size"], config["intermediate_size"]

  def norm(name):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

  def dense(name, out, inp):
    return {f"{name}.weight": (out, inp), f"{name}.bias": (out,)}

  made = {
    "embeddings.word_embeddings.weight": (config["vocab_size"], width),
    "embeddings.position_embeddings.weight": (
      config["max_position_embeddings"],
      width,
    ),
    "embeddings.token_type_embeddings.weight": (2, width),
    **norm("embeddings.LayerNorm"),
  }
  for layer in range(config["num_hidden_layers"]):
    at = f"encoder.layer.{layer}"
    for name in ("query", "key", "value"):
      made |= dense(f"{at}.attention.self.{name}", width, width)
    made |= dense(f"{at}.attention.output.dense", width, width)
    made |= norm(f"{at}.attention.output.LayerNorm")
    made |= dense(f"{at}.intermediate.dense", inner, width)
    made |= dense(f"{at}.output.dense", width, inner)
    made |= norm(f"{at}.output.LayerNorm")
  made |= dense("pooler.dense", width, width)
  return {f"{prefix}{name}": shape for name, shape in made.items()}


def write(folder, *, seed=0, prefix="", pooling=None, max_length=0, **changed):
  """Writes the folder and returns its tensors by name."""
  folder.mkdir(parents=True, exist_ok=True)
  config = CONFIG | changed
  (folder / "config.json").write_text(json.dumps(config))
  rng = np.random.default_rng(seed)
  tensors = {
    name: (rng.normal(size=shape) * 0.3 + ("Norm.weight" in name)).astype(
      np.float32
    )
    for name, shape in shapes(CONFIG, prefix).items()
  }
  write_tensors(
    folder / "model.safetensors",
    {name: tensor.shape for name, tensor in tensors.items()},
    np.float32,
    tensors.values(),
  )
  vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
  made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
  made.normalizer = normalizers.BertNormalizer(lowercase=True)
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
  made.save(str(folder / "tokenizer.json"))
  if pooling:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
  if max_length:
    (folder / "sentence_bert_config.json").write_text(
      json.dumps({"max_seq_length": max_length})
    )
  return tensors
