"""Starts the processes of a run on several hosts, and what they share.

    python -m varl_jax.main --config=... --coordinator=10.0.0.1:8476 \
        --processes=2 --process=0   # and --process=1 on the other host

The environment's `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
`JAX_PROCESS_ID` say the same. On TPU pods and on GKE no word is needed;
`--distributed` asks jax to find the others where no variable tells of them
(TPU VMs started by hand, Slurm, Open MPI).

The hosts share the run's folder, where all of them write checkpoints.
"""

import dataclasses
import json
import os
import pathlib
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils

from varl_jax import serving
from varl_jax.config import Config, ConfigError
from varl_jax.llm.journal import JournalError
from varl_jax.protocols import Groups, Validator
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.service.event_log import StoreError
from varl_jax.service.evidence import CaseRecord
from varl_jax.team import Alone, First, Other, Team, TeamError
from varl_jax.types import (
  GradedGroup,
  GroupRanking,
  Task,
  ToolCall,
  ToolResult,
  from_json,
)

ALONE: Final = Alone()
# What a trainer may answer, and all processes therefore are told of.
FAILURES: Final[Mapping[str, type[Exception]]] = {
  "Stopped": Stopped,
  "ServiceFailure": ServiceFailure,
  "StoreError": StoreError,
  "JournalError": JournalError,
}
# Bytes of what process 0 tells by the first collective.
_NOTE: Final = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
  """Where the processes of a run find each other.

  Attributes:
    coordinator: host:port of process 0, "" when jax finds out all of it.
    count: processes of the run.
    index: of this process.
  """

  coordinator: str = ""
  count: int = 0
  index: int = 0


def find_launch(
  *,
  coordinator: str = "",
  count: int = 0,
  index: int = -1,
  distributed: bool = False,
  environment: Mapping[str, str] = os.environ,
) -> Launch | None:
  """How this process was started, None for a run of one process.

  Args:
    coordinator: the flag; the environment speaks where it is empty.
    count: likewise, 0 when not given.
    index: likewise, -1 when not given.
    distributed: whether jax is to find the others by itself.
    environment: of the process.

  Raises:
    TeamError: half of what is needed is given.
  """
  coordinator = coordinator or environment.get("JAX_COORDINATOR_ADDRESS", "")
  try:
    count = count or int(environment.get("JAX_NUM_PROCESSES", "0"))
    index = (
      index if index >= 0 else int(environment.get("JAX_PROCESS_ID", "-1"))
    )
  except ValueError as error:
    raise TeamError(
      f"JAX_NUM_PROCESSES and JAX_PROCESS_ID are numbers ({error})."
    ) from error
  if coordinator and (count or index >= 0):
    if not 0 <= index < count or not coordinator.rpartition(":")[2].isdigit():
      raise TeamError(
        "A run of several processes needs the address host:port of process 0,"
        " their number, and which one this is (from 0); got"
        f" {coordinator!r}, {count} and {index}."
      )
    return (
      Launch(coordinator=coordinator, count=count, index=index)
      if count > 1
      else None
    )
  if count > 1 or index > 0:
    raise TeamError(
      f"Process {max(index, 0)} of {count} has no --coordinator=HOST:PORT, the"
      " address of process 0."
    )
  pod = "," in environment.get("TPU_WORKER_HOSTNAMES", "")
  slices = bool(environment.get("MEGASCALE_COORDINATOR_ADDRESS"))
  return Launch() if distributed or coordinator or pod or slices else None


def join(launch: Launch | None, config: Config) -> Team:
  """Starts jax on all processes and opens the line between them.

  Raises:
    TeamError: the others cannot be found, or have other settings.
    ConfigError: the mesh leaves devices of some process idle.
  """
  if launch is None:
    return ALONE
  _start(launch)
  if jax.process_count() == 1:
    return ALONE
  check_mesh(config)
  return _connect(launch, config)


def pinned(config: Config, team: Team) -> Config:
  """See `serving.pinned`; process 0 alone needs the judge's template."""
  found = team.share(
    "template", lambda: serving.pinned(config).judge.template_sha256
  )
  judge = dataclasses.replace(config.judge, template_sha256=found)
  return dataclasses.replace(config, judge=judge)


def check_mesh(config: Config) -> None:
  """Raises ConfigError unless the mesh takes the devices of all processes."""
  mesh, devices = config.mesh, jax.device_count()
  if mesh.data * mesh.fsdp * mesh.tensor != devices:
    raise ConfigError(
      f"{jax.process_count()} processes have {devices} devices and the mesh"
      f" data x fsdp x tensor = {mesh.data} x {mesh.fsdp} x {mesh.tensor};"
      f" set mesh.data, mesh.fsdp and mesh.tensor to numbers whose product is"
      f" {devices}."
    )


def check_shared(workdir: pathlib.Path, team: Team) -> None:
  """Checks that all processes see one folder; it is there already.

  Raises:
    TeamError: in a process that does not see what process 0 wrote.
  """
  if team.count == 1:
    return
  mark = workdir / "processes"

  def write() -> str:
    text = uuid.uuid4().hex
    mark.write_text(text, encoding="utf-8")
    return text

  text = team.share("mark", write)
  if not mark.is_file() or mark.read_text(encoding="utf-8") != text:
    raise TeamError(
      f"Process {team.index} does not see the {workdir} of process 0; give all"
      " hosts one --workdir on a file system that they share."
    )


