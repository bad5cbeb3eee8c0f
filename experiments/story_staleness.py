r"""What sampling ahead gains and costs in the story world with a slow judge.

    python -m experiments.story_staleness --first_seed=600 --seeds=16 \
        --workdir=/tmp/staleness

Trains the story policy with `train.staleness` 0, 1 and 2 and a judge whose
every call takes 3 s, and compares the hidden score, the wall time of a step and
the longest stage. The stages are the judge, the service's tasks, its repairs,
and the device, which samples, updates, answers the held-out tasks and writes
checkpoints one after another.

A run is a process of one thread; `--jobs` go on at a time, and more than there
are cores would make each slower. What is complete is not repeated, what was cut
goes on, so the command can be stopped and started again. Besides the JSON a
Markdown table is written.
"""

import concurrent.futures
import math
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from absl import app, flags

from experiments import arm_results, story_run
from experiments.arm_results import (
  ONE_THREAD,
  finished,
  paired,
  versions,
  without_nan,
  write,
)
from experiments.story_run import JUDGE_S
from varl_jax.metrics import read_metrics
from varl_jax.timeline import Span, read_timeline

RESULT: Final = "experiments/results/story_staleness.json"
# Times the median step, above which a step is left out of the times.
PAUSE: Final = 4.0
DEVICE: Final = ("sample", "update", "examine", "checkpoint")
OTHERS: Final = ("judge", "tasks", "repair")

_LEVELS = flags.DEFINE_list("levels", ["0", "1", "2"], "Values of staleness.")
flags.adopt_module_key_flags(arm_results)
flags.adopt_module_key_flags(story_run)


def run(level: int, seed: int) -> pathlib.Path:
  """Trains one run in a process of its own, unless it is complete.

  Raises:
    RuntimeError: the run failed; the last of its log is shown.
  """
  steps = arm_results.STEPS.value
  folder = arm_results.workdir() / f"staleness{level}-{seed}-{steps}"
  if finished(folder):
    return folder
  folder.mkdir(parents=True, exist_ok=True)
  command = [
    sys.executable,
    "-m",
    "experiments.story_run",
    "--config=configs/story.py",
    f"--config.seed={seed}",
    f"--config.train.steps={steps}",
    f"--config.train.staleness={level}",
    # So that a call's latency is all that a judge costs.
    "--config.judge.concurrency=4096",
    f"--judge_s={JUDGE_S.value}",
    f"--workdir={folder}",
  ]
  with open(folder / "log.txt", "a") as log:
    ended = subprocess.run(
      command,
      env=os.environ | ONE_THREAD,
      stdout=log,
      stderr=subprocess.STDOUT,
    )
  if ended.returncode:
    tail = (folder / "log.txt").read_text()[-600:]
    raise RuntimeError(f"The run in {folder} failed:\n{tail}")
  print(f"{folder.name} is done", flush=True)
  return folder


def times(spans: Sequence[Span]) -> dict[str, float]:
  """Seconds a step: of the wall, and of each stage.

  Means over all steps but those that took over `PAUSE` times the median: a
  program was compiled in them, or the run was stopped.

  Args:
    spans: of one run, all finished.

  Returns:
    `wall`, from the end of one update to that of the next; `device`, `judge`,
    `tasks` and `repair`; `longest` of these four; `ratio`, the wall by it.
  """
  ends = {s.step: _end(s) for s in spans if s.stage == "update"}
  walls = {
    step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends
  }
  typical = statistics.median(walls.values())
  kept = {step for step, wall in walls.items() if wall <= PAUSE * typical}
  sums = dict.fromkeys((*DEVICE, *OTHERS), 0.0)
  for span in spans:
    if span.step in kept and span.stage in sums:
      sums[span.stage] += _end(span) - span.start
  found = {name: sums[name] / len(kept) for name in OTHERS}
  found["device"] = sum(sums[name] for name in DEVICE) / len(kept)
  longest = max(found.values())
  wall = statistics.fmean(walls[step] for step in kept)
  return {"wall": wall, **found, "longest": longest, "ratio": wall / longest}


