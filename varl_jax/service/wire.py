"""What travels between the trainer and a service in another process.

A call is a value that knows how to run itself; it and its result go through
`types.to_json` and `types.from_json`. Tokens, log-probabilities and masks of
rollouts stay with the trainer: the service grades texts.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

from varl_jax.llm.journal import JournalError
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.co_training import Rewards
from varl_jax.service.store import StoreError
from varl_jax.types import (
  GradedGroup,
  GroupRanking,
  Rollout,
  Task,
  ToolCall,
  ToolResult,
  from_json,
  to_json,
)

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
CALL_HEADER: Final = "X-Varl-Call"
RUN_HEADER: Final = "X-Varl-Run"
FINGERPRINT_HEADER: Final = "X-Varl-Fingerprint"

# Errors that are the same on both sides.
ERRORS: Final[dict[str, type[Exception]]] = {
  "JournalError": JournalError,
  "ServiceFailure": ServiceFailure,
  "StoreError": StoreError,
}


class RemoteBug(RuntimeError):
  """The service failed by a mistake of its program; its log has the trace."""


class Call(Protocol):
  """A call of the service as a value."""

  NAME: ClassVar[str]
  RESULT: ClassVar[Any]

  def run(self, service: Any) -> Any: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll:
  """`GenerationService.poll`."""

  NAME: ClassVar[str] = "poll"
  RESULT: ClassVar[Any] = tuple[Task, ...]

  step: int
  count: int

  def run(self, service: Any) -> Any:
    return service.poll(self.step, self.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
  """The rollouts of one serving of a task, without their tokens."""

  task: Task
  rollouts: tuple[Rollout, ...]

  @classmethod
  def of(cls, task: Task, rollouts: Sequence[Rollout]) -> "Answers":
    """Leaves out what no judge reads."""
    bare = (
      dataclasses.replace(rollout, tokens=(), logprobs=(), mask=())
      for rollout in rollouts
    )
    return cls(task=task, rollouts=tuple(bare))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptsFor:
  """`GenerationService.prompts_for`."""

  NAME: ClassVar[str] = "prompts_for"
  RESULT: ClassVar[Any] = tuple[Task, ...]

  step: int
  learner: str

  def run(self, service: Any) -> Any:
    return service.prompts_for(self.step, self.learner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerAnswers:
  """The rollouts of one learner beside the policy."""

  learner: str
  groups: tuple[Answers, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grade:
  """`GenerationService.grade`."""

  NAME: ClassVar[str] = "grade"
  RESULT: ClassVar[Any] = tuple[GradedGroup, ...]

  step: int
  groups: tuple[Answers, ...]
  others: tuple[LearnerAnswers, ...] = ()

  def run(self, service: Any) -> Any:
    others = {
      own.learner: [(g.task, g.rollouts) for g in own.groups]
      for own in self.others
    }
    groups = [(g.task, g.rollouts) for g in self.groups]
    return service.grade(self.step, groups, others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardsFor:
  """`GenerationService.rewards_for`."""

  NAME: ClassVar[str] = "rewards_for"
  RESULT: ClassVar[Any] = Rewards

  step: int
  learner: str

  def run(self, service: Any) -> Any:
    return service.rewards_for(self.step, self.learner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """`GenerationService.report`."""

  NAME: ClassVar[str] = "report"
  RESULT: ClassVar[Any] = dict

  step: int
  groups: tuple[GradedGroup, ...]
  suspicion: tuple[float | None, ...] | None = None

  def run(self, service: Any) -> Any:
    return service.report(self.step, list(self.groups), self.suspicion)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rankings:
  """`GenerationService.rankings`."""

  NAME: ClassVar[str] = "rankings"
  RESULT: ClassVar[Any] = tuple[GroupRanking, ...]

  step: int

  def run(self, service: Any) -> Any:
    return service.rankings(self.step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measures:
  """`HostedService.measures`."""

  NAME: ClassVar[str] = "measures"
  RESULT: ClassVar[Any] = dict

  step: int

  def run(self, service: Any) -> Any:
    return service.measures(self.step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTools:
  """`HostedService.run_tools`."""

  NAME: ClassVar[str] = "run_tools"
  RESULT: ClassVar[Any] = tuple[ToolResult, ...]

  calls: tuple[ToolCall, ...]

  def run(self, service: Any) -> Any:
    return service.run_tools(self.calls)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewind:
  """`GenerationService.rewind`."""

  NAME: ClassVar[str] = "rewind"
  RESULT: ClassVar[Any] = None

  seq: int

  def run(self, service: Any) -> Any:
    return service.rewind(self.seq)


CALLS: Final[dict[str, Any]] = {
  kind.NAME: kind
  for kind in (
    Poll,
    PromptsFor,
    Grade,
    RewardsFor,
    Report,
    Rankings,
    Measures,
    RunTools,
    Rewind,
  )
}


def pack(value: Any) -> bytes:
  """A value as JSON; NaN is refused."""
  return json.dumps(
    to_json(value), separators=(",", ":"), allow_nan=False
  ).encode()


def read_call(name: str, body: bytes) -> Call:
  """Reads a call from the body of a request.

  Raises:
    ValueError: it is no such call.
  """
  if name not in CALLS:
    raise ValueError(f"There is no call {name!r}; there are {sorted(CALLS)}.")
  kind = CALLS[name]
  try:
    call = from_json(kind, json.loads(body))
  except (TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f"The body is no call {name!r} ({error}).") from error
  for field in dataclasses.fields(kind):
    value = getattr(call, field.name)
    if field.type is int and type(value) is not int:
      raise ValueError(f"{name}.{field.name} is an integer, got {value!r}.")
  return call


def job_name(name: str, body: bytes) -> str:
  """The same for the same call."""
  return f"{name}-{hashlib.sha256(body).hexdigest()[:24]}"


def pack_error(error: Exception) -> dict[str, str]:
  """An error as a type and a sentence."""
  name = type(error).__name__
  if name in ERRORS:
    return {"type": name, "message": str(error)}
  return {"type": "RemoteBug", "message": f"{name}: {error}"}


def unpack_error(packed: dict[str, str]) -> Exception:
  """The error to raise on the other side."""
  kind = ERRORS.get(packed["type"])
  if kind is not None:
    return kind(packed["message"])
  return RemoteBug(
    f"The generation service failed by a mistake of its own"
    f" ({packed['message']}); its output has the trace."
  )


def host_name(host: str) -> str:
  """A Host header without its port and brackets."""
  if host.startswith("["):
    return host[1:].partition("]")[0]
  return host.partition(":")[0]
