r"""Kills a story run at random moments and restarts it, again and again.

    python -m experiments.kill_run --workdir=/tmp/kill --kills=20 --steps=30
    python -m experiments.kill_run --workdir=/tmp/kill1 --staleness=1

First a run is left alone, then another of the same settings gets SIGKILL
`--kills` times, at moments that are spread at random over its steps: within
sampling, judging, repair, updates, checkpoints and start-ups. With
`--victim=service` or `both` the generation service is a process behind HTTP and
is killed too. It ends with exit code 1 unless

- with `train.staleness` 0 the last checkpoint is bit-equal to that of the run
  that was left alone, and so are evidence and metrics but for what is measured
  in seconds;
- with more, every step was reported once, and every case and repair round is
  there once and belongs to a step that was reported.

Besides the JSON a Markdown table is written.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from absl import app, flags

from experiments import arm_results
from experiments.arm_results import ONE_THREAD, versions, write
from varl_jax.checkpoints import Checkpoints
from varl_jax.metrics import read_metrics
from varl_jax.service.store import Store

RESULT: Final = "experiments/results/kill_run"
PATIENCE_S: Final = 3600.0

_KILLS = flags.DEFINE_integer("kills", 20, "Kills.", lower_bound=1)
_STALENESS = flags.DEFINE_integer("staleness", 0, "Updates ahead.")
_MOMENTS = flags.DEFINE_integer("moments", 0, "Seed of the moments.")
_VICTIM = flags.DEFINE_enum(
  "victim", "trainer", ["trainer", "service", "both"], "Who is killed."
)
flags.adopt_module_key_flags(arm_results)

# A run short enough to be killed often.
SMALL: Final = (
  "--config.train.tasks_per_step=4",
  "--config.train.minibatch_tasks=2",
  "--config.eval.tasks=4",
  "--config.eval.samples=2",
  "--config.evolution.cases=6",
  # So that a life which lasts a step gets on.
  "--config.checkpoint.interval=1",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What is run.

  Attributes:
    folder: of the run.
    steps: training steps.
    staleness: updates that sampling runs ahead.
    served: whether the service is a process.
  """

  folder: pathlib.Path
  steps: int
  staleness: int
  served: bool = False

  def flags(self) -> list[str]:
    """Of both programs."""
    return [
      "--config=configs/story.py",
      *SMALL,
      f"--config.train.steps={self.steps}",
      f"--config.train.staleness={self.staleness}",
    ]


class Life:
  """A trainer, and its service if that is a process; a context manager."""

  def __init__(self, setting: Setting):
    self._setting = setting
    setting.folder.mkdir(parents=True, exist_ok=True)
    self._log = open(setting.folder / "log.txt", "a")
    self._url = ""
    if setting.served:
      self._port = _free_port()
      self._url = f"http://127.0.0.1:{self._port}"
      self.service = self._serve()
    self.trainer = self._train()

  def __enter__(self) -> "Life":
    return self

  def __exit__(self, *error: object) -> None:
    for process in self._all():
      process.kill()
      process.wait()
    self._log.close()

  def kill(self, victim: str) -> None:
    """SIGKILL to whom it names; who was killed starts again."""
    if victim in ("service", "both"):
      self.service.send_signal(signal.SIGKILL)
    if victim in ("trainer", "both"):
      self.trainer.send_signal(signal.SIGKILL)
      self.trainer.wait()
    if victim in ("service", "both"):
      self.service.wait()
      self.service = self._serve()
    if victim in ("trainer", "both"):
      self.trainer = self._train()

  def ended(self) -> bool:
    """Whether the trainer is done.

    Raises:
      RuntimeError: it failed; the last of the log is shown.
    """
    code = self.trainer.poll()
    if code:
      tail = (self._setting.folder / "log.txt").read_text()[-800:]
      raise RuntimeError(f"The trainer ended with code {code}:\n{tail}")
    return code == 0

  def _all(self) -> list[subprocess.Popen]:
    return [self.trainer] + ([self.service] if self._setting.served else [])

  def _train(self) -> subprocess.Popen:
    url = [f"--config.service.url={self._url}"] if self._url else []
    return self._start("varl_jax.main", self._setting.folder, url)

  def _serve(self) -> subprocess.Popen:
    place = self._setting.folder / "service"
    return self._start("varl_jax.serve", place, [f"--port={self._port}"])

  def _start(
    self, module: str, folder: pathlib.Path, more: list[str]
  ) -> subprocess.Popen:
    return subprocess.Popen(
      [
        sys.executable,
        "-m",
        module,
        *self._setting.flags(),
        f"--workdir={folder}",
        *more,
      ],
      env=os.environ | ONE_THREAD,
      stdout=self._log,
      stderr=subprocess.STDOUT,
    )


