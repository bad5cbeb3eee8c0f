r"""Does a long run stay as large as it began?

    python -m experiments.soak --steps=300 --workdir=/tmp/soak

Trains a small story run in this process with `train.staleness` 1 and notes
after every step the memory of the process, its open files and threads, the
programs compiled so far and the size of the store. Memory, files, threads and
programs are to be flat over the second half of the run: its last quarter is
compared with the one before. The store holds every event, so it grows by what a
step leaves; bytes a step are to be flat. Exit code 1 says what is not. Besides
the JSON a Markdown table is written.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import threading
from collections.abc import Sequence
from typing import Any, Final

import jax
from absl import app, flags

from configs import story
from experiments import arm_results
from experiments.arm_results import versions, write
from experiments.story_run import train
from varl_jax.config import from_config_dict

RESULT: Final = "experiments/results/soak.json"
flags.adopt_module_key_flags(arm_results)

# By how much the last quarter may exceed the one before.
SLACK: Final = {
  "memory_mib": 0.03,
  "files": 0.0,
  "threads": 0.0,
  "programs": 0.0,
  "store_kib_a_step": 0.25,
}
COMPILED: Final = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class Meter:
  """Measures this process, once a step."""

  store: pathlib.Path
  programs: int = 0
  rows: list[dict[str, float]] = dataclasses.field(default_factory=list)

  def listen(self) -> None:
    """Counts programs from here on."""

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
      self.programs += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(heard)

  def look(self) -> bool:
    """Takes a row; never stops the run."""
    size = sum(
      path.stat().st_size for path in self.store.parent.glob("service.sqlite*")
    )
    self.rows.append(
      {
        "memory_mib": _resident() / 2**20,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "programs": self.programs,
        "store_kib": size / 2**10,
      }
    )
    return False


def _resident() -> int:
  """Bytes of memory that the process holds."""
  pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
  return int(pages) * os.sysconf("SC_PAGE_SIZE")


def quarters(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
  """The mean of each measure over each quarter of the run.

  `store_kib_a_step` is how much the store grew a step in it.
  """
  cuts = [round(len(rows) * part / 4) for part in range(5)]
  parts = [rows[a:b] for a, b in itertools.pairwise(cuts)]
  found = {
    name: [statistics.fmean(row[name] for row in part) for part in parts]
    for name in ("memory_mib", "files", "threads", "programs")
  }
  found["store_kib_a_step"] = [
    (part[-1]["store_kib"] - part[0]["store_kib"]) / (len(part) - 1)
    for part in parts
  ]
  return found


def grown(found: dict[str, list[float]]) -> list[str]:
  """What is larger in the last quarter than in the one before."""
  return [
    f"{name} grew from {values[2]:.1f} to {values[3]:.1f}"
    for name, values in found.items()
    if values[3] > values[2] * (1 + SLACK[name])
  ]


def table(result: dict[str, Any]) -> str:
  """The result as Markdown."""
  lines = [
    f"A story run of {result['steps']} steps with `train.staleness` 1: means"
    " over each quarter.",
    "",
    "| | first | second | third | last |",
    "|---|---|---|---|---|",
  ]
  for name, values in result["quarters"].items():
    cells = " | ".join(f"{value:.1f}" for value in values)
    lines.append(f"| {name.replace('_', ' ')} | {cells} |")
  said = "; ".join(result["grown"]) or "Nothing grew."
  return "\n".join([*lines, "", said]) + "\n"


def main(_):
  """Runs, measures, writes; the exit code says whether something grew."""
  workdir, steps = arm_results.workdir(), arm_results.STEPS.value
  config = story.get_config()
  config.update(
    train=dict(steps=steps, staleness=1, tasks_per_step=4, minibatch_tasks=2),
    pool=dict(capacity=64),
    eval=dict(tasks=4, samples=2),
    evolution=dict(cases=6),
  )
  meter = Meter(store=workdir / "service.sqlite")
  meter.listen()
  train(from_config_dict(config.to_dict()), workdir, after_step=meter.look)
  found = quarters(meter.rows)
  result = {
    "steps": steps,
    "quarters": found,
    "grown": grown(found),
    "rows": meter.rows[:: max(1, len(meter.rows) // 30)],
    "command": f"python -m experiments.soak --steps={steps} --workdir=FOLDER",
    "versions": versions(),
  }
  write(result, pathlib.Path(arm_results.OUT.value or RESULT), table(result))
  print(json.dumps(result["grown"]))
  print(table(result))
  return 1 if result["grown"] else 0


if __name__ == "__main__":
  flags.set_default(arm_results.STEPS, 300)
  app.run(main)