def _start(launch: Launch) -> None:
  # The run's own handlers save the state; jax's would replace them.
  jax.config.update("jax_enable_preemption_service", False)
  if jax.config.values["jax_cpu_collectives_implementation"] in (None, "none"):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
  try:
    if launch.coordinator and launch.count:
      jax.distributed.initialize(
        launch.coordinator,
        launch.count,
        launch.index,
        cluster_detection_method="deactivate",
      )
    else:
      jax.distributed.initialize()
  except (RuntimeError, ValueError) as error:
    reason = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
    raise TeamError(
      f"The processes of the run do not find each other ({reason}); give each"
      " --coordinator=HOST:PORT, --processes and --process."
    ) from error


def _connect(launch: Launch, config: Config) -> Team:
  """The line, whose address goes through a collective."""
  digest = f"{config.fingerprint()} {dataclasses.astuple(config.mesh)}"
  index, count = jax.process_index(), jax.process_count()
  host = launch.coordinator.rpartition(":")[0].strip("[]")
  first = None
  note = np.zeros(_NOTE, np.uint8)
  if index == 0:
    first = First(count, failures=FAILURES, loopback=_is_loopback(host))
    text = json.dumps([first.port, first.token, _addresses(host)]).encode()
    note[: len(text)] = np.frombuffer(text, np.uint8)
  note = multihost_utils.broadcast_one_to_all(note)
  if first is not None:
    first.accept(digest)
    return first
  port, token, hosts = json.loads(bytes(note).rstrip(b"\0"))
  other = Other(index, count, failures=FAILURES)
  other.connect(hosts, port, token=token, digest=digest)
  return other


def _is_loopback(host: str) -> bool:
  return host in ("localhost", "::1") or host.startswith("127.")


def _addresses(host: str) -> list[str]:
  """Names that the others may reach this machine by, the likeliest first."""
  found = [host] if host else []
  name = socket.gethostname()
  for resolve in (socket.gethostbyname, socket.getfqdn):
    try:
      found.append(resolve(name))
    except OSError:
      continue  # the machine does not know itself by this
  # A container's own name may be known to itself alone, as a loopback.
  others = [each for each in found[1:] if not _is_loopback(each)]
  return [*found[:1], *others, name][:8]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedService:
  """A `Service` and `ToolBox` that process 0 asks for all.

  Attributes:
    team: the processes.
    inner: the service, None in the others.
  """

  team: Team
  inner: Any

  def poll(self, step: int, count: int) -> list[Task]:
    return self.team.share(
      "poll",
      lambda: self.inner.poll(step, count),
      lambda found: _all(Task, found),
    )

  def grade(
    self,
    step: int,
    groups: Groups,
    others: Mapping[str, Groups] | None = None,
  ) -> list[GradedGroup]:
    return self.team.share(
      "grade",
      lambda: self.inner.grade(step, groups, others),
      lambda found: _all(GradedGroup, found),
    )

  def prompts_for(self, step: int, learner: str) -> list[Task]:
    return self.team.share(
      "prompts_for",
      lambda: self.inner.prompts_for(step, learner),
      lambda found: _all(Task, found),
    )

  def rewards_for(
    self, step: int, learner: str
  ) -> Sequence[Sequence[float | None]]:
    return self.team.share(
      "rewards_for", lambda: self.inner.rewards_for(step, learner)
    )

  def report(
    self,
    step: int,
    groups: list[GradedGroup],
    suspicion: Sequence[float | None] | None = None,
  ) -> dict[str, float]:
    return self.team.share(
      "report", lambda: self.inner.report(step, groups, suspicion)
    )

  def rankings(self, step: int) -> list[GroupRanking]:
    return self.team.share(
      "rankings",
      lambda: self.inner.rankings(step),
      lambda found: _all(GroupRanking, found),
    )

  def cases(self, limit: int) -> list[CaseRecord]:
    """The newest cases; asked by process 0 alone, which keeps answers."""
    return self.inner.cases(limit)

  def measures(self, step: int) -> dict[str, float]:
    return self.team.share("measures", lambda: self.inner.measures(step))

  def event_number(self) -> int:
    return self.team.share("event_number", lambda: self.inner.event_number())

  def rewind(self, seq: int) -> None:
    return self.team.share("rewind", lambda: self.inner.rewind(seq))

  def run_tools(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    return self.team.share(
      "run_tools",
      lambda: self.inner.run_tools(calls),
      lambda found: _all(ToolResult, found),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedValidator:
  """Held-out tasks that process 0 knows and scores; `inner` as above."""

  team: Team
  inner: Any

  @property
  def tasks(self) -> list[Task]:
    return self.team.share(
      "tasks", lambda: self.inner.tasks, lambda found: _all(Task, found)
    )

  def score(
    self, tasks: Sequence[Task], answers: Sequence[Sequence[str | None]]
  ) -> dict[str, float]:
    return self.team.share("score", lambda: self.inner.score(tasks, answers))


def shared_service(team: Team, service: Any) -> Any:
  """A service for every process; None is given outside process 0."""
  if team.count == 1:
    return service
  return SharedService(team=team, inner=service)


def shared_validator(
  team: Team, validator: Validator | None
) -> Validator | None:
  """Likewise, None for a run without validation."""
  if team.count == 1:
    return validator
  if not team.share("validates", lambda: validator is not None):
    return None
  return SharedValidator(team=team, inner=validator)


def shared_stop(team: Team, asked: Callable[[], bool]) -> Callable[[], bool]:
  """Whether any process was asked to stop; all get one answer."""
  return lambda: team.share("stop", asked)


def _all(kind: type[Any], found: Sequence[Any]) -> list[Any]:
  return [from_json(kind, each) for each in found]