def _free_port() -> int:
  with contextlib.closing(socket.socket()) as held:
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1]


def moments(kills: int, steps: int, rng: random.Random) -> list[float]:
  """Places in a run of `steps` steps, ascending: 2.4 is within step 3."""
  return sorted(rng.uniform(0, steps) for _ in range(kills))


def disturb(
  setting: Setting, *, kills: int, seed: int, victim: str
) -> list[dict[str, Any]]:
  """Runs to the end with kills in between; returns where they came."""
  rng = random.Random(seed)
  done: list[dict[str, Any]] = []
  with Life(setting) as life:
    for place in moments(kills, setting.steps, rng):
      ended = _await(life, setting.folder, int(place))
      # Part of a step's usual time, so that every stage is met.
      time.sleep((place - int(place)) * _step_seconds(setting.folder))
      if ended or life.ended():
        break
      who = rng.choice(["trainer", "service", "both"])
      who = victim if victim != "both" else who
      life.kill(who)
      done.append({"place": round(place, 2), "victim": who})
      print(f"killed {who} at {place:.2f}", flush=True)
    _await(life, setting.folder, setting.steps + 1)
  return done


def _await(life: Life, folder: pathlib.Path, records: int) -> bool:
  """Waits for the record of a step or the end; returns whether it ended."""
  deadline = time.monotonic() + PATIENCE_S
  while not life.ended():
    if _recorded(folder) >= records:
      return False
    if time.monotonic() > deadline:
      raise RuntimeError(f"The run in {folder} does not get on.")
    time.sleep(0.02)
  return True


def _recorded(folder: pathlib.Path) -> int:
  """The last step recorded, -1 before the first record."""
  if not (folder / "metrics.jsonl").exists():
    return -1
  return max((r["step"] for r in read_metrics(folder)), default=-1)


def _step_seconds(folder: pathlib.Path) -> float:
  """The median time of a step; a start-up's, before there is any."""
  if _recorded(folder) < 1:
    return 10.0
  found = [r["time/step"] for r in read_metrics(folder) if "time/step" in r]
  return float(np.median(found))


def problems(setting: Setting) -> Iterator[str]:
  """What of a disturbed run's steps and evidence is lost or doubled."""
  place = setting.folder / ("service" if setting.served else "")
  with contextlib.closing(
    Store(place / "service.sqlite", read_only=True)
  ) as store:
    events = list(store.events())
  wanted = list(range(1, setting.steps + 1))
  reported = [e.step for e in events if e.kind == "reported"]
  if reported != wanted:
    yield f"steps reported: {reported}"
  if [r["step"] for r in read_metrics(setting.folder) if r["step"]] != wanted:
    yield "steps recorded are not those of the run"
  cases = [
    (e.payload["case"]["case_id"], e.step) for e in events if e.kind == "case"
  ]
  rounds = [
    (e.payload["patch"]["case_id"], e.payload["patch"]["round"], e.step)
    for e in events
    if e.kind == "patch"
  ]
  if not rounds:
    yield "no repair at all"
  for found in (cases, rounds):
    counted = collections.Counter(row[:-1] for row in found)
    for row, count in counted.items():
      if count > 1:
        yield f"{row} is there {count} times"
  for row in (*cases, *rounds):
    if row[-1] not in reported:
      yield f"{row} belongs to no reported step"
  lines = (setting.folder / "evidence.jsonl").read_text().splitlines()
  if len(lines) != len(cases):
    yield f"{len(lines)} lines of evidence for {len(cases)} cases"


