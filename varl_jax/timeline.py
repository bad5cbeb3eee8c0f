"""When each stage of each step began and ended: `timeline.jsonl`.

One object a finished stage, `{"step", "stage", "start", "end"}`, in seconds
since the epoch, in the order of their ends. Stages of several steps overlap in
a run with `train.staleness`. A step that is done again after a restart has its
stages twice; `read_timeline` keeps the later ones. Nothing of a run depends on
the file, so it is not synced, and an incomplete last line is left out.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

FILE_NAME: Final = "timeline.jsonl"
# The service's tasks, rollouts, verdicts, GRPO, repair with evolution, held-out
# tasks (their answers, their scores), the state on disk.
STAGES: Final = (
  "tasks",
  "sample",
  "judge",
  "update",
  "repair",
  "examine",
  "evaluate",
  "checkpoint",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
  """One stage of one step; `end` is None while it goes on."""

  step: int
  stage: str
  start: float
  end: float | None = None


class Timeline:
  """Notes stages from any thread, and what is under way.

  Args:
    path: the file, None to keep nothing.
    clock: seconds since the epoch.
  """

  def __init__(
    self,
    path: str | os.PathLike[str] | None = None,
    *,
    clock: Callable[[], float] = time.time,
  ):
    self.clock = clock
    self._path = None if path is None else pathlib.Path(path)
    self._lock = threading.Lock()
    self._going: dict[tuple[str, int], Span] = {}
    self._waits: dict[str, float] = {}
    self._seconds: dict[tuple[int, str], float] = {}
    self._moved = clock()

  @contextlib.contextmanager
  def stage(self, stage: str, step: int) -> Iterator[None]:
    """Notes what is done inside; a stage that fails is not written."""
    begun = Span(step=step, stage=stage, start=self.clock())
    with self._lock:
      self._going[stage, step] = begun
      self._moved = begun.start
    try:
      yield
      self._write(dataclasses.replace(begun, end=self.clock()))
    finally:
      with self._lock:
        self._going.pop((stage, step), None)
        self._moved = self.clock()

  @contextlib.contextmanager
  def waiting(self, what: str) -> Iterator[None]:
    """Notes that somebody waits; `what` completes "waits for ..."."""
    with self._lock:
      self._waits[what] = self.clock()
    try:
      yield
    finally:
      with self._lock:
        self._waits.pop(what, None)

  def seconds(self, step: int) -> dict[str, float]:
    """How long the finished stages of a step took, until it is forgotten."""
    with self._lock:
      return {
        stage: seconds
        for (of, stage), seconds in self._seconds.items()
        if of == step
      }

  def forget(self, step: int) -> None:
    """Frees what `seconds` tells of this step and those before."""
    with self._lock:
      for key in [key for key in self._seconds if key[0] <= step]:
        del self._seconds[key]

  def standing(self) -> tuple[float, list[str], list[Span]]:
    """When a stage began or ended last, who waits for what, what goes on."""
    with self._lock:
      going = sorted(self._going.values(), key=lambda span: span.start)
      return self._moved, list(self._waits), going

  def _write(self, span: Span) -> None:
    assert span.end is not None
    with self._lock:
      key = span.step, span.stage
      self._seconds[key] = self._seconds.get(key, 0.0) + span.end - span.start
      if self._path is None:
        return
      line = {
        "step": span.step,
        "stage": span.stage,
        "start": round(span.start, 4),
        "end": round(span.end, 4),
      }
      with open(self._path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_timeline(workdir: str | os.PathLike[str]) -> list[Span]:
  """The stages of a run by start; [] when none was noted.

  A stage that was done again has its last times. Lines that a crash cut are
  left out.
  """
  path = pathlib.Path(workdir) / FILE_NAME
  if not path.is_file():
    return []
  found: dict[tuple[int, str], Span] = {}
  for line in path.read_text(encoding="utf-8").splitlines():
    with contextlib.suppress(ValueError, TypeError):
      span = Span(**_object(line))
      found[span.step, span.stage] = span
  return sorted(found.values(), key=lambda span: span.start)


def _object(line: str) -> dict[str, Any]:
  value = json.loads(line)
  if not isinstance(value, dict):
    raise ValueError(f"No object: {line!r}")
  return value
