"""Every kernel at the models' sizes becomes a program of its accelerator."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from experiments.kernel_cases import MODELS, OPERATIONS, make_case

ROWS = 256
VOCAB = 248320
CALLS = {
  "tpu": ("tpu_custom_call",),
  "cuda": ("xla.gpu.triton", "triton_kernel_call"),
}


# From jax 0.11 on; its successor compiles for Hopper and newer alone.
@pytest.mark.filterwarnings(
  "ignore:The Pallas Triton backend is deprecated:DeprecationWarning"
)
@pytest.mark.parametrize("platform", CALLS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_kernels_lower_and_hold_no_logits(model, operation, platform):
  backend = "gpu" if platform == "cuda" else "tpu"
  case = make_case(operation, model, backend, rows=ROWS)
  run = jax.jit(case.run, donate_argnums=case.donated)
  lowered = run.trace(*case.args).lower(lowering_platforms=(platform,))
  text = lowered.as_text()
  assert any(call in text for call in CALLS[platform])
  assert f"x{VOCAB}x" not in text.replace(f"tensor<1x{VOCAB}xf32>", "")
  if operation == "delta_decode":
    # The memory that comes in is the one that goes out.
    assert "output_operand_alias" in text


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_compile_for_a_tpu(operation):
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu, of the extra tpu, is not installed")
  done = subprocess.run(
    [
      *(sys.executable, "-m", "experiments.speed.kernels"),
      *("--topology=v5e:2x2", f"--operation={operation}"),
      "--kernel_model=qwen3_5_9b",
    ],
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=280,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  [line] = map(json.loads, done.stdout.splitlines())
  assert line["temporary_bytes"] < 64 * 2**20
  assert line["bytes"] < 1.05 * line["floor_bytes"]
