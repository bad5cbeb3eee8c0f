"""Remakes the adapter that begins to write rubrics on the story policy.

    python -m experiments.warm_rubrics \
        --adapter=varl_jax/story/policy/rubric_adapter

The trunk stays as it is. The adapter learns what the untuned generator writes,
put into the words of `story.rubric_words`, with an item of another kind now and
then, as SibylSense's item writer tries one. Equal bit for bit on one kind of
CPU and one version of jax.
"""

import pathlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from varl_jax.config import LoraConfig
from varl_jax.models import lora
from varl_jax.models.loading import load_model
from varl_jax.models.lora_folder import save_adapter
from varl_jax.models.registry import make_model
from varl_jax.rubrics.shape import (
  ShapeState,
  Targets,
  request_shape,
)
from varl_jax.story import criteria, rubric_words, writers
from varl_jax.story.requests import StoryRequest, draw_request

SETTINGS = LoraConfig(rank=32, alpha=64.0, targets="q,k,v,o")
# How often an item is of a kind that the untuned generator does not write.
TRY = 0.25
ROWS, LENGTH = 64, 88

_OUT = flags.DEFINE_string(
  "adapter", "varl_jax/story/policy/rubric_adapter", "Folder to write."
)
_STEPS = flags.DEFINE_integer("updates", 700, "Optimizer updates.")
_SEED = flags.DEFINE_integer("data_seed", 1, "Seed of data and weights.")


def draw_set(request: StoryRequest, rng: random.Random) -> str:
  """A rubric set for a request, in words."""
  shape = request_shape(
    ShapeState(),
    rng,
    red_team=request.alone,
    targets=Targets(positives=3.0, negatives=0.75),
  )
  library = criteria.items(request)
  others = {
    negative: [k for k in writers.LESSONS if library[k][0].negative == negative]
    for negative in (False, True)
  }
  items: list[str] = []
  for negative, plain, count in (
    (False, writers.UNTUNED, shape.positives),
    (True, writers.UNTUNED_NEGATIVE, shape.negatives),
  ):
    wanted = len(items) + count
    while len(items) < wanted:
      kind = rng.choice(others[negative] if rng.random() < TRY else list(plain))
      item = rubric_words.item_text(
        kind,
        request,
        rng.choice(("five", "six", "seven")),
        second=rng.random() < 0.5,
      )
      said = {old.partition(" ")[2] for old in items}
      if item.partition(" ")[2] not in said:
        items.append(item)
  return " ".join(items)


def batch(rng: random.Random, tokenizer):
  """Token rows [ROWS, LENGTH], their lengths, and what of them is learnt."""
  tokens = np.zeros((ROWS, LENGTH), np.int32)
  mask = np.zeros((ROWS, LENGTH), np.float32)
  lengths = np.zeros(ROWS, np.int32)
  for index in range(ROWS):
    request = draw_request(rng, validation=False, red_team=0.1)
    prompt = tokenizer.encode(f"<bos> {request.text} <sep>")
    reply = tokenizer.encode(f"{draw_set(request, rng)} <eos>")
    end = len(prompt) + len(reply)
    tokens[index, :end] = prompt + reply
    mask[index, len(prompt) : end] = 1
    lengths[index] = end
  return tokens, lengths, mask


def main(_):
  """Trains and writes the adapter's folder."""
  config, trunk, tokenizer = load_model("story")
  model = make_model(config)
  axes = model.axes()
  adapter = lora.init(trunk, axes, SETTINGS, jax.random.key(_SEED.value))
  schedule = optax.warmup_cosine_decay_schedule(
    0, 4e-3, _STEPS.value // 10, _STEPS.value, 1e-4
  )
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
  low = adapter["lora"]
  state = optimizer.init(low)

  @jax.jit
  def update(low, state, tokens, lengths, mask):
    def loss(low):
      params = lora.attach(trunk, {**adapter, "lora": low}, axes)
      hidden = model.hidden(params, tokens, lengths)
      logits = jnp.einsum(
        "bld,vd->blv", hidden[:, :-1], model.lm_head_weight(params)
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, tokens[:, 1:]
      )
      return jnp.sum(losses * mask[:, 1:]) / jnp.sum(mask[:, 1:])

    value, grads = jax.value_and_grad(loss)(low)
    updates, state = optimizer.update(grads, state, low)
    return optax.apply_updates(low, updates), state, value

  rng = random.Random(_SEED.value)
  for step in range(_STEPS.value):
    low, state, value = update(low, state, *batch(rng, tokenizer.backend))
    if step % 40 == 0 or step + 1 == _STEPS.value:
      print(f"update {step}: {float(value):.4f} nats a token", flush=True)
  save_adapter(
    pathlib.Path(_OUT.value), config, SETTINGS, {**adapter, "lora": low}
  )


if __name__ == "__main__":
  app.run(main)
