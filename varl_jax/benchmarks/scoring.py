"""From verdicts to a benchmark's results.

An answer is one of

    scored        every criterion is decided
    missing       the model gave no final answer: 0 in every measure, counted
    unscorable    a verdict is undetermined, or no criterion has positive
                  points: left out of every mean, counted by its reason

and a task none of whose answers has a value is unscorable too (`unanswered`
when there is no answer at all, because its call failed). Values of a task are
means over its answers, results over the tasks.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from varl_jax.benchmarks import resampling
from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkError,
  BenchmarkTask,
)
from varl_jax.rubrics.scoring import raw_score, rubric_score
from varl_jax.types import Verdict

# A verdict, or only whether the criterion was met; None is undetermined.
Met = Verdict | bool | None
Reason = Literal["", "undetermined", "no_positive", "unanswered"]

UNDETERMINED: Final = "undetermined"
NO_POSITIVE: Final = "no_positive"
UNANSWERED: Final = "unanswered"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredAnswer:
  """The values of one answer.

  Attributes:
    values: by measure; empty when unscorable.
    parts: ratio by group of criteria, as (kind, value).
    missing: whether there was no answer.
    reason: why there are no values, "" when there are.
  """

  values: Mapping[str, float]
  parts: Mapping[tuple[str, str], float] = dataclasses.field(
    default_factory=dict
  )
  missing: bool = False
  reason: Reason = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredTask:
  """A task with the means over its answers; `values` is empty without any."""

  task: BenchmarkTask
  answers: tuple[ScoredAnswer, ...]
  values: Mapping[str, float]
  parts: Mapping[tuple[str, str], float]

  @property
  def reason(self) -> Reason:
    """Why there are no values."""
    if self.values:
      return ""
    return self.answers[0].reason if self.answers else UNANSWERED


def score_answer(
  benchmark: Benchmark,
  task: BenchmarkTask,
  answer: str | None,
  verdicts: Sequence[Met],
) -> ScoredAnswer:
  """Scores one answer.

  Args:
    benchmark: whose measures are taken.
    task: what was answered.
    answer: None when the model gave none; then there are no verdicts to read.
    verdicts: one a criterion, in order.

  Raises:
    BenchmarkError: there are more or fewer verdicts than criteria.
  """
  if not scorable(task):
    return ScoredAnswer(values={}, reason=NO_POSITIVE)
  if answer is None:
    none = [False] * len(task.criteria)
    names = _measured(benchmark, task, none, "")
    values = dict.fromkeys([*names, "unclipped", "raw"], 0.0)
    return ScoredAnswer(
      values=values, parts=dict.fromkeys(_parts(task, none), 0.0), missing=True
    )
  if len(verdicts) != len(task.criteria):
    raise BenchmarkError(
      f"Task {task.task_id!r} has {len(task.criteria)} criteria but"
      f" {len(verdicts)} verdicts; grade it again."
    )
  met = [_met(verdict) for verdict in verdicts]
  known = [value for value in met if value is not None]
  if len(known) < len(met):
    return ScoredAnswer(values={}, reason=UNDETERMINED)
  r = rubric_score([item.points for item in task.criteria], known)
  values = {
    "unclipped": r,
    "raw": raw_score(r),
    **_measured(benchmark, task, known, answer),
  }
  return ScoredAnswer(values=values, parts=_parts(task, known))


def scorable(task: BenchmarkTask) -> bool:
  """Whether any verdicts could give the task a score."""
  return any(item.points > 0 for item in task.criteria)


def _measured(
  benchmark: Benchmark, task: BenchmarkTask, met: Sequence[bool], answer: str
) -> dict[str, float]:
  values = benchmark.measures(task, met, answer)
  for name, value in {"score": math.nan, **values}.items():
    if not math.isfinite(value):
      raise BenchmarkError(
        f"{benchmark.title} gives task {task.task_id!r} no finite {name!r}"
        f" ({values.get(name)}); mend its `measures`."
      )
  return values


def _met(verdict: Met) -> bool | None:
  met = verdict.met if isinstance(verdict, Verdict) else verdict
  if met is not None and not isinstance(met, bool):
    raise BenchmarkError(
      f"A verdict is True, False or None (undetermined), got {met!r}."
    )
  return met


def _parts(
  task: BenchmarkTask, met: Sequence[bool]
) -> dict[tuple[str, str], float]:
  """The ratio of each group of criteria that has a positive one."""
  rows: dict[tuple[str, str], list[tuple[float, bool]]] = {}
  for item, groups, value in zip(
    task.criteria, task.criterion_groups or ({},) * len(met), met, strict=True
  ):
    for kind, names in groups.items():
      for name in names:
        rows.setdefault((kind, name), []).append((item.points, value))
  return {
    key: rubric_score([p for p, _ in found], [m for _, m in found])
    for key, found in rows.items()
    if any(points > 0 for points, _ in found)
  }


def score_task(
  benchmark: Benchmark,
  task: BenchmarkTask,
  answers: Sequence[str | None],
  verdicts: Sequence[Sequence[Met]],
) -> ScoredTask:
  """Scores all answers to a task; `verdicts` has one sequence an answer."""
  scored = tuple(
    score_answer(benchmark, task, answer, found)
    for answer, found in zip(answers, verdicts, strict=True)
  )
  return ScoredTask(
    task=task,
    answers=scored,
    values=_mean_by_key([one.values for one in scored]),
    parts=_mean_by_key([one.parts for one in scored]),
  )


def _mean_by_key(rows: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
  columns: dict[Any, list[float]] = {}
  for row in rows:
    for key, value in row.items():
      columns.setdefault(key, []).append(value)
  return {key: statistics.fmean(values) for key, values in columns.items()}


def summarize(
  benchmark: Benchmark, rows: Sequence[ScoredTask], *, seed: int = 0
) -> dict[str, Any]:
  """Results over tasks; see `benchmarks.score` for what they hold."""
  scored = [row for row in rows if row.values]
  groups = [_stratum(benchmark, row.task) for row in scored]
  answers = [one for row in rows for one in row.answers]
  reasons = collections.Counter(row.reason for row in rows if row.reason)
  results: dict[str, Any] = {
    "benchmark": benchmark.name,
    "score": None,
    "interval": None,
    **_clippings(scored, groups, seed=seed),
    "tasks": len(rows),
    "scored": len(scored),
    "unscorable": {
      "tasks": len(rows) - len(scored),
      "answers": sum(bool(one.reason) for one in answers),
      "reasons": dict(sorted(reasons.items())),
      "task_ids": [row.task.task_id for row in rows if row.reason],
    },
    "answers": len(answers),
    "missing": sum(one.missing for one in answers),
    "breakdowns": breakdowns(scored),
    "task_scores": {row.task.task_id: row.values["score"] for row in scored},
  }
  if benchmark.mean_over:
    results["task_groups"] = {
      row.task.task_id: group for row, group in zip(scored, groups, strict=True)
    }
  if scored:
    names = list(scored[0].values)
    results |= {
      name: resampling.group_mean([row.values[name] for row in scored], groups)
      for name in names
    }
    found = resampling.bootstrap(
      [row.values["score"] for row in scored], groups, seed=seed
    )
    results["interval"] = [found.low, found.high]
  return results


def _clippings(
  scored: Sequence[ScoredTask], groups: Sequence[str], *, seed: int
) -> dict[str, Any]:
  """Both clippings of r, and the deviation of the data set's one."""
  if not scored:
    return dict.fromkeys(
      ("clipped_mean", "mean_of_clipped", "clipped_mean_bootstrap_std")
    )
  ratios = [row.values["unclipped"] for row in scored]
  raws = [row.values["raw"] for row in scored]
  found = resampling.bootstrap(ratios, groups, seed=seed, clip=True)
  return {
    "clipped_mean": raw_score(resampling.group_mean(ratios, groups)),
    "mean_of_clipped": resampling.group_mean(raws, groups),
    "clipped_mean_bootstrap_std": found.std,
  }


