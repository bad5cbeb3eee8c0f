"""Answers a benchmark, grades the answers, scores them: one results folder.

    tasks -> answers -> verdicts -> results, page

Answers are graded while others are still being written. Both are saved as they
come and every paid call is journaled, so the same command goes on where it was
stopped. What a stop asks for is done first: no new call begins, those under way
end and are saved. Loads no jax.
"""

import asyncio
import collections
import contextlib
import dataclasses
import gc
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from varl_jax import benchmarks
from varl_jax.answer_sources import AnswerSource, Failed
from varl_jax.benchmarks.answering import Answer
from varl_jax.benchmarks.folder import (
  ANSWERS,
  VERDICTS,
  Key,
  Lines,
  answer_mark,
  read_answers,
  read_verdicts,
  verdict_row,
)
from varl_jax.benchmarks.grading import AnswerGrader
from varl_jax.benchmarks.protocol import Benchmark, BenchmarkTask
from varl_jax.benchmarks.scoring import scorable
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.types import Verdict, to_json

# Votes, or answers asked for, before their failure rate can stop a run.
MIN_VOTES: Final = 60
MIN_ANSWERS: Final = 20


@dataclasses.dataclass
class State:
  """How far an evaluation is."""

  answers: dict[Key, Answer]
  verdicts: dict[Key, dict[int, Verdict]]
  votes: int = 0
  failed_votes: int = 0
  failed_answers: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  asked_answers: int = 0
  graded: int = 0
  stop: str = ""
  failure: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What an evaluation came to.

  Attributes:
    results: of `benchmarks.score`, with `complete`.
    stopped: why it ended early: `interrupted`, `judge`, `model`, or "".
    failure: one sentence on it.
    answers: by task and sample.
    verdicts: likewise, by criterion.
    counts: votes, failed votes, calls for answers that failed by kind.
  """

  results: dict[str, Any]
  stopped: str
  failure: str
  answers: dict[Key, Answer]
  verdicts: dict[Key, dict[int, Verdict]]
  counts: dict[str, Any]


# Called with the answers graded so far and all there are to grade.
ShowProgress = Callable[[State, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
  """One evaluation in its folder.

  Attributes:
    benchmark: what is evaluated on.
    tasks: its tasks, or some of them.
    samples: answers a task.
    folder: where results are saved; claimed by the caller.
    source: answers what is not saved yet.
    grader: grades.
    in_flight: answers graded at a time; the endpoint limits its calls itself.
    max_failure_rate: share of failed votes, or of failed calls for answers,
      above which the evaluation stops.
    interrupted: asked before every new answer or grading.
    show: is told of progress.
    seed: of the bootstrap.
  """

  benchmark: Benchmark
  tasks: Sequence[BenchmarkTask]
  samples: int
  folder: pathlib.Path
  source: AnswerSource
  grader: AnswerGrader
  in_flight: int = 64
  max_failure_rate: float = 0.2
  interrupted: Callable[[], bool] = lambda: False
  show: ShowProgress = lambda state, total: None
  seed: int = 0

  def run(self) -> Outcome:
    """Runs to the end, or until it is stopped.

    Raises:
      BenchmarkError: the folder's files cannot be read or written.
      JournalError: likewise the journal's.
    """
    with contextlib.ExitStack() as stack:
      lines = [
        stack.enter_context(contextlib.closing(Lines(self.folder / name)))
        for name in (ANSWERS, VERDICTS)
      ]
      answers = read_answers(lines[0].rows)
      kept = self._kept(answers, lines[1].rows)
      saved = [verdict for found in kept.values() for verdict in found.values()]
      state = State(
        answers=answers,
        verdicts=kept,
        votes=sum(len(verdict.votes) for verdict in saved),
        failed_votes=sum(len(verdict.failures) for verdict in saved),
      )
      stack.enter_context(rare_collections())
      asyncio.run(self._run(state, *lines))
    return self._outcome(state)

  def _kept(
    self, answers: dict[Key, Answer], rows: list[dict[str, Any]]
  ) -> dict[Key, dict[int, Verdict]]:
    """Saved verdicts on the answers there are.

    An undetermined one is left out, to be asked for again: what was paid for
    comes from the journal, what failed on its way is asked anew.
    """
    kept: dict[Key, dict[int, Verdict]] = {}
    for key, found in read_verdicts(rows).items():
      answer = answers.get(key)
      if answer is None or answer.answer is None:
        continue
      mark = answer_mark(answer.answer)
      kept[key] = {
        index: verdict
        for index, (on, verdict) in found.items()
        if on == mark and verdict.met is not None
      }
    return kept

  async def _run(
    self, state: State, answer_lines: Lines, verdict_lines: Lines
  ) -> None:
    queue: asyncio.Queue[tuple[BenchmarkTask, int] | None] = asyncio.Queue()

    def stopped() -> bool:
      if not state.stop and self.interrupted():
        state.stop = "interrupted"
      return bool(state.stop)

    async def answer() -> None:
      wanted = []
      for task in self.tasks:
        for sample in range(self.samples):
          if (task.task_id, sample) in state.answers:
            queue.put_nowait((task, sample))
          else:
            wanted.append((task, sample))
      by_id = {task.task_id: task for task in self.tasks}
      if wanted:
        async for found in self.source.stream(wanted, stopped=stopped):
          self._save_answer(state, answer_lines, found)
          if isinstance(found, Answer):
            queue.put_nowait((by_id[found.task_id], found.sample))
          self.show(state, len(self.tasks) * self.samples)
      for _ in range(self.in_flight):
        queue.put_nowait(None)

    async def grade() -> None:
      while (item := await queue.get()) is not None:
        if stopped():
          return
        try:
          await self._grade(state, verdict_lines, *item)
        except ChatError as error:
          # Others that are under way are paid for: they end first.
          state.stop, state.failure = "judge", str(error)
        self.show(state, len(self.tasks) * self.samples)

    await together([answer(), *(grade() for _ in range(self.in_flight))])

  def _save_answer(
    self, state: State, lines: Lines, found: Answer | Failed
  ) -> None:
    state.asked_answers += 1
    if isinstance(found, Answer):
      lines.append([to_json(found)])
      state.answers[found.task_id, found.sample] = found
      return
    state.failed_answers[found.kind] += 1
    if found.fatal:
      state.stop, state.failure = "model", found.fatal
    failed = state.failed_answers.total()
    if (
      state.asked_answers >= min(MIN_ANSWERS, len(self.tasks))
      and failed / state.asked_answers > self.max_failure_rate
    ):
      state.stop = state.stop or "model"

  async def _grade(
    self, state: State, lines: Lines, task: BenchmarkTask, sample: int
  ) -> None:
    key = (task.task_id, sample)
    text = state.answers[key].answer
    if text is None or not scorable(task):
      state.graded += 1
      return
    known = state.verdicts.setdefault(key, {})
    found = await self.grader.grade(task, text, sample=sample, known=known)
    fresh = [i for i in range(len(found)) if i not in known]
    lines.append([verdict_row(key, i, text, found[i]) for i in fresh])
    for index in fresh:
      known[index] = found[index]
      state.votes += len(found[index].votes)
      state.failed_votes += len(found[index].failures)
    state.graded += 1
    asked = state.votes + state.failed_votes
    if (
      asked >= MIN_VOTES and state.failed_votes / asked > self.max_failure_rate
    ):
      state.stop = state.stop or "judge"

  def _outcome(self, state: State) -> Outcome:
    answers: dict[str, list[str | None]] = {}
    verdicts: dict[str, list[Sequence[Verdict | None]]] = {}
    for task in self.tasks:
      given, judged = [], []
      for sample in range(self.samples):
        saved = state.answers.get((task.task_id, sample))
        if saved is None:
          continue
        found = state.verdicts.get((task.task_id, sample), {})
        given.append(saved.answer)
        judged.append([found.get(i) for i in range(len(task.criteria))])
      answers[task.task_id], verdicts[task.task_id] = given, judged
    results = benchmarks.score(
      self.benchmark, self.tasks, verdicts, answers, seed=self.seed
    )
    stopped, failure = self._verdict_on(state, results)
    results["complete"] = not stopped
    return Outcome(
      results=results,
      stopped=stopped,
      failure=failure,
      answers=state.answers,
      verdicts=state.verdicts,
      counts={
        "votes": state.votes,
        "failed_votes": state.failed_votes,
        "failed_answers": dict(state.failed_answers),
      },
    )

  def _verdict_on(
    self, state: State, results: dict[str, Any]
  ) -> tuple[str, str]:
    """Why the evaluation is not whole, and a sentence that says it."""
    asked = state.votes + state.failed_votes
    limit = f"above judge.max_failure_rate {self.max_failure_rate:.0%}"
    if state.failure or state.stop == "interrupted":
      return state.stop, state.failure
    if asked and state.failed_votes / asked > self.max_failure_rate:
      share = state.failed_votes / asked
      return "judge", f"{share:.0%} of the judge's votes failed, {limit}."
    failed = state.failed_answers.total()
    if failed and failed / state.asked_answers > self.max_failure_rate:
      share = failed / state.asked_answers
      return "model", f"{share:.0%} of the calls for answers failed, {limit}."
    if results["score"] is None and not state.stop:
      return "judge", "No task could be scored."
    return state.stop, ""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
  """Lets the garbage collector run less often while calls are under way.

  Every call makes hundreds of objects, which are freed without it; looking
  through the ones that thousands of waiting calls hold took a third of the CPU
  time.
  """
  before = gc.get_threshold()
  gc.set_threshold(20_000, 20, 50)
  try:
    yield
  finally:
    gc.set_threshold(*before)
