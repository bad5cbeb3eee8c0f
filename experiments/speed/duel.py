"""Two contestants that take samples in turns, and the machine's ceilings.

Each contestant is a process in an environment of its own that stays alive and
works only while it is asked, so that samples of one run compare like with like
on a machine whose load changes.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
CONTESTANTS = "experiments.speed.contestants"


class PeerError(RuntimeError):
  """A contestant ended; the message holds the last it said."""


class Contestant:
  """A process that answers as `contestants.loop` says."""

  def __init__(
    self,
    module: str,
    case: Mapping[str, Any],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
  ):
    """Starts it and waits until it has loaded what it needs.

    Args:
      module: of `contestants`.
      case: what it measures.
      python: of its environment.
      environment: variables added to this process's.
    """
    self.module = module
    self.began = time.perf_counter()
    self._process = subprocess.Popen(
      [python, "-m", f"{CONTESTANTS}.{module}"],
      cwd=ROOT,
      env={
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        **(environment or {}),
      },
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    try:
      self.facts = self._ask(case)
    except PeerError:
      self.close()
      raise

  def sample(self, number: int) -> dict[str, Any]:
    """What it measured of sample `number`; the first compiles."""
    return self._ask({"sample": number})

  def since_start(self) -> float:
    """Seconds."""
    return time.perf_counter() - self.began

  def close(self) -> None:
    """Ends it."""
    with contextlib.suppress(BrokenPipeError):
      self._process.__exit__(None, None, None)

  def __enter__(self) -> "Contestant":
    return self

  def __exit__(self, *error: object) -> None:
    if error[0] is not None:
      self._process.kill()
    self.close()

  def _ask(self, value: Mapping[str, Any]) -> dict[str, Any]:
    assert self._process.stdin and self._process.stdout
    try:
      self._process.stdin.write(json.dumps(value) + "\n")
      self._process.stdin.flush()
    except BrokenPipeError:
      pass  # The empty answer below says that it has ended.
    line = self._process.stdout.readline()
    if not line:
      raise PeerError(
        f"{self.module} ended with exit code {self._process.wait()}; its error"
        " stream says why."
      )
    return json.loads(line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ceilings:
  """Of the machine, in the same run: operations and bytes a second."""

  flops: float
  bytes: float

  def floor_s(self, *, flops: float = 0.0, bytes: float = 0.0) -> float:
    """Seconds that so much work takes at least."""
    return max(flops / self.flops, bytes / self.bytes)


def take_turns(
  first: Contestant,
  second: Contestant,
  meter: Contestant,
  *,
  samples: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Ceilings]:
  """Samples A B A B, the ceilings between them, after one of each to warm up.

  The ceilings are medians as well: what the machine gave during the run.
  """
  first.sample(0)
  second.sample(0)
  found: tuple[list, list] = ([], [])
  rates: tuple[list[float], list[float]] = ([], [])
  for number in range(1, samples + 1):
    for one, kept in zip((first, second), found, strict=True):
      kept.append(one.sample(number))
    for kind in (0, 1):
      said = meter.sample(2 * number + kind)
      rates[kind].append(said["work"] / said["seconds"])
  ceilings = Ceilings(
    flops=statistics.median(rates[0]), bytes=statistics.median(rates[1])
  )
  return *found, ceilings


def spread(values: Sequence[float]) -> dict[str, float]:
  """Median, smallest and largest."""
  return {
    "median": rounded(statistics.median(values)),
    "min": rounded(min(values)),
    "max": rounded(max(values)),
  }


def compared(
  ours: Sequence[float], peer: Sequence[float], *, work: float = 1.0
) -> dict[str, Any]:
  """Rates `work` a second of both and their ratio, above 1 where we are faster.

  Args:
    ours: seconds a sample, in turns with the peer's.
    peer: the same.
    work: what a sample does.
  """
  rates = [[work / s for s in seconds] for seconds in (ours, peer)]
  pairs = [b / a for a, b in zip(ours, peer, strict=True)]
  return {
    "ours": rounded(statistics.median(rates[0])),
    "peer": rounded(statistics.median(rates[1])),
    "ratio": rounded(statistics.median(rates[0]) / statistics.median(rates[1])),
    "samples": len(ours),
    "spread": {
      "ours": spread(rates[0]),
      "peer": spread(rates[1]),
      "ratio_of_neighbours": spread(pairs),
    },
  }


def rounded(value: float) -> float:
  """Four digits."""
  return float(f"{value:.4g}")


def stamp(argv: Sequence[str]) -> dict[str, Any]:
  """The command, the day and the machine."""
  return {
    "command": " ".join(["python -m", *argv]),
    "date": datetime.date.today().isoformat(),
    "cores": os.cpu_count(),
  }
