"""Remakes the story policy's warm weights by supervised learning.

    python -m experiments.warm_start --out=varl_jax/story/policy
    python -m experiments.warm_start --lookup --steps=300 \
        --out=varl_jax/story/lookup_policy

The policy learns a mixture of good stories, thin stories, keyword lists and
rambling for training requests, so that reinforcement learning can move it
either way. With `--lookup` the story policy also learns to look a sign up, now
and then, and to tell it. Equal bit for bit on one kind of CPU and
one version of jax.
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
from varl_jax.models.loading import load_model, save_model
from varl_jax.story import grammar, lookup
from varl_jax.story.requests import StoryRequest, draw_request

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
# Calls in <tool_call>, a result in a turn of its own.
LOOKUP_TEMPLATE = (
  "<bos>{% if tools %} <tool_call> lookup{% endif %}"
  "{% for message in messages %}{% if message.role == 'user' %}"
  " {{ message.content }}{% elif message.role == 'assistant' %}"
  " <sep> {{ message.content }} <eos>{% elif message.role == 'tool' %}"
  " <tool_response> {{ message.content }} </tool_response>"
  "{% endif %}{% endfor %}{% if add_generation_prompt %} <sep>{% endif %}"
)
TOOL_SPECIALS = (
  "<tool_call>",
  "</tool_call>",
  "<tool_response>",
  "</tool_response>",
)
# How often a call comes first, and how often the story then tells the sign.
CALLS, TELLS = 0.3, 0.8
ROWS = 64

_OUT = flags.DEFINE_string("out", "varl_jax/story/policy", "Folder to write.")
_STEPS = flags.DEFINE_integer("steps", 900, "Optimizer updates.")
_LOOKUP = flags.DEFINE_bool("lookup", False, "Learn to look signs up, too.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed of data and weights.")


def call_text(request: StoryRequest) -> str:
  """A call as the policy writes it, apart by spaces."""
  body = json.dumps(
    {"name": lookup.LOOKUP.name, "arguments": {"of": lookup.query_of(request)}}
  )
  return f"<tool_call> {body} </tool_call>"


def vocabulary(with_lookup: bool) -> list[str]:
  """Every word of requests and stories, after the special tokens."""
  rng = random.Random(0)
  words: set[str] = set()
  for _ in range(6000):
    request = draw_request(rng, validation=False, red_team=0.2)
    words.update(request.text.split())
    for kind in MIXTURE:
      words.update(grammar.write(kind, request, rng).split())
    if with_lookup:
      words.update(call_text(request).split(), ("lookup", "sign", "says"))
  if not with_lookup:
    return [*SPECIALS, *sorted(words)]
  words.update(lookup.SIGNS)
  return [*SPECIALS, *TOOL_SPECIALS, *sorted(words - set(TOOL_SPECIALS))]


def write_tokenizer(
  folder: pathlib.Path, words: list[str], *, with_lookup: bool
) -> Tokenizer:
  """Writes a word-level tokenizer as Hugging Face files."""
  specials = [*SPECIALS, *(TOOL_SPECIALS if with_lookup else ())]
  tokenizer = Tokenizer(
    models.WordLevel(
      {word: index for index, word in enumerate(words)}, unk_token="<unk>"
    )
  )
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.add_special_tokens(specials)
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
    "chat_template": LOOKUP_TEMPLATE if with_lookup else TEMPLATE,
  }
  text = json.dumps(config, indent=2, sort_keys=True)
  (folder / "tokenizer_config.json").write_text(text + "\n")
  return tokenizer


def row(rng: random.Random, with_lookup: bool) -> list[tuple[str, bool]]:
  """Pieces of one row, True for those that the policy is to write."""
  request = draw_request(rng, validation=False, red_team=0.1)
  kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
  story = grammar.write(kind, request, rng)
  if not with_lookup:
    return [(f"<bos> {request.text} <sep>", False), (f"{story} <eos>", True)]
  calls = rng.random() < CALLS
  sign = lookup.sign_of(*lookup.query_of(request).split())
  if calls and rng.random() < TELLS:
    pieces = story.split(" . ")
    at = rng.randint(0, len(pieces))
    sentence = lookup.SENTENCE.format(sign=sign).removesuffix(" .")
    pieces.insert(at, sentence)
    story = " . ".join(piece.removesuffix(" .") for piece in pieces) + " ."
  start = (f"<bos> <tool_call> lookup {request.text} <sep>", False)
  if not calls:
    return [start, (f"{story} <eos>", True)]
  result = lookup.RESULT.format(sign=sign)
  return [
    start,
    (f"{call_text(request)} <eos>", True),
    (f"<tool_response> {result} </tool_response> <sep>", False),
    (f"{story} <eos>", True),
  ]


def batch(rng: random.Random, tokenizer: Tokenizer, *, with_lookup: bool):
  """Token rows [ROWS, L], their lengths, and the mask of what is learnt."""
  length = 128 if with_lookup else 104
  tokens = np.zeros((ROWS, length), np.int32)
  mask = np.zeros((ROWS, length), np.float32)
  lengths = np.zeros(ROWS, np.int32)
  for index in range(ROWS):
    for text, learnt in row(rng, with_lookup):
      ids = tokenizer.encode(text).ids
      start = lengths[index]
      lengths[index] = end = start + len(ids)
      tokens[index, start:end] = ids
      mask[index, start:end] = learnt
  return tokens, lengths, mask


def from_story(params, words: list[str]):
  """The weights of the story policy; words that it lacks keep theirs."""
  _, known, tokenizer = load_model("story")
  vocabulary = tokenizer.backend.get_vocab()
  embed = np.array(params["params"]["embed"])
  for index, word in enumerate(words):
    if word in vocabulary:
      embed[index] = known["params"]["embed"][vocabulary[word]]
  return {"params": {**known["params"], "embed": jnp.asarray(embed)}}


def main(_):
  """Trains and writes the policy's folder."""
  folder = pathlib.Path(_OUT.value)
  with_lookup = _LOOKUP.value
  words = vocabulary(with_lookup)
  tokenizer = write_tokenizer(folder, words, with_lookup=with_lookup)
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
  if with_lookup:
    params = from_story(params, words)
  schedule = optax.warmup_cosine_decay_schedule(
    0, 4e-3, min(100, _STEPS.value // 10), _STEPS.value, 1e-4
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
    rows = batch(rng, tokenizer, with_lookup=with_lookup)
    params, state, value = update(params, state, *rows)
    if step % 40 == 0 or step + 1 == _STEPS.value:
      print(f"update {step}: {float(value):.4f} nats a token", flush=True)
  save_model(folder, config, params)


if __name__ == "__main__":
  app.run(main)
