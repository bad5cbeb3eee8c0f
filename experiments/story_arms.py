r"""Trains the arms of the story world on many seeds and compares them.

    python -m experiments.story_arms --first_seed=200 --seeds=16 \
        --workdir=/tmp/story_arms --out=experiments/results/story_arms.json

Runs are independent processes of one thread each, `--jobs` at a time. A run
that is complete is not repeated, one that was cut resumes, so the command can
be stopped and started again. Besides the JSON a Markdown table is written.
"""

import concurrent.futures
import pathlib

from absl import app, flags

from experiments import arm_results
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

RESULT = "experiments/results/story_arms.json"
flags.adopt_module_key_flags(arm_results)


def run(arm: str, seed: int) -> pathlib.Path:
  """Runs one arm on one seed, one thread."""
  return train(
    arm_results.workdir() / f"{arm}-{seed}",
    [f"--config=configs/story.py:{arm}", f"--config.seed={seed}"],
    steps=arm_results.STEPS.value,
    environment=ONE_THREAD,
  )


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  chosen = arm_results.ARMS.value or list(ARMS)
  seeds = arm_results.seeds()
  order = [(arm, seed) for seed in seeds for arm in chosen]
  with concurrent.futures.ThreadPoolExecutor(arm_results.JOBS.value) as jobs:
    folders = list(jobs.map(lambda each: run(*each), order))
  by_run = dict(zip(order, folders, strict=True))
  arms, drawn = {}, {}
  for arm in chosen:
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
      for arm in chosen
    },
    "referee_agreement": referee_agreement(),
    "curves": drawn,
    "seeds": seeds,
    "steps": arm_results.STEPS.value,
    "command": (
      f"python -m experiments.story_arms {arm_results.command_flags()}"
    ),
    "versions": versions(),
  }
  result = without_nan(result)
  write(result, pathlib.Path(arm_results.OUT.value or RESULT), table(result))
  print(table(result))


if __name__ == "__main__":
  app.run(main)
