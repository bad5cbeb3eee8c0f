"""Benchmarks: rows to tasks, verdicts to official scores; loads no jax.

tasks = benchmarks.load("healthbench_hard", "hard.jsonl")
results = benchmarks.score("healthbench_hard", tasks, verdicts, answers)
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from varl_jax.benchmarks import data, scoring
from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkError,
  BenchmarkTask,
)
from varl_jax.benchmarks.registry import BENCHMARKS, find
from varl_jax.benchmarks.scoring import Met

__all__ = [
  "BENCHMARKS",
  "Benchmark",
  "BenchmarkError",
  "BenchmarkTask",
  "find",
  "load",
  "score",
]


def load(
  name: str | Benchmark,
  path: str | os.PathLike[str],
  *,
  sha256: str = "",
  errata: str | os.PathLike[str] = "",
) -> list[BenchmarkTask]:
  """Reads a benchmark's tasks from a local file or folder.

  Args:
    name: of `BENCHMARKS`, or a module with a user's own (`registry.find`).
    path: a JSONL, JSON or Parquet file, or a folder that holds it.
    sha256: the hash that the (only) file must have, "" for any.
    errata: a file of corrections, see `data.apply_errata`; the rows of `path`
      are otherwise taken verbatim.

  Returns:
    Tasks in the order of the file, each with `.task_id`, `.prompt` (messages)
    and `.criteria` (text, points).

  Raises:
    BenchmarkError: no such benchmark, or data that cannot be used; the message
      says where the data are to be had, or names file and line.
  """
  benchmark = find(name)
  files = data.find_files(benchmark, path)
  if sha256 and len(files) > 1:
    raise BenchmarkError(
      f"A sha256 belongs to one file, and {path} holds {len(files)}; name one."
    )
  for file in files:
    data.check_file(benchmark, file, sha256=sha256)
  tasks = data.read_tasks(benchmark, files)
  return data.apply_errata(tasks, errata) if errata else tasks


def score(
  name: str | Benchmark,
  tasks: Sequence[BenchmarkTask],
  verdicts: Sequence[Any] | Mapping[str, Any],
  answers: Sequence[Any] | Mapping[str, Any],
  *,
  seed: int = 0,
) -> dict[str, Any]:
  """A benchmark's results.

  Args:
    name: as for `load`.
    tasks: what was answered.
    verdicts: for every task one verdict a criterion in order: a `Verdict`, a
      boolean, or None when undetermined; for several answers a list of those.
    answers: for every task the answer's text, None when the model gave none; or
      the list of its answers, empty when there is none to score. Verdicts and
      answers go by position, or by `task_id` in mappings.
    seed: of the bootstrap.

  Returns:
    score: the benchmark's own, None when nothing was scorable.
    interval: its 95% bootstrap interval over tasks, [low, high].
    raw: each answer's ratio clipped to [0, 1], then the mean.
    unclipped: the mean ratio. `clipped_mean` is that clipped once over the data
      set, with `clipped_mean_bootstrap_std`; `mean_of_clipped` is `raw`.
    normalized: PRBench's second score.
    tasks, scored, answers: how many there are; `missing` answers count 0.
    unscorable: tasks and answers left out of every mean, with reasons and ids.
    breakdowns: by kind and group, means and the number of tasks.
    task_scores: the score by `task_id`; `task_groups` the groups whose means
      are averaged, where the benchmark does so.

  Raises:
    BenchmarkError: verdicts, answers and tasks do not belong together.
  """
  benchmark = find(name)
  rows = []
  for task, found, given in zip(
    tasks,
    _by_position(tasks, verdicts, "verdicts"),
    _by_position(tasks, answers, "answers"),
    strict=True,
  ):
    texts, judged = _samples(task, given, found)
    rows.append(scoring.score_task(benchmark, task, texts, judged))
  return scoring.summarize(benchmark, rows, seed=seed)


def _by_position(
  tasks: Sequence[BenchmarkTask],
  values: Sequence[Any] | Mapping[str, Any],
  what: str,
) -> list[Any]:
  if isinstance(values, Mapping):
    unknown = set(values) - {task.task_id for task in tasks}
    if unknown:
      raise BenchmarkError(
        f"The {what} are of tasks that are not there, such as"
        f" {sorted(unknown)[0]!r}."
      )
    return [values.get(task.task_id, []) for task in tasks]
  if len(values) != len(tasks):
    raise BenchmarkError(f"{len(tasks)} tasks but {len(values)} {what}.")
  return list(values)


def _samples(
  task: BenchmarkTask, given: Any, found: Any
) -> tuple[list[str | None], list[Sequence[Met]]]:
  """A task's answers and the verdicts on each."""
  if given is None or isinstance(given, str):
    return [given], [list(found or ())]
  texts, judged = list(given), list(found or ())
  if len(texts) != len(judged):
    raise BenchmarkError(
      f"Task {task.task_id!r} has {len(texts)} answers but verdicts on"
      f" {len(judged)}."
    )
  return texts, [list(one or ()) for one in judged]
