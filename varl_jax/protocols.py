"""What the trainer asks of its partners; loads neither side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from varl_jax.types import (
  GradedGroup,
  GroupRanking,
  Rollout,
  Task,
  ToolCall,
  ToolResult,
)

if TYPE_CHECKING:
  from varl_jax.service.evidence import CaseRecord

Groups = Sequence[tuple[Task, Sequence[Rollout]]]


class ToolBox(Protocol):
  """Runs the tool calls of a policy."""

  def run_tools(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """One result a call, in order; a failure is a result that says so.

    Raises:
      ServiceFailure: no later call could succeed either.
    """
    ...


class Service(Protocol):
  """A generation service, in a thread of this process or behind HTTP.

  A call that is repeated within its step gives the recorded result. Each may
  raise `ServiceFailure` or `StoreError`.
  """

  def poll(self, step: int, count: int) -> list[Task]: ...

  def prompts_for(self, step: int, learner: str) -> list[Task]:
    """What a learner beside the policy is asked in a step, after its `poll`."""
    ...

  def grade(
    self,
    step: int,
    groups: Groups,
    others: Mapping[str, Groups] | None = None,
  ) -> list[GradedGroup]:
    """Grades the policy's groups; `others` are those of each other learner."""
    ...

  def rewards_for(
    self, step: int, learner: str
  ) -> Sequence[Sequence[float | None]]:
    """What that learner earned, once its step is graded, a rollout each."""
    ...

  def report(
    self,
    step: int,
    groups: list[GradedGroup],
    suspicion: Sequence[float | None] | None = None,
  ) -> dict[str, float]: ...

  def rankings(self, step: int) -> list[GroupRanking]:
    """What a discriminator learns from, once the step is reported."""
    ...

  def measures(self, step: int) -> dict[str, float]:
    """What the service measured of itself in the step; no result of it."""
    ...

  def cases(self, limit: int | None = None) -> list["CaseRecord"]:
    """Exploit cases for reports, the newest steps and widest leads first."""
    ...

  def event_number(self) -> int: ...

  def rewind(self, seq: int) -> None: ...


class Validator(Protocol):
  """Held-out tasks and how answers to them are scored."""

  @property
  def tasks(self) -> list[Task]: ...

  def score(
    self, tasks: Sequence[Task], answers: Sequence[Sequence[str | None]]
  ) -> dict[str, float]: ...
