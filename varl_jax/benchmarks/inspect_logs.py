"""Results as logs of Inspect, and answers from such logs.

An Inspect log holds a sample for each task and epoch; an epoch is our answer's
number plus one. Our verdicts travel in a sample's metadata, so that a log
which was written here is read back whole. Needs the extra `inspect`.
"""

import importlib
import pathlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from varl_jax.benchmarks.answering import Answer
from varl_jax.benchmarks.folder import Key
from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkError,
  BenchmarkTask,
)
from varl_jax.benchmarks.scoring import score_answer
from varl_jax.types import Message, Verdict, from_json, to_json

SCORER: Final = "rubric"
ENDINGS: Final = (".eval",)
_MEASURES: Final = ("score", "raw", "unclipped", "clipped_mean", "normalized")


def write_log(
  path: pathlib.Path,
  *,
  benchmark: Benchmark,
  tasks: Sequence[BenchmarkTask],
  answers: Mapping[Key, Answer],
  verdicts: Mapping[Key, Mapping[int, Verdict]],
  results: Mapping[str, Any],
  settings: Mapping[str, Any],
) -> pathlib.Path:
  """Writes a log.

  Args:
    path: ends in `.eval` or `.json`.
    benchmark: what was evaluated on.
    tasks: its tasks.
    answers: by task and sample.
    verdicts: likewise, by criterion.
    results: of `benchmarks.score`.
    settings: of the evaluation.

  Raises:
    BenchmarkError: the extra is not installed, or the path has another ending.
  """
  log, model, scorer = _packages()
  if path.suffix not in (".eval", ".json"):
    raise BenchmarkError(
      f"An Inspect log ends in .eval or .json, {path.name} does not."
    )
  samples = [
    _sample(log, model, scorer, benchmark, task, answers[key], verdicts)
    for task in tasks
    for key in sorted(key for key in answers if key[0] == task.task_id)
  ]
  made = log.EvalLog(
    status="success" if results.get("complete", True) else "error",
    eval=log.EvalSpec(
      created=datetime.now(UTC).isoformat(timespec="seconds"),
      task=benchmark.name,
      dataset=log.EvalDataset(
        name=benchmark.title,
        samples=len(tasks),
        sample_ids=[task.task_id for task in tasks],
      ),
      model=str(settings["model"]["name"]),
      config=log.EvalConfig(epochs=settings["samples"]),
      metadata={"varl_jax": dict(settings)},
    ),
    results=_results(log, results),
    samples=samples,
  )
  log.write_eval_log(made, str(path))
  return path


def _sample(
  log: Any,
  model: Any,
  scorer: Any,
  benchmark: Benchmark,
  task: BenchmarkTask,
  answer: Answer,
  verdicts: Mapping[Key, Mapping[int, Verdict]],
) -> Any:
  found = verdicts.get((task.task_id, answer.sample), {})
  judged = [found.get(index) for index in range(len(task.criteria))]
  scored = score_answer(benchmark, task, answer.answer, judged)
  turns = [_turn(model, turn, task.canary) for turn in task.prompt]
  text = _clean(answer.answer or "", task.canary)
  score = {}
  # What could not be scored has no score, rather than one that says nothing.
  if scored.values:
    why = "; ".join(v.explanation for v in judged if v is not None)
    score[SCORER] = scorer.Score(
      value=dict(scored.values), answer=text, explanation=why
    )
  return log.EvalSample(
    id=task.task_id,
    epoch=answer.sample + 1,
    input=turns,
    target=[
      f"[{item.points:+g}] {_clean(item.text, task.canary)}"
      for item in task.criteria
    ],
    messages=[*turns, model.ChatMessageAssistant(content=text)],
    output=model.ModelOutput.from_content(answer.model or "unknown", text),
    scores=score,
    metadata={
      "missing": answer.answer is None,
      "unscorable": scored.reason,
      "finish": answer.finish,
      "groups": {kind: list(names) for kind, names in task.groups.items()},
      "verdicts": [None if v is None else to_json(v) for v in judged],
    },
  )


def _turn(model: Any, turn: Message, canary: str) -> Any:
  kinds = {
    "system": model.ChatMessageSystem,
    "user": model.ChatMessageUser,
    "assistant": model.ChatMessageAssistant,
  }
  return kinds[turn.role](content=_clean(turn.content, canary))


def _clean(text: str, canary: str) -> str:
  return text.replace(canary, "[canary]") if canary else text


def _results(log: Any, results: Mapping[str, Any]) -> Any:
  metrics = {
    name: log.EvalMetric(name=name, value=results[name])
    for name in _MEASURES
    if results.get(name) is not None
  }
  return log.EvalResults(
    total_samples=results["answers"],
    completed_samples=results["answers"],
    scores=[log.EvalScore(name=SCORER, scorer=SCORER, metrics=metrics)],
  )


def read_log(
  path: pathlib.Path,
) -> tuple[list[Answer], dict[Key, dict[int, Verdict]]]:
  """Answers of a log, and the verdicts of one that was written here.

  A sample that failed, or has no output, was not answered.

  Raises:
    BenchmarkError: the extra is not installed, or it is no such log.
  """
  log, _, _ = _packages()
  try:
    found = log.read_eval_log(str(path))
    samples = found.samples or []
    answers = [_answer(sample) for sample in samples]
    verdicts = {
      (str(sample.id), sample.epoch - 1): _verdicts(sample)
      for sample in samples
    }
  except (OSError, ValueError, KeyError) as error:
    raise BenchmarkError(
      f"{path} is no Inspect log that can be read ({error})."
    ) from error
  if not answers:
    raise BenchmarkError(
      f"{path} holds no samples; write the log with its samples."
    )
  return answers, verdicts


def _answer(sample: Any) -> Answer:
  told = sample.metadata or {}
  text = sample.output.completion if sample.output else ""
  if told.get("missing") or sample.error is not None or not text:
    text = None
  usage = sample.output.usage if sample.output else None
  return Answer(
    task_id=str(sample.id),
    sample=sample.epoch - 1,
    answer=text,
    finish=str(told.get("finish", "")),
    model=sample.output.model if sample.output else "",
    prompt_tokens=usage.input_tokens if usage else 0,
    reply_tokens=usage.output_tokens if usage else 0,
  )


def _verdicts(sample: Any) -> dict[int, Verdict]:
  rows = (sample.metadata or {}).get("verdicts") or []
  return {
    index: from_json(Verdict, row)
    for index, row in enumerate(rows)
    if row is not None
  }


def _packages() -> tuple[Any, Any, Any]:
  """Inspect's modules of logs, models and scores."""
  try:
    return (
      importlib.import_module("inspect_ai.log"),
      importlib.import_module("inspect_ai.model"),
      importlib.import_module("inspect_ai.scorer"),
    )
  except ImportError as error:
    raise BenchmarkError(
      "Inspect logs need the extra: pip install -c constraints.txt -e"
      " '.[inspect]'."
    ) from error
