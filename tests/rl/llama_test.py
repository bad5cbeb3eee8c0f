"""The learner on the real model agrees with what the sampler recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.config import TrainConfig
from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.rl.batch import pack
from varl_jax.rl.train_step import Learner
from varl_jax.sampling.sampler import Sampler
from varl_jax.types import Rollout

FORBIDDEN, STOP = (0, 3), (1,)


def test_on_policy_ratio_is_one_within_noise():
  temperature = 0.7
  shape = LlamaConfig(
    vocab_size=17,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    tie_embeddings=True,
  )
  model = Llama(config=shape)
  params = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
  params = jax.tree.map(lambda x: x * 3, params)
  sampler = Sampler(
    model=model,
    stop_ids=STOP,
    forbidden_ids=FORBIDDEN,
    max_prompt=16,
    max_new=12,
    temperature=temperature,
  )
  prompts = [[4, 5, 6], [7, 8, 9, 10, 11, 12]]
  drawn = sampler.generate(prompts, 4, params=params, step=0, tasks=[0, 1])
  rollouts = [
    Rollout(
      task_id=str(group),
      sample=index,
      answer="",
      tokens=sample.tokens,
      logprobs=sample.logprobs,
      mask=(1,) * len(sample.tokens),
      finish=sample.finish,
    )
    for group, samples in enumerate(drawn)
    for index, sample in enumerate(samples)
  ]
  assert len({r.tokens for r in rollouts}) > 4
  batch = pack(
    [prompts[int(r.task_id)] for r in rollouts],
    rollouts,
    advantages=np.linspace(-1, 1, 8),
    group_ids=[int(r.task_id) for r in rollouts],
    max_prompt=16,
    max_response=12,
  )
  learner = Learner(
    hidden_fn=model.hidden,
    head_fn=model.lm_head_weight,
    vocab_size=shape.vocab_size,
    forbidden_ids=FORBIDDEN,
    config=TrainConfig(
      tasks_per_step=2,
      minibatch_tasks=2,
      samples=4,
      temperature=temperature,
      micro_batch=4,
    ),
    old_logprobs="sampler",
  )
  found = learner.logprobs(params, batch)
  np.testing.assert_allclose(
    found[batch.mask], batch.logprobs[batch.mask], atol=2e-5
  )
  _, metrics = learner.update(learner.init(params), batch)
  assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-5)
  assert metrics["train/ratio_max"] == pytest.approx(1, abs=1e-4)
  assert metrics["train/sampler_gap_max"] < 2e-5
