"""Our GRPO update: `Learner.update` of one mini-batch."""

import importlib.metadata
from typing import Any

import jax
import numpy as np

from experiments.speed.contestants.loop import Run, serve
from varl_jax import build
from varl_jax.config import TrainConfig
from varl_jax.models.loading import load_model
from varl_jax.models.registry import make_model
from varl_jax.rl.batch import Batch, pack
from varl_jax.rl.train_step import Learner
from varl_jax.types import Rollout


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """One update over `tokens` [B, L], the last `new` of each row trained.

  With `lengths` a row has only so many tokens, its prompt included.
  """
  if case.get("cache"):
    build.use_compile_cache()
  config, params, _ = load_model(case["model"])
  model = make_model(config, remat=case.get("remat", False))
  rows, longest = np.shape(case["tokens"])
  learner = Learner(
    hidden_fn=model.hidden,
    head_fn=model.lm_head_weight,
    vocab_size=config.vocab_size,
    config=TrainConfig(
      samples=rows,
      minibatch_tasks=1,
      micro_batch=case.get("micro_batch", 0),
      length_bucket=case.get("length_bucket", 0),
    ),
    head_chunk=case.get("head_chunk", 0),
    owns_params=True,
    longest=longest,
    widest=case["new"],
  )
  state = learner.init(params)
  del params
  batch = _batch(case)

  def run(number: int) -> dict[str, float]:
    nonlocal state
    del number
    state, found = learner.update(state, batch)
    jax.block_until_ready(state)
    return {"loss": found["train/loss"], "grad_norm": found["train/grad_norm"]}

  versions = {
    name: importlib.metadata.version(name) for name in ("varl_jax", "jax")
  }
  return run, {"versions": versions, "shape": shape_of(config)}


def shape_of(config: Any) -> dict[str, int]:
  """What the arithmetic of a pass is counted from."""
  head = config.vocab_size * config.hidden_size
  tables = 1 if config.tie_embeddings else 2
  return {
    "layers": config.num_layers,
    "attention_width": config.num_heads * config.head_dim,
    "kv_width": config.num_kv_heads * config.head_dim,
    "layer_weights": config.num_params - tables * head,
    "head_weights": head,
  }


def _batch(case: dict[str, Any]) -> Batch:
  start = len(case["tokens"][0]) - case["new"]
  lengths = case.get("lengths") or [len(ids) for ids in case["tokens"]]
  rollouts = [
    Rollout(
      task_id="0",
      sample=row,
      answer="",
      tokens=tuple(ids[start:length]),
      logprobs=(-1.0,) * (length - start),
      mask=(1,) * (length - start),
      finish="stop",
    )
    for row, (ids, length) in enumerate(
      zip(case["tokens"], lengths, strict=True)
    )
  ]
  return pack(
    [ids[:start] for ids in case["tokens"]],
    rollouts,
    advantages=case["advantages"],
    group_ids=np.zeros(len(rollouts), np.int32),
    max_prompt=start,
    max_response=case["new"],
  )


if __name__ == "__main__":
  serve(prepare)
