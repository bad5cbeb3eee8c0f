"""A run's policy with adapters: trained alone, sampled with the trunk."""

import jax
import pytest

from varl_jax.build import make_policy
from varl_jax.config import Config, ConfigError, LoraConfig, MeshConfig
from varl_jax.config import ModelConfig as Model

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


def test_a_mesh_without_its_devices_is_refused():
  config = Config(model=SMALL, mesh=MeshConfig(tensor=1024))
  with pytest.raises(ConfigError, match="takes 1024 devices"):
    make_policy(config)
