"""Tunix's own GRPO loss in its own compiled training step, with AdamW."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import algo_core, trainer
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix.sft import peft_trainer

from experiments.speed.contestants import tunix_model
from experiments.speed.contestants.loop import Run, serve


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """One update over `tokens` [B, L], the last `new` of each row trained."""
  _, model = tunix_model.load(case["model"], remat=case.get("remat", False))
  settings = GRPOConfig(
    num_generations=len(case["tokens"]),
    num_iterations=1,
    beta=0.0,
    epsilon=0.2,
    loss_agg_mode="token-mean",
  )
  if not hasattr(settings, "temperature"):
    object.__setattr__(settings, "temperature", 1.0)  # The loss reads it.
  training = trainer.Trainer(
    model,
    optax.adamw(1e-6, weight_decay=0.0),
    peft_trainer.TrainingConfig(eval_every_n_steps=10**9, max_steps=1000),
    dict,
  )
  training.with_loss_fn(
    lambda model, train_example, algo_config: algo_core.grpo_loss_fn(
      model, train_example, algo_config, 0, 2
    ),
    has_aux=True,
  )
  training.with_gen_model_input_fn(
    lambda given: {"train_example": given, "algo_config": settings}
  )
  example = _example(case)
  step, _ = training.jit_train_and_eval_step()

  def run(number: int) -> dict[str, float]:
    del number
    loss, _, norm = step(example)
    jax.block_until_ready((loss, norm, nnx.state(training.model)))
    return {"loss": float(loss), "grad_norm": float(norm)}

  return run, {"versions": tunix_model.versions()}


def _example(case: dict[str, Any]) -> TrainExample:
  ids = np.array(case["tokens"], np.int32)
  start = ids.shape[1] - case["new"]
  fields = {
    "prompt_ids": jnp.asarray(ids[:, :start]),
    "prompt_mask": jnp.ones((len(ids), start), bool),
    "completion_ids": jnp.asarray(ids[:, start:]),
    "completion_mask": jnp.ones((len(ids), case["new"]), jnp.int32),
    "advantages": jnp.asarray(case["advantages"], jnp.float32),
    "ref_per_token_logps": None,
    "old_per_token_logps": None,
  }
  known = {field.name for field in dataclasses.fields(TrainExample)}
  return TrainExample(**{k: v for k, v in fields.items() if k in known})


if __name__ == "__main__":
  serve(prepare)
