"""Runs an evaluation to its results and its page, and says what came of it."""

import contextlib
import pathlib
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from varl_jax import evaluation_page
from varl_jax.benchmarks import inspect_logs
from varl_jax.benchmarks.comparison import compare_folders, comparison_text
from varl_jax.benchmarks.folder import RESULTS, write_json
from varl_jax.benchmarks.protocol import BenchmarkError
from varl_jax.config import ConfigError
from varl_jax.evaluation import Outcome
from varl_jax.evaluation_data import Request
from varl_jax.evaluation_progress import Pace
from varl_jax.evaluation_setup import Prepared, prepare
from varl_jax.llm.journal import JournalError
from varl_jax.models.errors import ModelError
from varl_jax.prompts.loader import PromptError
from varl_jax.run_folder import RunError

DONE, FAILED, INTERRUPTED = 0, 3, 130
COMPARISON: Final = "comparison.json"
# Errors that are one sentence for people.
REFUSALS: Final = (
  BenchmarkError,
  ConfigError,
  JournalError,
  ModelError,
  PromptError,
  RunError,
)


def run(
  request: Request,
  *,
  show_items: bool = False,
  to_inspect: str = "",
) -> int:
  """Evaluates; returns the exit code.

  Args:
    request: what is to be evaluated.
    show_items: whether the page shows items that their authors want hidden.
    to_inspect: where to write an Inspect log of the results, "" for nowhere.

  Raises:
    One of `REFUSALS`: the input cannot be used; nothing was lost.
  """
  _check(request.benchmark, request.data)
  say = _say
  with contextlib.ExitStack() as stack:
    interrupted = stack.enter_context(_interruptible(say))
    # Known once the parts are there, which tell of their progress.
    cost: list[Callable[[], float]] = []
    pace = Pace(say, cost=lambda: cost[0]())
    prepared = prepare(
      request,
      interrupted=interrupted,
      show=pace.show,
      notify=say,
      stack=stack,
    )
    cost.append(prepared.cost)
    outcome = prepared.evaluation.run()
  if outcome.stopped == "interrupted":
    total = len(prepared.data.tasks) * request.samples
    say(
      f"Interrupted with {len(outcome.answers)} of {total} answers, all saved."
      " The same command goes on from here."
    )
    return INTERRUPTED
  code = _finish(request, prepared, outcome, show_items=show_items)
  if to_inspect:
    path = inspect_logs.write_log(
      pathlib.Path(to_inspect),
      benchmark=prepared.data.benchmark,
      tasks=prepared.data.tasks,
      answers=outcome.answers,
      verdicts=outcome.verdicts,
      results=outcome.results,
      settings=prepared.settings,
    )
    print(f"Inspect log: {path}")
  return code


def _check(benchmark: str, data: str) -> None:
  for flag, value in (("benchmark", benchmark), ("data", data)):
    if not value:
      raise BenchmarkError(f"--{flag} is missing; see --help.")


def _finish(
  request: Request, prepared: Prepared, outcome: Outcome, *, show_items: bool
) -> int:
  results = full_results(prepared, outcome)
  write_json(request.workdir / RESULTS, results)
  page = evaluation_page.write_page(
    request.workdir, prepared, outcome, results, show_items=show_items
  )
  for line in summary(results):
    print(line)
  print(f"Results: {request.workdir / RESULTS}\nReport: {page}")
  if outcome.stopped:
    _say(f"{outcome.failure} What came is saved; mend that and repeat it.")
    return FAILED
  return DONE


def full_results(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
  """What `results.json` holds: scores, settings, hashes, costs."""
  models = {a.model for a in outcome.answers.values() if a.model}
  judges = {
    verdict.judge
    for found in outcome.verdicts.values()
    for verdict in found.values()
  }
  return {
    **outcome.results,
    "settings": prepared.settings,
    "answered_by": sorted(models),
    "judged_by": sorted(judges),
    "counts": outcome.counts,
    "usage": prepared.usage(),
    "cost": prepared.cost(),
  }


def summary(results: dict[str, Any]) -> list[str]:
  """The results in a few lines."""

  def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"

  unscorable = results["unscorable"]
  interval = results["interval"]
  spread = ""
  if interval:
    spread = f"  95% interval {number(interval[0])} to {number(interval[1])}"
  reasons = ", ".join(f"{k} {v}" for k, v in unscorable["reasons"].items())
  lines = [
    f"score {number(results['score'])}{spread}",
    f"raw {number(results.get('raw'))}  unclipped"
    f" {number(results.get('unclipped'))}  clipped mean"
    f" {number(results['clipped_mean'])}",
    f"tasks {results['tasks']}, scored {results['scored']}, missing answers"
    f" {results['missing']}, unscorable tasks {unscorable['tasks']}"
    + (f" ({reasons})" if reasons else ""),
  ]
  return lines


def compare(
  folders: Sequence[str], against: Sequence[str], *, workdir: str = ""
) -> int:
  """Compares results folders; returns the exit code.

  With `workdir`, the comparison is written there as well.

  Raises:
    BenchmarkError: folders cannot be compared.
  """
  found = compare_folders(
    [pathlib.Path(f) for f in folders], [pathlib.Path(f) for f in against]
  )
  for line in comparison_text(found):
    print(line)
  if workdir:
    place = pathlib.Path(workdir)
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / COMPARISON, found)
    print(f"Comparison: {place / COMPARISON}")
  return DONE


def convert(benchmark: str, data: str, folder: str) -> int:
  """Writes data as ArrayRecord; returns the exit code.

  Raises:
    BenchmarkError: they cannot be used.
  """
  _check(benchmark, data)
  from varl_jax import benchmark_records  # loads tensorflow-datasets

  made = benchmark_records.convert(benchmark, data, folder)
  print(f"Records: {made}")
  return DONE


def _say(sentence: str) -> None:
  print(sentence, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
  """Ctrl-C and SIGTERM end the evaluation once running calls are in."""
  seen = False
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False  # Only the main thread may handle signals.
    return

  def ask(number: int, frame: types.FrameType | None) -> None:
    nonlocal seen
    if seen:
      raise KeyboardInterrupt
    seen = True
    say("Stopping once the calls under way are in; once more to stop now.")

  before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield lambda: seen
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