def differences(one: pathlib.Path, two: pathlib.Path) -> Iterator[str]:
  """In what two runs that should be equal differ."""
  for name, read in (
    ("metrics", _measured),
    ("evidence", lambda f: (f / "evidence.jsonl").read_text()),
  ):
    if read(one) != read(two):
      yield f"{name} differ"
  leaves = [_weights(folder) for folder in (one, two)]
  if leaves[0].keys() != leaves[1].keys():
    yield "the checkpoints have other leaves"
    return
  for name, leaf in leaves[0].items():
    if not np.array_equal(leaf, leaves[1][name]):
      yield f"{name} differs"


def _measured(folder: pathlib.Path) -> list[dict[str, Any]]:
  return [
    {
      key: value
      for key, value in record.items()
      if not key.startswith(("time/", "service/"))
      and not key.endswith("_per_s")
    }
    for record in read_metrics(folder)
  ]


def _weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """All arrays of the last checkpoint by path."""
  import jax
  import orbax.checkpoint as ocp

  last = Checkpoints(folder=folder / "checkpoints").latest()
  path = (folder / "checkpoints" / str(last) / "state").absolute()
  found = ocp.StandardCheckpointer().restore(path)
  leaves = jax.tree_util.tree_flatten_with_path(found)[0]
  return {jax.tree_util.keystr(k): np.asarray(v) for k, v in leaves}


def table(result: dict[str, Any]) -> str:
  """The result as Markdown."""
  victims = collections.Counter(kill["victim"] for kill in result["kills"])
  killed = ", ".join(f"{name} {count}" for name, count in victims.items())
  lines = [
    f"A story run of {result['steps']} steps, `train.staleness`"
    f" {result['staleness']}, killed by SIGKILL {len(result['kills'])} times"
    f" ({killed}) at random moments and restarted.",
    "",
    "| | |",
    "|---|---|",
    f"| evidence rows | {result['cases']}, each once |"
    if not result["problems"]
    else f"| problems | {'; '.join(result['problems'])} |",
  ]
  if result["staleness"] == 0:
    same = "; ".join(result["differences"]) or "bit-equal"
    lines.append(f"| weights, evidence, metrics | {same} |")
  places = " ".join(f"{kill['place']:.2f}" for kill in result["kills"])
  lines.append(f"| moments, in steps | {places} |")
  return "\n".join(lines) + "\n"


def main(_):
  """Runs both, compares, writes the result; the exit code says how it went."""
  served = _VICTIM.value != "trainer"
  root = arm_results.workdir()
  settings = [
    Setting(
      folder=root / name,
      steps=arm_results.STEPS.value,
      staleness=_STALENESS.value,
      served=served,
    )
    for name in ("alone", "killed")
  ]
  if not (settings[0].folder / "report.html").exists():
    with Life(settings[0]) as life:
      _await(life, settings[0].folder, arm_results.STEPS.value + 1)
  killed = disturb(
    settings[1], kills=_KILLS.value, seed=_MOMENTS.value, victim=_VICTIM.value
  )
  lines = (settings[1].folder / "evidence.jsonl").read_text().splitlines()
  result = {
    "steps": arm_results.STEPS.value,
    "staleness": _STALENESS.value,
    "victim": _VICTIM.value,
    "kills": killed,
    "cases": len(lines),
    "problems": list(problems(settings[1])),
    "differences": []
    if _STALENESS.value
    else list(differences(settings[0].folder, settings[1].folder)),
    "command": (
      f"python -m experiments.kill_run --kills={_KILLS.value}"
      f" --steps={arm_results.STEPS.value} --staleness={_STALENESS.value}"
      f" --victim={_VICTIM.value} --moments={_MOMENTS.value} --workdir=FOLDER"
    ),
    "versions": versions(),
  }
  name = f"{RESULT}_{_VICTIM.value}_staleness{_STALENESS.value}.json"
  write(result, pathlib.Path(arm_results.OUT.value or name), table(result))
  print(json.dumps(result["problems"] + result["differences"]))
  print(table(result))
  return 1 if result["problems"] or result["differences"] else 0


if __name__ == "__main__":
  flags.set_default(arm_results.STEPS, 30)
  app.run(main)