def _stratum(benchmark: Benchmark, task: BenchmarkTask) -> str:
  kind = benchmark.mean_over
  if not kind:
    return ""
  names = task.groups.get(kind, ())
  if len(names) != 1:
    raise BenchmarkError(
      f"Task {task.task_id!r} is of {len(names)} groups of the kind {kind!r},"
      f" over which {benchmark.title} averages; it must be of one."
    )
  return names[0]


def breakdowns(
  rows: Sequence[ScoredTask],
) -> dict[str, dict[str, dict[str, float]]]:
  """Means by kind and group: of tasks' scores, and of criteria's own ratios."""
  tables: dict[str, dict[str, list[Mapping[str, float]]]] = {}
  for row in rows:
    for kind, names in row.task.groups.items():
      for name in names:
        tables.setdefault(kind, {}).setdefault(name, []).append(row.values)
    for (kind, name), r in row.parts.items():
      values = {"score": raw_score(r), "raw": raw_score(r), "unclipped": r}
      tables.setdefault(f"criteria {kind}", {}).setdefault(name, []).append(
        values
      )
  return {
    kind: {name: _entry(found) for name, found in sorted(groups.items())}
    for kind, groups in sorted(tables.items())
  }


def _entry(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
  means = _mean_by_key(values)
  means["clipped_mean"] = raw_score(means["unclipped"])
  return {"tasks": len(values), **means}
