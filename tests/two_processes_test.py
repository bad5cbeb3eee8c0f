"""A run of two processes: the losses of one, and what follows when one dies."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import pytest

from varl_jax.checkpoints import Checkpoints

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEVICES = 8
# Programs that are compiled fast rather than well.
FLAGS = (
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
  # Unknown to versions that have no other emitters.
  *(
    ("--xla_cpu_use_fusion_emitters=false",)
    if jax.__version_info__ < (0, 11)
    else ()
  ),
)
SMALL = (
  "--config.model.max_response=16",
  "--config.train.steps=2",
  "--config.train.tasks_per_step=4",
  "--config.train.minibatch_tasks=2",
  "--config.train.samples=4",
  "--config.train.micro_batch=8",
  "--config.eval.tasks=4",
  "--config.eval.samples=4",
  "--config.eval.interval=2",
  "--config.checkpoint.interval=1",
)


def start(workdir, *, count, mesh, index=0, port=0, dies=""):
  """Starts one process of a run."""
  devices = f"--xla_force_host_platform_device_count={DEVICES // count}"
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": " ".join((devices, *FLAGS)),
    "NPROC": "16",
    "XDG_CACHE_HOME": str(workdir.parent / "cache"),
    "VARL_JAX_FAILPOINT": dies,
  }
  team = (
    f"--coordinator=127.0.0.1:{port}",
    f"--processes={count}",
    f"--process={index}",
  )
  return subprocess.Popen(
    [
      sys.executable,
      "-m",
      "varl_jax.main",
      "--config=configs/story.py",
      f"--workdir={workdir}",
      f"--config.mesh.data={mesh[0]}",
      f"--config.mesh.fsdp={mesh[1]}",
      *SMALL,
      *(team if count > 1 else ()),
    ],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(processes):
  """Exit code and what was said, of each."""
  found = []
  try:
    for process in processes:
      _, said = process.communicate(timeout=800)
      found.append((process.returncode, said))
  finally:
    for process in processes:
      process.kill()
  return found


def pair(workdir, *, mesh, dies=""):
  """Runs two processes; process 1 dies where it is told to."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  settings = {"count": 2, "mesh": mesh, "port": port}
  return finish(
    [
      start(workdir, **settings),
      start(workdir, **settings, index=1, dies=dies),
    ]
  )


def records(workdir):
  return [
    json.loads(line)
    for line in (workdir / "metrics.jsonl").read_text().splitlines()
  ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """One undisturbed process; two, of which one dies, on two meshes."""
  folder = tmp_path_factory.mktemp("runs")
  whole, parts = folder / "whole", folder / "parts"
  [(code, said)] = finish([start(whole, count=1, mesh=(1, 8))])
  assert code == 0, said
  broken = pair(parts, mesh=(2, 4), dies="step/updated@2")
  kept = Checkpoints(folder=parts / "checkpoints").steps()
  resumed = pair(parts, mesh=(8, 1))
  return whole, parts, broken, kept, resumed


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_other_ends_with_one_sentence_when_one_dies(runs):
  _, _, ((code, said), (killed, _)), kept, _ = runs
  assert killed == -9
  assert code == 3
  sentences = [line for line in said.splitlines() if "varl_jax:" in line]
  assert len(sentences) == 1
  assert "Process 1 of 2 is gone" in sentences[0]
  assert "start all again" in sentences[0]
  assert "Traceback" not in said
  assert kept == [1]


@pytest.mark.slow
def test_two_processes_and_other_meshes_give_the_losses_of_one(runs):
  whole, parts, _, _, resumed = runs
  assert [code for code, _ in resumed] == [0, 0], resumed
  expected, found = records(whole), records(parts)
  assert (
    [r["step"] for r in found] == [r["step"] for r in expected] == [0, 1, 2]
  )
  for one, two in zip(expected, found, strict=True):
    for name in ("train/loss", "train/grad_norm"):
      assert two.get(name) == pytest.approx(one.get(name), abs=1e-5)
    for name in ("reward/mean", "eval/score", "rollout/new_tokens"):
      assert two.get(name) == one.get(name)
  assert found[2]["train/tokens"] > 0


@pytest.mark.slow
def test_what_process_0_keeps_is_that_of_one_process(runs):
  whole, parts, *_ = runs
  evidence = [(run / "evidence.jsonl").read_text() for run in (whole, parts)]
  assert evidence[0] == evidence[1]
  assert (parts / "report.html").is_file()
