"""The learner on meshes equals a single device; one process for a model."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Final

import jax
import jax.numpy as jnp
import pytest

from varl_jax.config import ConfigError, MeshConfig
from varl_jax.models import sharding

CASES: Final = pathlib.Path(__file__).with_name("mesh_cases.py")
MODELS: Final = ("llama", "qwen3_5")
# Eight devices and programs that are compiled fast rather than well.
FLAGS: Final = (
  "--xla_force_host_platform_device_count=8",
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
  # Half of the time, and unknown to versions that have no other emitters.
  *(
    ("--xla_cpu_use_fusion_emitters=false",)
    if jax.__version_info__ < (0, 11)
    else ()
  ),
)
ENVIRONMENT: Final = {
  "JAX_PLATFORMS": "cpu",
  "XLA_FLAGS": " ".join(FLAGS),
  # A triangular solve shares its rows out to the pool that it runs in, and
  # waits there, as collectives do. With one thread a device, the default, all
  # of them come to wait: the program hangs.
  "NPROC": "64",
  # Its solves would otherwise each start threads that spin for one another.
  "OPENBLAS_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
  """A process a model, side by side, and where each writes."""
  folder = tmp_path_factory.mktemp("mesh")
  running = {}
  for model in MODELS:
    place = folder / model
    place.mkdir()
    with open(place / "out", "w") as out, open(place / "err", "w") as err:
      running[model] = (
        place,
        subprocess.Popen(
          [sys.executable, str(CASES), model, str(place / "checkpoints")],
          env={**os.environ, **ENVIRONMENT},
          stdout=out,
          stderr=err,
        ),
      )
  yield running
  for _, process in running.values():
    process.kill()
    process.wait()


@pytest.fixture(scope="module", params=MODELS)
def found(request, started):
  """The numbers of one model's cases."""
  place, process = started[request.param]
  code = process.wait(timeout=1500)
  assert code == 0, (place / "err").read_text()[-4000:]
  return json.loads((place / "out").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_meshes_equal_a_single_device(found):
  assert len(found["meshes"]) == 7
  for shape, parts in found["meshes"].items():
    for name, distance in parts.items():
      if name != "specs":
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


def test_positions_take_what_heads_leave():
  sizes = {"data": 1, "fsdp": 2, "tensor": 4}
  names = ("batch", "length", "heads", None)
  # Heads that divide take the axis, though they stand behind.
  assert sharding.spec(names, (2, 8, 4, 3), sizes)[1] is None
  assert sharding.spec(names, (2, 8, 3, 3), sizes)[1] in ("tensor", ("tensor",))
  between = sharding.spec(("batch", "length", None), (2, 8, 3), sizes)
  assert between[1] in ("tensor", ("tensor",))


def test_a_tuple_of_the_wrong_rank_or_name_is_refused():
  with pytest.raises(ValueError, match="3 logical axes"):
    sharding.constrain(jnp.ones((2, 2)), "batch", "length", "embed")
  with pytest.raises(ValueError, match="Unknown logical axis 'width'"):
    sharding.constrain(jnp.ones(2), "width")
