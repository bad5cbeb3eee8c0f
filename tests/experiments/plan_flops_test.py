"""The count of operations against a compiler's, where no scan repeats."""

import jax
import jax.numpy as jnp
import pytest

from experiments import plan_flops
from varl_jax.config import LoraConfig, MeshConfig, TrainConfig
from varl_jax.models import lora, sharding
from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config, qwen3_5_9b, qwen3_6_27b
from varl_jax.models.registry import make_model
from varl_jax.rl.train_step import Learner

SHARED = dict(
  vocab_size=2048,
  hidden_size=256,
  intermediate_size=1024,
  num_heads=8,
  num_kv_heads=4,
  head_dim=32,
)
CONFIGS = {
  "llama": LlamaConfig(num_layers=1, **SHARED),
  "qwen3_5": Qwen35Config(
    num_layers=2,
    interval=2,
    rotary_dim=16,
    delta_k_heads=4,
    delta_v_heads=8,
    delta_k_dim=32,
    delta_v_dim=32,
    **SHARED,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_formula_agrees_with_the_compiler(name, rank):
  config = CONFIGS[name]
  model = make_model(config)
  axes = model.axes()
  like = jax.eval_shape(
    model.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32)
  )
  if rank:
    adapters = LoraConfig(rank=rank)
    made = jax.eval_shape(
      lambda tree: lora.init(tree, axes, adapters, jax.random.key(0)), like
    )
    like = {**like, **made}
    axes = {**axes, **lora.lora_axes(axes, adapters)}
  learner = Learner(
    hidden_fn=model.hidden,
    head_fn=model.lm_head_weight,
    vocab_size=config.vocab_size,
    config=TrainConfig(),
    mesh=sharding.make_mesh(MeshConfig()),
    axes=axes,
  )
  size = dict(rows=4, length=64, width=32)
  compiled = learner.lower(like, **size).compile()
  formula = plan_flops.step_flops(
    config, **size, remat=False, chunked=False, adapters=rank > 0
  )
  counted = compiled.cost_analysis()["flops"]
  # What is left out, norms and elementwise work, is a few percent. Below the
  # lowest adapters nothing is pulled back, which shows where one layer is all.
  least, most = (0.93, 1.1) if rank else (1.0, 1.06)
  assert least <= counted / formula["total"] <= most


@pytest.mark.parametrize(
  ("config", "millions"), [(qwen3_5_9b(), 8954), (qwen3_6_27b(), 26896)]
)
def test_matrices_are_nearly_all_weights(config, millions):
  layers, head = plan_flops.matrix_sizes(config)
  assert (layers + 2 * head) / 1e6 == pytest.approx(millions, rel=1e-3)


def test_half_and_an_eighth_of_the_scores_are_made():
  assert plan_flops.attended_pairs(512) == 512**2
  assert plan_flops.attended_pairs(16384) / 16384**2 == pytest.approx(5 / 8)