def _end(span: Span) -> float:
  assert span.end is not None
  return span.end


def summary(folder: pathlib.Path) -> dict[str, float]:
  """What the table keeps of a run."""
  records = read_metrics(folder)
  validated = [r["eval/score"] for r in records if "eval/score" in r]
  found = times(read_timeline(folder))
  ages = [r["staleness/mean"] for r in records if "staleness/mean" in r]
  return {
    "hidden": validated[-1],
    "hidden_start": validated[0],
    "reward": statistics.fmean(
      r["reward/mean"] for r in records[-5:] if "reward/mean" in r
    ),
    "age": statistics.fmean(ages) if ages else 0.0,
    "steps_per_minute": 60 / found["wall"],
    **found,
  }


_ROWS: Final = (
  ("hidden", "hidden score, last checkpoint", 3),
  ("hidden_start", "hidden score before", 3),
  ("reward", "own reward, last steps", 3),
  ("age", "updates a sample is behind", 2),
  ("steps_per_minute", "steps a minute", 2),
  ("wall", "wall time a step, s", 2),
  ("device", "device, s", 2),
  ("judge", "judge, s", 2),
  ("tasks", "tasks, s", 2),
  ("repair", "repair, s", 2),
  ("ratio", "wall time by the longest stage", 2),
)


def table(result: dict[str, Any]) -> str:
  """The result as Markdown: a row a measure, a column a staleness."""
  levels = result["levels"]
  seeds = result["seeds"]
  lines = [
    f"Story world, a judge of {result['judge_s']:g} s a call, seeds"
    f" {seeds[0]} to {seeds[-1]}, {result['steps']} steps, mean +- standard"
    " error over seeds. An offline simulation.",
    "",
    "| staleness | " + " | ".join(levels) + " |",
    "|---|" + "---|" * len(levels),
  ]
  for key, label, digits in _ROWS:
    cells = [_cell(runs[key], digits) for runs in levels.values()]
    lines.append(f"| {label} | " + " | ".join(cells) + " |")
  for name, gap in result["paired"].items():
    error = gap["standard_error"]
    shown = "" if error is None else f" +- {error:.3f}"
    lines += ["", f"Hidden score, {name}, paired: {gap['mean']:+.3f}{shown}."]
  return "\n".join(lines) + "\n"


def _cell(values: Sequence[float], digits: int) -> str:
  mean = f"{statistics.fmean(values):.{digits}f}"
  if len(values) < 2:
    return mean
  error = statistics.stdev(values) / math.sqrt(len(values))
  return f"{mean} +- {error:.{digits}f}"


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  seeds = arm_results.seeds()
  order = [(int(level), seed) for seed in seeds for level in _LEVELS.value]
  with concurrent.futures.ThreadPoolExecutor(arm_results.JOBS.value) as jobs:
    folders = dict(zip(order, jobs.map(lambda r: run(*r), order), strict=True))
  levels = {}
  for level in _LEVELS.value:
    rows = [summary(folders[int(level), seed]) for seed in seeds]
    levels[level] = {key: [row[key] for row in rows] for key in rows[0]}
  result = without_nan(
    {
      "levels": levels,
      "paired": {
        f"{level} - 0": paired(levels[level]["hidden"], levels["0"]["hidden"])
        for level in levels
        if level != "0" and "0" in levels
      },
      "judge_s": JUDGE_S.value,
      "seeds": seeds,
      "steps": arm_results.STEPS.value,
      "jobs": arm_results.JOBS.value,
      "command": (
        f"python -m experiments.story_staleness {arm_results.command_flags()}"
      ),
      "versions": versions(),
    }
  )
  write(result, pathlib.Path(arm_results.OUT.value or RESULT), table(result))
  print(table(result))


if __name__ == "__main__":
  app.run(main)
