"""The learner on meshes equals a single device; one process for a model."""

import json
import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

from varl_jax.config import ConfigError, MeshConfig
from varl_jax.models import sharding

CASES = pathlib.Path(__file__).with_name("mesh_cases.py")


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def found(request, tmp_path_factory):
  """The numbers of one model's cases."""
  folder = tmp_path_factory.mktemp("mesh")
  flags = "--xla_force_host_platform_device_count=8"
  done = subprocess.run(
    [sys.executable, str(CASES), request.param, str(folder)],
    env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    capture_output=True,
    text=True,
    timeout=1500,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_meshes_equal_a_single_device(found):
  for shape, parts in found["meshes"].items():
    for name, distance in parts.items():
      if name not in ("specs",):
        assert distance <= 1e-5, (shape, name, distance)


@pytest.mark.slow
def test_weights_and_moments_are_split_alike(found):
  specs = found["meshes"]["2x2x2"]["specs"]
  heads = {path: spec for path, spec in specs.items() if "lm_head" in path}
  assert len(heads) == 3, sorted(specs)
  assert all(spec == [["tensor"], ["fsdp"]] for spec in heads.values()), heads


@pytest.mark.slow
def test_a_checkpoint_goes_on_on_another_mesh(found):
  assert max(found["restored"].values()) <= 1e-5


@pytest.mark.slow
def test_adapters_alone_are_trained_on_a_mesh(found):
  assert found["lora"]["collections"] == ["lora"]
  assert found["lora"]["moved"] > 0
  assert max(found["lora"]["distances"].values()) <= 1e-5


@pytest.mark.slow
def test_a_sampler_on_a_mesh_draws_the_same_tokens(found):
  assert found["sampled"]["equal"]
  assert found["sampled"]["count"] > 8


@pytest.mark.slow
def test_no_array_holds_all_logits(found):
  assert found["logits"]["chunk"] and not found["logits"]["whole"]


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 1024)])
def test_a_mesh_that_does_not_fit_is_refused(shape):
  config = MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2])
  with pytest.raises(ConfigError, match="whose product is 1"):
    sharding.make_mesh(config, [object()])


def test_axes_that_do_not_divide_are_dropped_from_the_end():
  sizes = {"data": 2, "fsdp": 4, "tensor": 8}
  assert sharding.spec(
    ("batch", None), (8, 3), sizes
  ) == sharding.PartitionSpec(("data", "fsdp"), None)
  assert sharding.spec(("batch",), (6,), sizes)[0] in ("data", ("data",))
  assert sharding.spec(("kv_heads",), (4,), sizes)[0] is None
  # An axis of the mesh is used once: rows have taken fsdp.
  assert sharding.spec(("batch", "embed"), (8, 4), sizes)[1] is None


def test_a_tuple_of_the_wrong_rank_or_name_is_refused():
  with pytest.raises(ValueError, match="3 logical axes"):
    sharding.constrain(jnp.ones((2, 2)), "batch", "length", "embed")
  with pytest.raises(ValueError, match="Unknown logical axis 'width'"):
    sharding.constrain(jnp.ones(2), "width")
