"""Validation by the judge on a file of held-out tasks with rubrics.

Every task of the file is answered and graded as in training, without the strict
note. The score is the benchmark's (paper section 4.1, appendix G): with the
length term its two-sided, signed form, otherwise the raw score. A missing
answer counts 0 and is reported apart, so that it can never pass for a short
one; an answer with an undetermined verdict is left out of the means and counted
too. Results go to the metrics that people read and to no role.
"""

import collections
import json
import os
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence

from varl_jax.config import Config, ConfigError
from varl_jax.llm.chat import ChatError, ChatModel
from varl_jax.llm.together import together
from varl_jax.roles.bundle import Roles, make_roles
from varl_jax.roles.grading import Grader
from varl_jax.rubrics import scoring
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.assessment import tally
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.loop import LoopThread
from varl_jax.types import Task, Verdict, from_json

MakeJudge = Callable[[], ChatModel]


def read_tasks(path: str | os.PathLike[str]) -> list[Task]:
  """Reads tasks in the form of `types.Task`, one JSON object a line.

  Rubrics are taken as they are, whatever their points and wording.

  Raises:
    ConfigError: no such file, or a line that cannot be used; names it.
  """
  try:
    with open(path, encoding="utf-8") as file:
      lines = file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise ConfigError(
      f"eval.tasks_path {os.fspath(path)!r} cannot be read: {error}."
    ) from error
  tasks: dict[str, Task] = {}
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    try:
      task = from_json(Task, json.loads(line))
      _check(task, tasks)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      raise ConfigError(f"{path}:{number} is no task: {error}") from error
    tasks[task.task_id] = task
  if not tasks:
    raise ConfigError(f"eval.tasks_path {os.fspath(path)!r} holds no tasks.")
  return list(tasks.values())


def _check(task: Task, seen: Mapping[str, Task]) -> None:
  if task.task_id in seen:
    raise ValueError(f"the task_id {task.task_id!r} occurs twice.")
  if not task.prompt or task.prompt[-1].role != "user":
    raise ValueError("its prompt has no last turn by the user.")
  points = [float(item.points) for item in task.rubric.criteria]
  scoring.rubric_score(points, [False] * len(points))


class JudgedValidator:
  """Held-out tasks of a file, graded by the judge.

  Args:
    config: the run's settings.
    checks: programmatic verifiers that rubrics may use.
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
    self.tasks = read_tasks(config.eval.tasks_path)
    self._config = config
    self._checks = checks
    self._registry = registry
    self._make_judge = make_judge
    self._asked: Callable[[], bool] = lambda: False
    self._loop: LoopThread | None = None
    self._roles: Roles | None = None

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """Lets `score` end with `Stopped` when `asked` says so."""
    self._asked = asked

  def score(
    self, tasks: Sequence[Task], answers: Sequence[Sequence[str | None]]
  ) -> dict[str, float]:
    """Grades answers and averages over them.

    Args:
      tasks: of `tasks`.
      answers: the answers to each; None where there is none.

    Returns:
      `eval/score`, `eval/raw` (clipped to [0, 1] each), `eval/unclipped` (r),
      shares `eval/missing` and `eval/undetermined`, `eval/failure_rate` of the
      judge's votes, and `eval/use_case_NAME`, `eval/red_team`,
      `eval/good_faith`: the score over those tasks. Means over no answers are
      left out.

    Raises:
      ServiceFailure: more votes failed than `judge.max_failure_rate` allows, or
        the judge's model is of no more use.
    """
    if self._loop is None or self._roles is None:
      self._roles = make_roles(
        self._make_judge(),
        self._config.domain,
        self._config.judge,
        self._checks,
        registry=self._registry,
      )
      self._loop = LoopThread("validation")
      self._loop.give_up_when(lambda: self._asked())
    grader = self._roles.grader
    try:
      rows = self._loop.run(self._graded(grader, tasks, answers))
    except ChatError as error:
      raise ServiceFailure(
        f"The judge of the validation is of no more use ({error}); mend that"
        " and resume the run."
      ) from error
    return self._metrics(rows)

  def close(self) -> None:
    """Ends the event loop and its processes; harmless when repeated."""
    if self._loop is not None:
      self._loop.close()
    if self._roles is not None:
      self._roles.close()

  async def _graded(
    self,
    grader: Grader,
    tasks: Sequence[Task],
    answers: Sequence[Sequence[str | None]],
  ) -> list[tuple[Task, str | None, tuple[Verdict, ...]]]:
    """One row an answer, in order."""
    pairs = [
      (task, answer, sample)
      for task, group in zip(tasks, answers, strict=True)
      for sample, answer in enumerate(group)
    ]
    verdicts = await together(
      self._verdicts(grader, task, answer, sample)
      for task, answer, sample in pairs
    )
    return [
      (task, answer, found)
      for (task, answer, _), found in zip(pairs, verdicts, strict=True)
    ]

  async def _verdicts(
    self, grader: Grader, task: Task, answer: str | None, sample: int
  ) -> tuple[Verdict, ...]:
    if answer is None:
      return ()
    # The same answer is graded under the same name after a restart.
    mark = zlib.crc32(answer.encode())
    return await grader.grade(
      task.prompt,
      answer,
      task.rubric,
      strict=False,
      op=f"validate/{task.task_id}/{sample}/{mark:08x}",
      seed=self._config.seed,
    )

  def _metrics(
    self, rows: Sequence[tuple[Task, str | None, tuple[Verdict, ...]]]
  ) -> dict[str, float]:
    counts = tally(verdict for _, _, found in rows for verdict in found)
    limit = self._config.judge.max_failure_rate
    if counts.failure_rate > limit:
      raise ServiceFailure(
        f"{counts.failure_rate:.0%} of the judge's votes in validation failed,"
        f" above judge.max_failure_rate {limit:.0%}; check the judge and resume"
        " the run."
      )
    columns: dict[str, list[float]] = collections.defaultdict(list)
    missing = undetermined = 0
    for task, answer, verdicts in rows:
      r = 0.0
      score = 0.0
      if answer is None:
        missing += 1
      else:
        value = scoring.verdict_score(task.rubric, verdicts)
        if value is None:
          undetermined += 1
          continue
        r, score = value, self._score(value, len(answer))
      columns["score"].append(score)
      columns["raw"].append(scoring.raw_score(r))
      columns["unclipped"].append(r)
      columns["red_team" if task.red_team else "good_faith"].append(score)
      if task.use_case:
        name = "_".join(task.use_case.split())
        columns[f"use_case_{name}"].append(score)
    total = max(1, len(rows))
    return {
      **{f"eval/{k}": statistics.fmean(v) for k, v in columns.items()},
      "eval/missing": missing / total,
      "eval/undetermined": undetermined / total,
      "eval/failure_rate": counts.failure_rate,
    }

  def _score(self, r: float, length: int) -> float:
    reward = self._config.reward
    if not reward.length_adjusted:
      return scoring.raw_score(r)
    return scoring.length_adjusted(
      r,
      length,
      weight=reward.length_weight,
      center=reward.length_center,
      unit=reward.length_unit,
    )


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
