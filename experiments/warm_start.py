"""Remakes the story policy's warm weights by supervised learning.

    python -m experiments.warm_start --out=varl_jax/story/policy

The policy learns a mixture of good stories, thin stories, keyword lists and
rambling for training requests, so that reinforcement learning can move it
either way. Equal bit for bit on one kind of CPU and one version of jax.
"""

import json
import pathlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from tokenizers import Tokenizer, models, pre_tokenizers

from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.models.loading import save_model
from varl_jax.story import grammar
from varl_jax.story.requests import draw_request

MIXTURE: dict[grammar.Kind, float] = {
  "good": 0.16,
  "thin": 0.26,
  "list": 0.29,
  "ramble": 0.29,
}
SPECIALS = ("<pad>", "<bos>", "<sep>", "<eos>", "<unk>")
TEMPLATE = (
  "<bos>{% for message in messages %}{% if message.role == 'user' %}"
  " {{ message.content }}{% endif %}{% endfor %} <sep>"
)
ROWS, LENGTH = 64, 104

_OUT = flags.DEFINE_string("out", "varl_jax/story/policy", "Folder to write.")
_STEPS = flags.DEFINE_integer("steps", 900, "Optimizer updates.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed of data and weights.")


def vocabulary() -> list[str]:
  """Every word of requests and stories, after the special tokens."""
  rng = random.Random(0)
  words: set[str] = set()
  for _ in range(6000):
    request = draw_request(rng, validation=False, red_team=0.2)
    words.update(request.text.split())
    for kind in MIXTURE:
      words.update(grammar.write(kind, request, rng).split())
  return [*SPECIALS, *sorted(words)]


def write_tokenizer(folder: pathlib.Path, words: list[str]) -> Tokenizer:
  """Writes a word-level tokenizer as Hugging Face files."""
  tokenizer = Tokenizer(
    models.WordLevel(
      {word: index for index, word in enumerate(words)}, unk_token="<unk>"
    )
  )
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.add_special_tokens(list(SPECIALS))
  folder.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(folder / "tokenizer.json"))
  config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "additional_special_tokens": ["<sep>"],
    "clean_up_tokenization_spaces": False,
    "chat_template": TEMPLATE,
  }
  text = json.dumps(config, indent=2, sort_keys=True)
  (folder / "tokenizer_config.json").write_text(text + "\n")
  return tokenizer


def batch(rng: random.Random, tokenizer: Tokenizer):
  """Token rows [ROWS, LENGTH], their lengths, and the answers' mask."""
  tokens = np.zeros((ROWS, LENGTH), np.int32)
  mask = np.zeros((ROWS, LENGTH), np.float32)
  lengths = np.zeros(ROWS, np.int32)
  for row in range(ROWS):
    request = draw_request(rng, validation=False, red_team=0.1)
    kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    story = grammar.write(kind, request, rng)
    prompt = tokenizer.encode(f"<bos> {request.text} <sep>").ids
    ids = prompt + tokenizer.encode(f"{story} <eos>").ids
    tokens[row, : len(ids)] = ids
    mask[row, len(prompt) : len(ids)] = 1
    lengths[row] = len(ids)
  return tokens, lengths, mask


def main(_):
  """Trains and writes the policy's folder."""
  folder = pathlib.Path(_OUT.value)
  words = vocabulary()
  tokenizer = write_tokenizer(folder, words)
  config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=96,
    intermediate_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    tie_embeddings=True,
    max_position=256,
  )
  model = Llama(config)
  params = model.init(jax.random.key(_SEED.value), jnp.zeros((1, 8), jnp.int32))
  # 0.1 instead of 0.02: learns much faster.
  weights = dict(params["params"])
  weights["embed"] = jnp.asarray(weights["embed"]) * 5
  params = {"params": weights}
  schedule = optax.warmup_cosine_decay_schedule(
    0, 4e-3, 100, _STEPS.value, 1e-4
  )
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)
  )
  state = optimizer.init(params)

  @jax.jit
  def update(params, state, tokens, lengths, mask):
    def loss(params):
      hidden = model.hidden(params, tokens, lengths)
      logits = jnp.einsum(
        "bld,vd->blv", hidden[:, :-1], model.lm_head_weight(params)
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, tokens[:, 1:]
      )
      return jnp.sum(losses * mask[:, 1:]) / jnp.sum(mask[:, 1:])

    value, grads = jax.value_and_grad(loss)(params)
    updates, state_ = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state_, value

  rng = random.Random(_SEED.value)
  for step in range(_STEPS.value):
    params, state, value = update(params, state, *batch(rng, tokenizer))
    if step % 100 == 0 or step + 1 == _STEPS.value:
      print(f"update {step}: {float(value):.4f} nats a token", flush=True)
  save_model(folder, config, params)


if __name__ == "__main__":
  app.run(main)
