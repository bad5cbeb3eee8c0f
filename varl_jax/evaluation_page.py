"""A results folder as one page: scores, breakdowns, tasks, judge and hashes.

Like a run's report it holds all it shows, runs no script and escapes every
text. Items of benchmarks whose authors ask that they are not shown online stay
out of it unless asked for, and their canaries always.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from varl_jax import charts
from varl_jax.benchmarks.protocol import BenchmarkTask
from varl_jax.evaluation import Outcome
from varl_jax.evaluation_data import notices
from varl_jax.evaluation_setup import Prepared
from varl_jax.page import flatten, points, render_page
from varl_jax.run_folder import replace_text
from varl_jax.types import Criterion, Verdict

FILE_NAME: Final = "report.html"
SHOWN_TASKS: Final = 6
HIDDEN: Final = "[canary]"
_BINS: Final = 20
_MEASURES: Final = {
  "score": "Score",
  "raw": "Raw",
  "unclipped": "Unclipped",
  "clipped_mean": "Clipped mean",
  "normalized": "Normalized",
}


def write_page(
  folder: pathlib.Path,
  prepared: Prepared,
  outcome: Outcome,
  results: Mapping[str, Any],
  *,
  show_items: bool = False,
) -> pathlib.Path:
  """Writes `report.html`; returns its path."""
  page = results_page(
    title=prepared.data.benchmark.title,
    tasks=prepared.data.tasks,
    results=results,
    outcome=outcome,
    notes=notices(prepared.data),
    show_items=show_items or not prepared.data.benchmark.guarded,
  )
  path = folder / FILE_NAME
  replace_text(path, page.encode("utf-8", "replace").decode())
  return path


def results_page(
  *,
  title: str,
  tasks: Sequence[BenchmarkTask],
  results: Mapping[str, Any],
  outcome: Outcome,
  notes: Sequence[str],
  show_items: bool,
) -> str:
  """The page's HTML; a pure function of its arguments."""
  page = render_page(
    "evaluation.html.jinja",
    title=title,
    results=results,
    measures=[
      (label, _number(results[name]))
      for name, label in _MEASURES.items()
      if results.get(name) is not None
    ],
    histogram=histogram(list(results["task_scores"].values())),
    breakdowns=_breakdowns(results),
    interval=[_number(value) for value in results.get("interval") or ()],
    settings=flatten(
      {"settings": results["settings"], "usage": results["usage"]}
    ),
    shown=_shown(tasks, outcome, results) if show_items else [],
    show_items=show_items,
    notes=notes,
    lowest=_by_score(results, reverse=False),
    highest=_by_score(results, reverse=True),
  )
  return without_canaries(page, tasks)


def without_canaries(text: str, tasks: Sequence[BenchmarkTask]) -> str:
  """A text in which no canary of the data stands."""
  for canary in sorted({task.canary for task in tasks if task.canary}):
    for form in (canary, str(Markup.escape(canary))):
      text = text.replace(form, HIDDEN)
  return text


def histogram(scores: Sequence[float]) -> Markup:
  """How many tasks have which score; "" without any."""
  if not scores:
    return Markup("")
  low, high = min(0.0, *scores), max(1.0, *scores)
  width = (high - low) / _BINS
  counts = [0] * _BINS
  for score in scores:
    counts[min(_BINS - 1, int((score - low) / width))] += 1
  tall = max(counts)
  bars = Markup("").join(
    Markup(
      '<rect x="{}" y="{}" width="20" height="{}"><title>{}</title></rect>'
    ).format(
      10 + 23 * index,
      round(130 - 120 * count / tall, 1),
      round(120 * count / tall, 1),
      f"{low + index * width:.2f} to {low + (index + 1) * width:.2f}:"
      f" {count} tasks",
    )
    for index, count in enumerate(counts)
  )
  ends = Markup(
    '<text x="10" y="148">{}</text><text x="467" y="148" text-anchor="end">{}'
    "</text>"
  ).format(f"{low:.2f}", f"{high:.2f}")
  return Markup(
    '<svg class="chart" viewBox="0 0 480 154" role="img" aria-label="{}">'
    '<g>{}</g><line class="axis" x1="10" x2="467" y1="130.5" y2="130.5"/>{}'
    "</svg>"
  ).format(
    f"Scores of {len(scores)} tasks from {low:.2f} to {high:.2f}", bars, ends
  )


def _breakdowns(results: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
  return [
    (
      kind.replace("_", " "),
      [
        {
          "name": name,
          "tasks": entry["tasks"],
          "score": _number(entry["score"]),
          "raw": _number(entry["raw"]),
          "bar": entry["score"] or 0.0,
        }
        for name, entry in sorted(groups.items(), key=_most_tasks)
      ],
    )
    for kind, groups in results["breakdowns"].items()
  ]


def _most_tasks(entry: tuple[str, Mapping[str, float]]) -> tuple[float, str]:
  return -entry[1]["tasks"], entry[0]


def _by_score(
  results: Mapping[str, Any], *, reverse: bool
) -> list[tuple[str, str]]:
  order = sorted(
    results["task_scores"].items(), key=lambda pair: (pair[1], pair[0])
  )
  ends = order[::-1] if reverse else order
  return [(name, _number(score)) for name, score in ends[:SHOWN_TASKS]]


def _shown(
  tasks: Sequence[BenchmarkTask], outcome: Outcome, results: Mapping[str, Any]
) -> list[dict[str, Any]]:
  """Tasks to read: spread evenly over the scores."""
  scores = results["task_scores"]
  order = sorted(
    (task for task in tasks if task.task_id in scores),
    key=lambda task: (scores[task.task_id], task.task_id),
  )
  if len(order) > SHOWN_TASKS:
    last = len(order) - 1
    picks = [round(i * last / (SHOWN_TASKS - 1)) for i in range(SHOWN_TASKS)]
    order = [order[i] for i in picks]
  return [_view(task, outcome, scores[task.task_id]) for task in order]


def _view(
  task: BenchmarkTask, outcome: Outcome, score: float
) -> dict[str, Any]:
  key = (task.task_id, 0)
  answer = outcome.answers.get(key)
  found = outcome.verdicts.get(key, {})
  return {
    "id": task.task_id,
    "score": _number(score),
    "prompt": task.prompt,
    "answer": None if answer is None else answer.answer,
    "rows": [
      _row(item, found.get(index)) for index, item in enumerate(task.criteria)
    ],
  }


def _row(item: Criterion, verdict: Verdict | None) -> dict[str, Any]:
  word, kind = "undetermined", "none"
  if verdict is not None and verdict.met is not None:
    word, kind = ("met", "met") if verdict.met else ("not met", "not-met")
  return {
    "points": points(item.points),
    "text": item.text,
    "word": word,
    "kind": kind,
    "why": "" if verdict is None else verdict.explanation,
  }


def _number(value: float | None) -> str:
  if value is None:
    return "none"
  if value > 100:
    return charts.number(value)
  return f"{value:.3f}".replace("-", "\u2212")
