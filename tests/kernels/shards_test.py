"""Kernels give the same on a mesh of eight devices, in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

CASES = pathlib.Path(__file__).with_name("shard_cases.py")
FLAGS = (
  "--xla_force_host_platform_device_count=8",
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
)


@pytest.fixture(scope="module")
def found():
  done = subprocess.run(
    [sys.executable, str(CASES)],
    env={
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": " ".join(FLAGS),
      "NPROC": "64",
    },
    capture_output=True,
    text=True,
    timeout=290,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "tpu", "gpu"])
def test_shards_of_the_vocabulary_draw_the_same_tokens(found, backend):
  assert found["sampled"][backend]["same"]
  assert found["sampled"][backend]["logprob"] <= 1e-5


@pytest.mark.slow
def test_shards_of_the_vocabulary_score_and_pull_the_same(found):
  assert found["scored"] <= 1e-5


@pytest.mark.slow
def test_shards_of_rows_and_heads_step_the_same_memory(found):
  assert found["stepped"] <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("part", ["draw", "step", "score"])
def test_what_runs_on_a_mesh_of_tpus_calls_its_kernel(found, part):
  assert found["wired"][part] == 1
