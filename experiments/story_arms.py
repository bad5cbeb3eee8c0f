r"""Trains the arms of the story world on many seeds and compares them.

    python -m experiments.story_arms --first_seed=200 --seeds=16 \
        --workdir=/tmp/story_arms --out=experiments/results/story_arms.json

Runs are independent processes of one thread each, `--jobs` at a time. A run
that is complete is not repeated, one that was cut resumes, so the command can
be stopped and started again. Besides the JSON a Markdown table is written.
"""

import concurrent.futures
import os
import pathlib

from absl import app, flags

from experiments.arm_results import (
  ONE_THREAD,
  curves,
  pair_correctness,
  paired,
  referee_agreement,
  summary,
  table,
  train,
  versions,
  without_nan,
  write,
)

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


def run(arm: str, seed: int) -> pathlib.Path:
  """Runs one arm on one seed, one thread."""
  return train(
    pathlib.Path(_WORKDIR.value) / f"{arm}-{seed}",
    [f"--config=configs/story.py:{arm}", f"--config.seed={seed}"],
    steps=_STEPS.value,
    environment=ONE_THREAD,
  )


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  seeds = list(range(_FIRST.value, _FIRST.value + _SEEDS.value))
  order = [(arm, seed) for seed in seeds for arm in _ARMS.value]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as jobs:
    folders = list(jobs.map(lambda each: run(*each), order))
  by_run = dict(zip(order, folders, strict=True))
  arms, drawn = {}, {}
  for arm in _ARMS.value:
    rows = [summary(by_run[arm, seed]) for seed in seeds]
    arms[arm] = {key: [row[key] for row in rows] for key in rows[0]}
    drawn[arm] = curves([by_run[arm, seed] for seed in seeds])
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
    "referee_agreement": referee_agreement(),
    "curves": drawn,
    "seeds": seeds,
    "steps": _STEPS.value,
    "command": (
      f"python -m experiments.story_arms --first_seed={_FIRST.value}"
      f" --seeds={_SEEDS.value} --steps={_STEPS.value} --workdir=FOLDER"
    ),
    "versions": versions(),
  }
  result = without_nan(result)
  write(result, pathlib.Path(_OUT.value), table(result))
  print(table(result))


if __name__ == "__main__":
  app.run(main)
