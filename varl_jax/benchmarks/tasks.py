"""Held-out tasks in the project's own form, `types.Task`, one a line.

The score is the reward's: with its length term the two-sided, signed form,
otherwise r clipped for each task (paper section 4.1, appendix G).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  clipped,
  groups_of,
  ratio,
)
from varl_jax.rubrics import scoring
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.types import Task, from_json

NAME: Final = "tasks"


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a task; rubrics are taken as they are."""
  task: Task = from_json(Task, row)
  if not task.prompt or task.prompt[-1].role != "user":
    raise ValueError("its prompt has no last turn by the user.")
  points = [float(item.points) for item in task.rubric.criteria]
  scoring.rubric_score(points, [False] * len(points))
  return BenchmarkTask(
    task_id=task.task_id,
    prompt=task.prompt,
    criteria=task.rubric.criteria,
    groups=groups_of(
      use_case=task.use_case, type="red_team" if task.red_team else "good_faith"
    ),
  )


def make(
  reward: scoring.LengthTerm | None = None,
  *,
  checks: CheckRegistry | None = None,
  domain: str = "clinical",
) -> Benchmark:
  """The benchmark of such a file.

  Args:
    reward: the length term, None for none.
    checks: programs that its criteria may name.
    domain: whose prompts are used.
  """

  def adjusted(
    task: BenchmarkTask, met: Sequence[bool], answer: str
  ) -> dict[str, float]:
    assert reward is not None
    value = scoring.length_adjusted(
      ratio(task, met),
      len(answer),
      weight=reward.length_weight,
      center=reward.length_center,
      unit=reward.length_unit,
    )
    return {"score": value}

  return Benchmark(
    name=NAME,
    title="held-out tasks",
    to_task=to_task,
    measures=adjusted if reward and reward.length_adjusted else clipped,
    domain=domain,
    checks=checks or CheckRegistry(),
  )
