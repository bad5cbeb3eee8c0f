"""What a service adds for a method that trains more than the policy.

A step's rollouts of all learners come in one grading: what each earns may
depend on what the others wrote. Their rewards are an event of the step.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from varl_jax.service.event_log import Event
from varl_jax.types import GradedGroup, Rollout, Task, Verdict

Groups = Sequence[tuple[Task, Sequence[Rollout]]]
# One a rollout of each group; None for what could not be scored.
Rewards = tuple[tuple[float | None, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoGraded:
  """A step's grading.

  Attributes:
    groups: of the policy.
    rewards: of the other learners by name, in the order of their rollouts.
    verdicts: all that were asked for; they count in the judge's failure rate.
    measures: metrics of the step.
    record: what the event log keeps of it beside.
  """

  groups: tuple[GradedGroup, ...]
  rewards: Mapping[str, Rewards]
  verdicts: tuple[Verdict, ...]
  measures: Mapping[str, float]
  record: Any


class CoTraining(Protocol):
  """What a method with several learners brings."""

  def prompts(self, learner: str, tasks: Sequence[Task]) -> list[Task]:
    """What a learner beside the policy is asked in a step.

    Args:
      learner: its name.
      tasks: of the step.

    Returns:
      Tasks whose ids are unique in the run; a learner's prompt for a task whose
      id ends in it, after a slash.
    """
    ...

  async def grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups]
  ) -> CoGraded:
    """Grades a step of all learners.

    Args:
      step: the step.
      groups: of the policy.
      others: of the other learners by name; groups may be missing whose prompt
        was too long.
    """
    ...


def rewards_event(step: int, graded: CoGraded) -> Event:
  """What learners beside the policy earned."""
  return Event(
    uid=f"rewards/{step}",
    step=step,
    kind="rewards",
    payload={
      "rewards": {
        name: [list(row) for row in rows]
        for name, rows in graded.rewards.items()
      },
      "measures": dict(graded.measures),
      "record": graded.record,
    },
  )
