r"""Trains the arms of the story world on many seeds and compares them.

    python -m experiments.story_arms --first_seed=100 --seeds=16 \
        --workdir=/tmp/story_arms --out=experiments/results/story_arms.json

Runs are independent processes of one thread each, `--jobs` at a time. A run
that is complete is not repeated, one that was cut resumes, so the command can
be stopped and started again. Besides the JSON a Markdown table is written.
"""

import concurrent.futures
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from importlib import metadata

from absl import app, flags

from varl_jax.metrics import read_metrics

ARMS = ("generation_only", "co_evolve_only", "rri")
PAIRS = (
  ("rri", "generation_only"),
  ("rri", "co_evolve_only"),
  ("co_evolve_only", "generation_only"),
)

_SEEDS = flags.DEFINE_integer("seeds", 16, "Seeds an arm.", lower_bound=1)
_FIRST = flags.DEFINE_integer("first_seed", 0, "The first seed.")
_STEPS = flags.DEFINE_integer("steps", 40, "Training steps a run.")
_JOBS = flags.DEFINE_integer("jobs", os.cpu_count() or 1, "Runs at a time.")
_ARMS = flags.DEFINE_list("arms", list(ARMS), "Arms to run.")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the runs.", required=True
)
_OUT = flags.DEFINE_string(
  "out", "experiments/results/story_arms.json", "The result."
)


def train(arm: str, seed: int) -> pathlib.Path:
  """Runs one arm on one seed in a process of its own, one thread."""
  workdir = pathlib.Path(_WORKDIR.value) / f"{arm}-{seed}"
  command = [
    sys.executable,
    "-m",
    "varl_jax.main",
    f"--config=configs/story.py:{arm}",
    f"--config.seed={seed}",
    f"--config.train.steps={_STEPS.value}",
    f"--workdir={workdir}",
  ]
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": (
      "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    ),
    "OMP_NUM_THREADS": "1",
  }
  workdir.mkdir(parents=True, exist_ok=True)
  with open(workdir / "log.txt", "a") as log:
    done = subprocess.run(
      command, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
  if done.returncode:
    tail = (workdir / "log.txt").read_text()[-600:]
    raise RuntimeError(f"{arm} on seed {seed} failed:\n{tail}")
  print(f"{arm} on seed {seed} is done", flush=True)
  return workdir


def summary(workdir: pathlib.Path) -> dict[str, float]:
  """What the table keeps of a run; means over the last five steps."""
  records = read_metrics(workdir)
  steps = [r for r in records if r["step"] > 0]
  first, last = steps[:2], steps[-5:]

  def mean(rows: list[dict], key: str) -> float:
    found = [row[key] for row in rows if key in row]
    return statistics.fmean(found) if found else math.nan

  validated = [r for r in records if "eval/score" in r]
  return {
    "hidden": validated[-1]["eval/score"],
    "hidden_non_overlapping": validated[-1]["eval/non_overlapping"],
    "hidden_start": validated[0]["eval/score"],
    "hidden_best": max(r["eval/score"] for r in validated),
    "train_reward": mean(last, "reward/mean"),
    "train_reward_start": mean(first, "reward/mean"),
    "exploit_rate": mean(last, "exploit/rate"),
    "lead_before_admission": mean(steps, "admission/lead_before"),
    "lead_after_admission": mean(steps, "admission/lead_after"),
    "lead_before_patch": mean(steps, "patch/lead_before"),
    "lead_after_patch": mean(steps, "patch/lead_after"),
    "group_before_patch": mean(steps, "patch/group_before"),
    "group_after_patch": mean(steps, "patch/group_after"),
  }


def paired(one: list[float], two: list[float]) -> dict[str, float]:
  """Mean and standard error of the differences over common seeds."""
  gaps = [a - b for a, b in zip(one, two, strict=True)]
  error = (
    statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
  )
  return {"mean": statistics.fmean(gaps), "standard_error": error}


def _cell(values: list[float]) -> str:
  kept = [v for v in values if not math.isnan(v)]
  if not kept:
    return "-"
  if len(kept) < 2:
    return f"{kept[0]:.3f}"
  error = statistics.stdev(kept) / math.sqrt(len(kept))
  return f"{statistics.fmean(kept):.3f} +- {error:.3f}"


def table(result: dict) -> str:
  """The result as Markdown: a row a measure, a column an arm."""
  arms = result["arms"]
  lines = [
    f"Story world, seeds {result['seeds'][0]} to {result['seeds'][-1]}, mean"
    " +- standard error over seeds. An offline simulation.",
    "",
    "| | " + " | ".join(arms) + " |",
    "|---|" + "---|" * len(arms),
  ]
  for key in next(iter(arms.values())):
    cells = " | ".join(_cell(arm[key]) for arm in arms.values())
    lines.append(f"| {key} | {cells} |")
  lines += ["", "| hidden, paired difference | mean | standard error |"]
  lines.append("|---|---|---|")
  for name, gap in result["paired"].items():
    lines.append(
      f"| {name} | {gap['mean']:+.3f} | {gap['standard_error']:.3f} |"
    )
  return "\n".join(lines) + "\n"


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  seeds = list(range(_FIRST.value, _FIRST.value + _SEEDS.value))
  order = [(arm, seed) for seed in seeds for arm in _ARMS.value]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as jobs:
    folders = list(jobs.map(lambda run: train(*run), order))
  rows = {run: summary(f) for run, f in zip(order, folders, strict=True)}
  arms = {
    arm: {
      key: [rows[arm, seed][key] for seed in seeds]
      for key in rows[arm, seeds[0]]
    }
    for arm in _ARMS.value
  }
  result = {
    "arms": arms,
    "paired": {
      f"{a} - {b}": paired(arms[a]["hidden"], arms[b]["hidden"])
      for a, b in PAIRS
      if a in arms and b in arms
    },
    "seeds": seeds,
    "steps": _STEPS.value,
    "command": (
      f"python -m experiments.story_arms --first_seed={_FIRST.value}"
      f" --seeds={_SEEDS.value} --steps={_STEPS.value}"
    ),
    "versions": {
      "python": platform.python_version(),
      **{name: metadata.version(name) for name in ("jax", "flax", "optax")},
    },
  }
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(_without_nan(result), indent=1)
  out.write_text(text + "\n")
  out.with_suffix(".md").write_text(table(result))
  print(table(result))


def _without_nan(value):
  """NaN, for what an arm does not have, becomes null."""
  if isinstance(value, dict):
    return {key: _without_nan(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_without_nan(item) for item in value]
  if isinstance(value, float) and math.isnan(value):
    return None
  return value


if __name__ == "__main__":
  app.run(main)
