r"""Trains the arms of the story world on many seeds and compares them.

    python -m experiments.story_arms --first_seed=200 --seeds=16 \
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
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from absl import app, flags

from experiments import story_overlap
from varl_jax.metrics import read_metrics
from varl_jax.story import expert
from varl_jax.story.requests import read_request

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
  done = read_metrics(workdir) if workdir.exists() else []
  if done and done[-1]["step"] == _STEPS.value and _evidence(workdir):
    return workdir
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


def _evidence(workdir: pathlib.Path) -> bool:
  """Whether the run got to its very end, where the evidence is exported."""
  return (workdir / "evidence.jsonl").exists()


def pair_correctness(workdirs: Sequence[pathlib.Path]) -> dict[str, float]:
  """How often the "better" answer of a case is better by the hidden checks.

  Of the solver's own pairs alone; ties count as not better. The most extreme of
  noisy rankings are picked, so this is far below the referee's agreement.
  """
  better = total = 0
  for workdir in workdirs:
    for line in (workdir / "evidence.jsonl").read_text().splitlines():
      record = json.loads(line)
      if record["source"] != "on_policy":
        continue
      request = read_request(record["task"]["prompt"][-1]["content"])
      honest, exploit = (
        expert.expert_score(
          expert.expert_checks(request, record[side]["answer"])
        )
        for side in ("honest", "exploit")
      )
      total += 1
      better += honest > exploit
  return {"pairs": total, "share": better / total if total else math.nan}


def curves(workdirs: Sequence[pathlib.Path]) -> dict[str, dict[str, list]]:
  """Mean and standard error over seeds of what the figure shows, by step."""
  runs = [read_metrics(workdir) for workdir in workdirs]
  found = {}
  for key in ("reward/mean", "eval/score"):
    columns = [
      [r[key] for r in rows if key in r] for rows in zip(*runs, strict=True)
    ]
    kept = [(i, c) for i, c in enumerate(columns) if c]
    found[key] = {
      "step": [runs[0][i]["step"] for i, _ in kept],
      "mean": [statistics.fmean(c) for _, c in kept],
      "standard_error": [
        statistics.stdev(c) / math.sqrt(len(c)) if len(c) > 1 else 0.0
        for _, c in kept
      ],
    }
  return found


def paired(one: list[float], two: list[float]) -> dict[str, float]:
  """Mean and standard error of the differences over common seeds."""
  gaps = [a - b for a, b in zip(one, two, strict=True)]
  error = (
    statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
  )
  return {"mean": statistics.fmean(gaps), "standard_error": error}


def _cell(values: list[float | None]) -> str:
  kept = [v for v in values if v is not None]
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
  lines += [
    "",
    "| exploit pairs of the solver | pairs | better by the expert |",
  ]
  lines.append("|---|---|---|")
  for name, found in result["pair_correctness"].items():
    share = "-" if found["share"] is None else f"{found['share']:.2f}"
    lines.append(f"| {name} | {found['pairs']} | {share} |")
  lines += [
    "",
    "| referee agrees with the expert on clear pairs | |",
    "|---|---|",
  ]
  for name, share in result["referee_agreement"].items():
    lines.append(f"| {name} | {share:.2f} |")
  return "\n".join(lines) + "\n"


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  seeds = list(range(_FIRST.value, _FIRST.value + _SEEDS.value))
  order = [(arm, seed) for seed in seeds for arm in _ARMS.value]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as jobs:
    folders = list(jobs.map(lambda run: train(*run), order))
  by_run = dict(zip(order, folders, strict=True))
  arms, drawn = {}, {}
  for arm in _ARMS.value:
    rows = [summary(by_run[arm, seed]) for seed in seeds]
    arms[arm] = {key: [row[key] for row in rows] for key in rows[0]}
    drawn[arm] = curves([by_run[arm, seed] for seed in seeds])
  texts = story_overlap.draw(4000, seed=0)
  result = {
    "arms": arms,
    "paired": {
      f"{a} - {b}": paired(arms[a]["hidden"], arms[b]["hidden"])
      for a, b in PAIRS
      if a in arms and b in arms
    },
    "pair_correctness": {
      arm: pair_correctness([by_run[arm, seed] for seed in seeds])
      for arm in _ARMS.value
    },
    "referee_agreement": {
      "all kinds of text": story_overlap.referee_agreement(
        story_overlap.random_pairs(texts, seed=1)
      ),
      "answers of the warm policy": story_overlap.referee_agreement(
        story_overlap.policy_pairs(64, seed=1)
      ),
    },
    "curves": drawn,
    "seeds": seeds,
    "steps": _STEPS.value,
    "command": (
      f"python -m experiments.story_arms --first_seed={_FIRST.value}"
      f" --seeds={_SEEDS.value} --steps={_STEPS.value} --workdir=FOLDER"
    ),
    "versions": {
      "python": platform.python_version(),
      **{name: metadata.version(name) for name in ("jax", "flax", "optax")},
    },
  }
  result = _without_nan(result)
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(json.dumps(result, indent=1) + "\n")
  out.with_suffix(".md").write_text(table(result))
  print(table(result))


def _without_nan(value: Any) -> Any:
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
