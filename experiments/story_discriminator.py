r"""Does the discriminator find the groups that hide an exploit?

    python -m experiments.story_discriminator --workdir=/tmp/discriminator \
        --runs=rri:4,co_evolve_only:2,generation_only:2 --first_seed=400

Trains arms of the story world with the head on and every group refereed, so
that the truth is known, and notes what the head thought of each group before it
learnt from it. Then it asks: had the referee been called for a quarter of each
step's groups, how many exploit cases would have been among them? Choices are
compared by the head, at random, and by rules that need no head. A second head
sees the rankings of those groups alone that it chose itself, as it would in a
run with `patch.referee_share` 0.25.

One rule takes length for quality. It knows what the head has to find out: this
world's scripted referee favours long texts.

Runs are independent processes of one thread, `--jobs` at a time; one that is
complete is not repeated. Besides the JSON a Markdown table is written.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

from absl import app, flags
from ml_collections import config_flags

from experiments.suspicion_recall import (
  EPSILON,
  SHARE,
  Group,
  chosen,
  summary,
  table,
)
from varl_jax import build
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import Config, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.metrics import MetricsWriter, Progress
from varl_jax.rl.discriminator import DiscriminatorState
from varl_jax.run_folder import replace_text
from varl_jax.suspicion import Look, Suspecting, comparable_score
from varl_jax.trainer import Trainer
from varl_jax.types import GroupRanking

GROUPS: Final = "groups.json"

_CONFIG = config_flags.DEFINE_config_file("config", None, "Of a single run.")
_RUNS = flags.DEFINE_list(
  "runs", ["rri:4", "co_evolve_only:2", "generation_only:2"], "ARM:SEEDS."
)
_FIRST = flags.DEFINE_integer("first_seed", 400, "The first seed.")
_STEPS = flags.DEFINE_integer("steps", 40, "Training steps a run.")
_JOBS = flags.DEFINE_integer("jobs", os.cpu_count() or 1, "Runs at a time.")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the runs.", required=True
)
_OUT = flags.DEFINE_string(
  "out", "experiments/results/story_discriminator.json", "The result."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording(Suspecting):
  """Notes groups, and teaches a second head what its own choice shows.

  Attributes:
    steps: one entry a step, filled as the run goes.
    own: the second head; one entry, replaced at every step.
    lots: decides while the second head has no say.
  """

  steps: list[list[dict[str, Any]]]
  own: list[DiscriminatorState]
  lots: random.Random

  def learn(
    self, head: DiscriminatorState, look: Look, rankings: Sequence[GroupRanking]
  ) -> tuple[DiscriminatorState, dict[str, float]]:
    """See `Suspecting.learn`."""
    quality = self.discriminator.quality(self.own[0], look.features)
    own = None
    if int(self.own[0].updates) >= self.config.warmup_updates:
      own = self.suspicions(quality, look.groups)
    keys = own or [self.lots.random() for _ in look.groups]
    asked = chosen(list(range(len(keys))), keys, self.lots)
    names = {look.groups[index].task.task_id for index in asked}
    self.own[0], _ = super().learn(
      self.own[0],
      dataclasses.replace(look, quality=quality),
      [ranking for ranking in rankings if ranking.task_id in names],
    )
    tiers = {ranking.task_id: ranking.tiers for ranking in rankings}
    values = iter(look.quality.tolist())
    self.steps.append(
      [
        {
          "scores": [comparable_score(answer) for answer in group.answers],
          "words": [len((a.answer or "").split()) for a in group.answers],
          "tiers": tiers.get(group.task.task_id),
          "quality": [next(values) for _ in group.answers],
          "head": look.suspicion[index] if look.suspicion else None,
          "own": own[index] if own else None,
          "learnt": look.suspicion is not None and own is not None,
        }
        for index, group in enumerate(look.groups)
      ]
    )
    return super().learn(head, look, rankings)


def record(config: Config, workdir: pathlib.Path) -> None:
  """Trains one run and leaves its groups in the folder."""
  policy = build.make_policy(config)
  assert policy.suspecting is not None
  parts = {
    field.name: getattr(policy.suspecting, field.name)
    for field in dataclasses.fields(Suspecting)
  }
  recording = Recording(
    **parts,
    steps=[],
    own=[policy.suspecting.init()],
    lots=random.Random(config.seed),
  )
  domain = load_domain(config)
  with (
    contextlib.closing(MetricsWriter(workdir)) as metrics,
    contextlib.closing(
      build.make_service(config, domain, workdir / "service.sqlite")
    ) as service,
  ):
    Trainer(
      config=config,
      service=service,
      worker=policy.worker,
      examiner=policy.examiner,
      learner=policy.learner,
      checkpoints=Checkpoints(folder=workdir / "checkpoints", interval=1000),
      metrics=metrics,
      progress=Progress(total=config.train.steps),
      suspecting=recording,
    ).run(policy.params)
  replace_text(workdir / GROUPS, json.dumps(recording.steps))


def train(arm: str, seed: int) -> list[list[Group]]:
  """The groups of one run by step, which a process of its own trains."""
  workdir = pathlib.Path(_WORKDIR.value) / f"{arm}-{seed}-{_STEPS.value}"
  if not (workdir / GROUPS).exists():
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    command = [
      sys.executable,
      "-m",
      "experiments.story_discriminator",
      f"--workdir={workdir}",
      f"--config=configs/story.py:{arm}",
      f"--config.seed={seed}",
      f"--config.train.steps={_STEPS.value}",
      "--config.eval.interval=0",
      "--config.discriminator.on=True",
    ]
    environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": (
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
      ),
      "OMP_NUM_THREADS": "1",
    }
    with open(workdir / "log.txt", "a") as log:
      done = subprocess.run(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT
      )
    if done.returncode:
      tail = (workdir / "log.txt").read_text()[-600:]
      raise RuntimeError(f"{arm} on seed {seed} failed:\n{tail}")
    print(f"{arm} on seed {seed} is done", flush=True)
  return json.loads((workdir / GROUPS).read_text())


def main(_):
  """Runs what is missing, then writes the JSON and the table."""
  if _CONFIG.value is not None:
    record(from_config_dict(_CONFIG.value), pathlib.Path(_WORKDIR.value))
    return
  wanted = [run.split(":") for run in _RUNS.value]
  order = [
    (arm, _FIRST.value + seed)
    for seed in range(max(int(count) for _, count in wanted))
    for arm, count in wanted
    if seed < int(count)
  ]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as jobs:
    runs = dict(zip(order, jobs.map(lambda run: train(*run), order)))
  result = {
    "arms": {
      arm: summary([runs[key] for key in order if key[0] == arm])
      for arm, _ in wanted
    },
    "share": SHARE,
    "epsilon": EPSILON,
    "first_seed": _FIRST.value,
    "steps": _STEPS.value,
    "warmup_updates": Config().discriminator.warmup_updates,
    "command": (
      "python -m experiments.story_discriminator"
      f" --runs={','.join(_RUNS.value)} --first_seed={_FIRST.value}"
      f" --steps={_STEPS.value} --workdir=FOLDER"
    ),
    "versions": {
      "python": platform.python_version(),
      **{name: metadata.version(name) for name in ("jax", "flax", "optax")},
    },
  }
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(json.dumps(result, indent=1) + "\n")
  out.with_suffix(".md").write_text(table(result))
  print(table(result))


if __name__ == "__main__":
  app.run(main)
