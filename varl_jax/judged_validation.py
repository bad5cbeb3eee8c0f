"""Validation by the judge on held-out tasks: the evaluator's code, in training.

`eval.tasks_path` is read as the data of `eval.benchmark`, by default as tasks
of the project's own form. Loading, grading and scoring are those of
`varl_jax.benchmarks`, so a score in the metrics is the score of an evaluation
(paper section 4.1, appendix G). A missing answer counts 0 and is reported
apart, so that it can never pass for a short one; an answer with an undetermined
verdict is left out of the means and counted too. Results go to the metrics that
people read and to no role.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from varl_jax import benchmarks
from varl_jax.benchmarks import Benchmark, BenchmarkError, BenchmarkTask
from varl_jax.benchmarks import tasks as own_tasks
from varl_jax.benchmarks.grading import AnswerGrader
from varl_jax.config import Config, ConfigError
from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.together import together
from varl_jax.roles.bundle import Roles, make_roles
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.assessment import tally
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.loop import LoopThread
from varl_jax.types import Task, Verdict

MakeJudge = Callable[[], ChatModel]


def held_out(
  config: Config, *, checks: CheckRegistry | None = None
) -> tuple[Benchmark, list[BenchmarkTask]]:
  """The benchmark and the tasks that `eval` names.

  Args:
    config: the run's settings.
    checks: programs that tasks of the project's own form may use.

  Raises:
    ConfigError: they cannot be used; the message names the place.
  """
  settings = config.eval
  try:
    benchmark = (
      own_tasks.make(config.reward, checks=checks)
      if settings.benchmark == own_tasks.NAME
      else benchmarks.find(settings.benchmark)
    )
    return benchmark, benchmarks.load(benchmark, settings.tasks_path)
  except BenchmarkError as error:
    raise ConfigError(f"eval.tasks_path cannot be used: {error}") from error


class JudgedValidator:
  """Held-out tasks of a file, graded by the judge.

  Args:
    config: the run's settings.
    checks: programmatic verifiers that tasks of the project's own form may use.
    registry: importable name of `checks`, see `roles.bundle.make_roles`.
    make_judge: gives the judge's model. It is called once, at the first
      validation, and the model is used in an event loop of this object's own.

  Raises:
    ConfigError: the file cannot be used.
  """

  def __init__(
    self,
    config: Config,
    *,
    checks: CheckRegistry,
    make_judge: MakeJudge,
    registry: str = "",
  ):
    self._config = config
    self._make_judge = make_judge
    self._asked: Callable[[], bool] = lambda: False
    self._registry = registry
    self._loop: LoopThread | None = None
    self._roles: Roles | None = None
    self._benchmark, loaded = held_out(config, checks=checks)
    if any(task.images for task in loaded):
      raise ConfigError(
        "eval.tasks_path holds tasks with images, which the solver cannot see;"
        " give the text part alone."
      )
    self._tasks = {task.task_id: task for task in loaded}
    self.tasks = [task.as_task() for task in loaded]

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """Lets `score` end with `Stopped` when `asked` says so."""
    self._asked = asked

  def score(
    self, tasks: Sequence[Task], answers: Sequence[Sequence[str | None]]
  ) -> dict[str, float]:
    """Grades answers and averages over them.

    Args:
      tasks: of `tasks`.
      answers: the answers to each; None or empty where there is none.

    Returns:
      `eval/score`, `eval/raw` (clipped to [0, 1] each), `eval/unclipped` (r),
      shares `eval/missing` and `eval/undetermined`, `eval/failure_rate` of the
      judge's votes, and the score over each group of tasks: `eval/KIND_NAME`,
      such as `eval/use_case_consult`, and `eval/red_team`, `eval/good_faith`.
      Means over no answers are left out.

    Raises:
      ServiceFailure: more votes failed than `judge.max_failure_rate` allows, or
        the judge's model is of no more use.
    """
    if self._loop is None or self._roles is None:
      self._roles = self._make_roles()
      self._loop = LoopThread("validation")
      self._loop.give_up_when(lambda: self._asked())
    chosen = [self._tasks[task.task_id] for task in tasks]
    # Of an answer without a word, none of the shortness is to be rewarded.
    given = [[answer or None for answer in group] for group in answers]
    grader = AnswerGrader(
      grader=self._roles.grader, seed=self._config.seed, op="validate"
    )
    try:
      verdicts = self._loop.run(_graded(grader, chosen, given))
    except ChatError as error:
      raise ServiceFailure(
        f"The judge of the validation is of no more use ({error}); mend that"
        " and resume the run."
      ) from error
    rate = self._failure_rate(verdicts)
    found = benchmarks.score(
      self._benchmark,
      chosen,
      verdicts,
      given,
      seed=self._config.seed,
    )
    return {**_metrics(found), "eval/failure_rate": rate}

  def close(self) -> None:
    """Ends the event loop and its processes; harmless when repeated."""
    if self._loop is not None:
      self._loop.close()
    if self._roles is not None:
      self._roles.close()

  def _make_roles(self) -> Roles:
    judge, registry = self._config.judge, self._registry
    if self._benchmark.name != own_tasks.NAME:
      # Its checks are no model's writing and need no process of their own.
      judge, registry = dataclasses.replace(judge, check_workers=0), ""
    return make_roles(
      self._make_judge(),
      self._config.domain,
      judge,
      self._benchmark.checks,
      registry=registry,
    )

  def _failure_rate(
    self, verdicts: Sequence[Sequence[Sequence[Verdict]]]
  ) -> float:
    rate = tally(
      verdict for group in verdicts for found in group for verdict in found
    ).failure_rate
    limit = self._config.judge.max_failure_rate
    if rate > limit:
      raise ServiceFailure(
        f"{rate:.0%} of the judge's votes in validation failed, above"
        f" judge.max_failure_rate {limit:.0%}; check the judge and resume the"
        " run."
      )
    return rate


async def _graded(
  grader: AnswerGrader,
  tasks: Sequence[BenchmarkTask],
  answers: Sequence[Sequence[str | None]],
) -> list[list[tuple[Verdict, ...]]]:
  """Verdicts on every answer to every task; none on a missing one."""

  async def one(
    task: BenchmarkTask, answer: str | None, sample: int
  ) -> tuple[Verdict, ...]:
    if answer is None:
      return ()
    return await grader.grade(task, answer, sample=sample)

  found = iter(
    await together(
      one(task, answer, sample)
      for task, group in zip(tasks, answers, strict=True)
      for sample, answer in enumerate(group)
    )
  )
  return [[next(found) for _ in group] for group in answers]


def _metrics(found: Mapping[str, Any]) -> dict[str, float]:
  total = max(1, found["answers"])
  metrics = {
    f"eval/{name}": found[name]
    for name in ("score", "raw", "unclipped", "normalized")
    if found.get(name) is not None
  }
  metrics["eval/missing"] = found["missing"] / total
  metrics["eval/undetermined"] = found["unscorable"]["answers"] / total
  for kind, groups in found["breakdowns"].items():
    for name, entry in groups.items():
      # Kinds of tasks such as `red_team` need no word before them.
      label = name if kind == "type" else f"{kind} {name}"
      metrics[f"eval/{re.sub(r'[^0-9A-Za-z]+', '_', label)}"] = entry["score"]
  return metrics


def judge_maker(
  chat: ChatModel | None, make_judge: MakeJudge | None
) -> MakeJudge:
  """What gives the judge's model: the caller's way, or the domain's own model.

  Raises:
    ConfigError: there is neither.
  """
  if make_judge is not None:
    return make_judge
  if chat is None:
    raise ConfigError(
      "Validation on eval.tasks_path needs a judge; set endpoints.judge.model."
    )
  return lambda: chat
