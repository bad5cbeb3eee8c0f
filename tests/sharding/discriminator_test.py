"""The head on meshes of eight forced devices equals that on a single one."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import dataclasses, json, pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import MeshConfig
from varl_jax.models import sharding
from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.rl.batch import pack
from varl_jax.rl.discriminator import Discriminator, tier_comparisons
from varl_jax.types import Rollout

model = Llama(LlamaConfig(
  vocab_size=16, hidden_size=16, intermediate_size=32, num_layers=2,
  num_heads=8, num_kv_heads=4, head_dim=4,
))
params = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
rng = np.random.default_rng(0)
rollouts = []
for row in range(6):
  size = int(rng.integers(1, 20))
  rollouts.append(Rollout(
    task_id="t", sample=row, answer="", mask=(1,) * size, finish="stop",
    tokens=tuple(rng.integers(0, 16, size).tolist()), logprobs=(0.0,) * size,
  ))
batch = pack(
  [(1, 2, 3)] * 6, rollouts, advantages=np.zeros(6), group_ids=[0] * 3 + [1] * 3
)
pairs = tier_comparisons([0, 1, 2, 1, 0, 1], [0, 0, 0, 1, 1, 1])

def run(mesh, tree):
  made = Discriminator(hidden_fn=model.hidden, mesh=mesh)
  state = made.init(16)
  features = made.features(tree, batch, rows=4)
  for _ in range(3):
    state, found = made.update(state, features, pairs)
  return made, state, made.quality(state, features), found

_, _, plain, measured = run(None, params)
result = {}
for shape in ((8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 8)):
  mesh = sharding.make_mesh(
    MeshConfig(**dict(zip(("data", "fsdp", "tensor"), shape)))
  )
  where = sharding.shardings(model.axes(), params, mesh)
  made, state, quality, found = run(mesh, sharding.place(params, where))
  checkpoints = Checkpoints(folder=pathlib.Path(sys.argv[1]) / str(shape))
  checkpoints.save(1, state, {})
  again, _ = checkpoints.restore(1, made.init(16))
  again, _ = made.update(again, made.features(params, batch), pairs)
  result["x".join(map(str, shape))] = {
    "quality": float(np.abs(quality - plain).max()),
    "loss": abs(found["discriminator/loss"] - measured["discriminator/loss"]),
    "updates": int(again.updates),
    "split": state.head["kernel"].sharding.shard_shape((16,)),
  }
print(json.dumps(result))
"""


@pytest.mark.slow
def test_the_head_on_a_mesh_is_the_head(tmp_path):
  flags = "--xla_force_host_platform_device_count=8"
  done = subprocess.run(
    [sys.executable, "-c", SCRIPT, str(tmp_path)],
    env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  found = json.loads(done.stdout.splitlines()[-1])
  splits = {"8x1x1": [16], "2x2x2": [8], "1x8x1": [2], "1x1x8": [16]}
  assert found.keys() == splits.keys()
  for shape, parts in found.items():
    assert parts["quality"] <= 1e-4, (shape, parts)
    assert parts["loss"] <= 1e-5, (shape, parts)
    assert parts["updates"] == 4
    assert parts["split"] == splits[shape], shape
