"""What a comparison of arms keeps of its runs, and its table.

Common to `story_arms` and `compare_arms`. Every function reads what runs wrote
and trains nothing, apart from `train`, which starts a run.
"""

import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from absl import app, flags

from experiments import story_overlap
from varl_jax.metrics import read_metrics
from varl_jax.story import expert
from varl_jax.story.requests import read_request

SEEDS = flags.DEFINE_integer("seeds", 16, "Seeds an arm.", lower_bound=1)
FIRST = flags.DEFINE_integer("first_seed", 0, "The first seed.")
STEPS = flags.DEFINE_integer("steps", 40, "Training steps.", lower_bound=1)
JOBS = flags.DEFINE_integer("jobs", os.cpu_count() or 1, "Runs at a time.")
ARMS = flags.DEFINE_list("arms", [], "Arms to run; all if none is named.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the runs.")
OUT = flags.DEFINE_string("out", "", "The result; a default if empty.")

# So that runs side by side do not compete for the cores.
ONE_THREAD = {
  "JAX_PLATFORMS": "cpu",
  "XLA_FLAGS": (
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
  ),
  "OMP_NUM_THREADS": "1",
}


def seeds() -> list[int]:
  """Those of the flags."""
  return list(range(FIRST.value, FIRST.value + SEEDS.value))


def workdir() -> pathlib.Path:
  """The folder of the runs.

  Raises:
    app.UsageError: none was given.
  """
  if not WORKDIR.value:
    raise app.UsageError("Give --workdir, the folder of the runs.")
  return pathlib.Path(WORKDIR.value)


def command_flags() -> str:
  """The flags that a result depends on, for whoever repeats it."""
  return (
    f"--first_seed={FIRST.value} --seeds={SEEDS.value} --steps={STEPS.value}"
    " --workdir=FOLDER"
  )


def train(
  workdir: pathlib.Path,
  configured: Sequence[str],
  *,
  steps: int,
  environment: Mapping[str, str],
) -> pathlib.Path:
  """Trains in a process of its own, unless the folder holds the whole run.

  Args:
    workdir: of the run; one that was cut goes on.
    configured: flags of `varl_jax.main` that say what is run.
    steps: training steps.
    environment: variables beside those there are.

  Raises:
    RuntimeError: the run failed; its log is named with the last of it.
  """
  done = read_metrics(workdir) if workdir.exists() else []
  if done and done[-1]["step"] == steps and finished(workdir):
    return workdir
  command = [
    sys.executable,
    "-m",
    "varl_jax.main",
    *configured,
    f"--config.train.steps={steps}",
    f"--workdir={workdir}",
  ]
  workdir.mkdir(parents=True, exist_ok=True)
  with open(workdir / "log.txt", "a") as log:
    ended = subprocess.run(
      command,
      env=os.environ | environment,
      stdout=log,
      stderr=subprocess.STDOUT,
    )
  if ended.returncode:
    tail = (workdir / "log.txt").read_text()[-600:]
    raise RuntimeError(f"The run in {workdir} failed:\n{tail}")
  print(f"{workdir.name} is done", flush=True)
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
    "hidden": mean(validated[-1:], "eval/score"),
    "hidden_non_overlapping": mean(validated[-1:], "eval/non_overlapping"),
    "hidden_start": mean(validated[:1], "eval/score"),
    "hidden_best": max((r["eval/score"] for r in validated), default=math.nan),
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


def finished(workdir: pathlib.Path) -> bool:
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


def cell(values: list[float | None]) -> str:
  """Mean +- standard error of what there is, "-" for nothing."""
  kept = [v for v in values if v is not None]
  if not kept:
    return "-"
  if len(kept) < 2:
    return f"{kept[0]:.3f}"
  error = statistics.stdev(kept) / math.sqrt(len(kept))
  return f"{statistics.fmean(kept):.3f} +- {error:.3f}"


def table(result: dict) -> str:
  """The result as Markdown: a row a measure, a column an arm.

  What only a simulated setting has (its hidden expert's word on pairs) is left
  out where the result lacks it.
  """
  arms = result["arms"]
  simulated = " An offline simulation." if result.get("simulated", True) else ""
  lines = [
    f"{result.get('title', 'Story world')}, seeds {result['seeds'][0]} to"
    f" {result['seeds'][-1]}, mean +- standard error over seeds.{simulated}",
    "",
    "| | " + " | ".join(arms) + " |",
    "|---|" + "---|" * len(arms),
  ]
  for key in next(iter(arms.values())):
    cells = " | ".join(cell(arm[key]) for arm in arms.values())
    lines.append(f"| {key} | {cells} |")
  lines += ["", "| hidden, paired difference | mean | standard error |"]
  lines.append("|---|---|---|")
  for name, gap in result["paired"].items():
    error = gap["standard_error"]
    shown = "-" if error is None else f"{error:.3f}"
    lines.append(f"| {name} | {gap['mean']:+.3f} | {shown} |")
  return "\n".join(lines + _pair_lines(result)) + "\n"


def _pair_lines(result: dict) -> list[str]:
  if not result.get("pair_correctness"):
    return []
  lines = ["", "| exploit pairs of the solver | pairs | better by the expert |"]
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
  return lines


def referee_agreement() -> dict[str, float]:
  """How often the story world's referee agrees with its expert."""
  texts = story_overlap.draw(4000, seed=0)
  return {
    "all kinds of text": story_overlap.referee_agreement(
      story_overlap.random_pairs(texts, seed=1)
    ),
    "answers of the warm policy": story_overlap.referee_agreement(
      story_overlap.policy_pairs(64, seed=1)
    ),
  }


def versions() -> dict[str, str]:
  """Of what decides the numbers."""
  return {
    "python": platform.python_version(),
    **{name: metadata.version(name) for name in ("jax", "flax", "optax")},
  }


def write(result: dict, out: pathlib.Path, text: str) -> None:
  """Writes the JSON, and its table beside it."""
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(json.dumps(result, indent=1) + "\n")
  out.with_suffix(".md").write_text(text)


def without_nan(value: Any) -> Any:
  """NaN, for what an arm does not have, becomes null."""
  if isinstance(value, dict):
    return {key: without_nan(item) for key, item in value.items()}
  if isinstance(value, list):
    return [without_nan(item) for item in value]
  if isinstance(value, float) and math.isnan(value):
    return None
  return value
