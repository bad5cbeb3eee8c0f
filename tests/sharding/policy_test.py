"""A run's policy with adapters: trained alone, sampled with the trunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.build import make_policy
from varl_jax.config import (
  Config,
  ConfigError,
  LoraConfig,
  MeshConfig,
  TrainConfig,
)
from varl_jax.config import ModelConfig as Model
from varl_jax.models import sharding
from varl_jax.rl.batch import pack
from varl_jax.rl.train_step import Learner
from varl_jax.types import Rollout

SMALL = Model(max_prompt=32, max_response=8)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_samples_with_what_its_state_holds(rank, dtype):
  model = Model(max_prompt=32, max_response=8, compute_dtype=dtype)
  lora = LoraConfig(rank=rank, targets="q,v")
  policy = make_policy(Config(model=model, lora=lora))
  state = policy.learner.init(policy.params)
  assert list(state.params) == (["lora"] if rank else ["params"])
  assert all(x.dtype == "float32" for x in jax.tree.leaves(state.params))
  drawn = policy.worker.sampler.generate(
    [[5, 6, 7]], 2, params=state.params, step=1, tasks=[1]
  )
  plain = make_policy(Config(model=model))
  exact = plain.worker.sampler.generate(
    [[5, 6, 7]], 2, params=plain.params, step=1, tasks=[1]
  )
  # A new adapter adds nothing.
  assert [s.tokens for s in drawn[0]] == [s.tokens for s in exact[0]]


@pytest.mark.parametrize("owns", [True, False])
@pytest.mark.parametrize("mesh", [None, MeshConfig()])
def test_weights_that_are_owned_are_held_once(owns, mesh):
  weights = {"w": jnp.ones((4, 2)), "head": jnp.ones((8, 2))}
  learner = Learner(
    hidden_fn=lambda tree, tokens, lengths: jnp.take(tree["w"], tokens % 4, 0),
    head_fn=lambda tree: tree["head"],
    vocab_size=8,
    config=TrainConfig(minibatch_tasks=1, samples=2),
    mesh=mesh and sharding.make_mesh(mesh),
    axes=mesh and {"w": (None, "embed"), "head": ("vocab", "embed")},
    owns_params=owns,
  )
  state = learner.init(weights)
  same = [
    leaf.unsafe_buffer_pointer() == state.params[name].unsafe_buffer_pointer()
    for name, leaf in weights.items()
  ]
  assert same == [owns, owns]
  rollouts = [
    Rollout(
      task_id="t",
      sample=sample,
      answer="",
      tokens=(1, 2),
      logprobs=(-2.0, -2.0),
      mask=(1, 1),
      finish="stop",
    )
    for sample in range(2)
  ]
  batch = pack(
    [[3]] * 2, rollouts, advantages=np.array([1.0, -1.0]), group_ids=np.zeros(2)
  )
  learner.update(state, batch)
  assert weights["w"].is_deleted() == owns


def test_a_mesh_without_its_devices_is_refused():
  config = Config(model=SMALL, mesh=MeshConfig(tensor=1024))
  with pytest.raises(ConfigError, match="takes 1024 devices"):
    make_policy(config)
