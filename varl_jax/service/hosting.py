"""A generation service with all that was opened for it.

`HostedService` is what the trainer holds in thread mode and what `http_server`
puts behind HTTP: the service, what its models cost, and everything that must
be closed after it, in order.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from varl_jax.service.calls import ServiceFailure
from varl_jax.service.co_training import Groups
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.solver_tools import ToolRunner
from varl_jax.types import GradedGroup, Task, ToolCall, ToolResult

# Totals since the process began, by metric.
Meter = Callable[[], Mapping[str, float]]

# Notices that are kept for clients which come back late.
NOTICES_KEPT: Final = 100
# Tasks tried for the canary until one's verdicts are all determined.
CANARY_TASKS: Final = 3


class Notices:
  """What people are told while a run goes on, numbered from 1.

  Args:
    show: called with every sentence as it comes, in any thread.
  """

  def __init__(self, show: Callable[[str], None]):
    self._show = show
    self._lock = threading.Lock()
    self._kept: collections.deque[tuple[int, str]] = collections.deque(
      maxlen=NOTICES_KEPT
    )
    self._count = 0

  def say(self, sentence: str) -> None:
    """Keeps a sentence and shows it."""
    with self._lock:
      self._count += 1
      self._kept.append((self._count, sentence))
    self._show(sentence)

  def since(self, number: int) -> list[tuple[int, str]]:
    """The kept sentences after a number; all after that of another life."""
    with self._lock:
      after = number if number <= self._count else 0
      return [notice for notice in self._kept if notice[0] > after]


class HostedService:
  """The service as one thing to call and to close.

  Its other methods are those of `GenerationService`.

  Args:
    service: serves, grades and repairs.
    notices: what people are told.
    meter: what its models used.
    away: whether calls wait for a server of its models.
    canary: whether to grade an empty answer once, after the first grading.
    tools: what runs the solver's tool calls, None for a solver without tools.
    closing: closed after the service, the last opened first.
  """

  def __init__(
    self,
    service: GenerationService,
    *,
    notices: Notices,
    meter: Meter = dict,
    away: Callable[[], bool] = lambda: False,
    canary: bool = False,
    tools: ToolRunner | None = None,
    closing: contextlib.ExitStack | None = None,
  ):
    self._service = service
    self._meter = meter
    self._away = away
    self._closing = closing or contextlib.ExitStack()
    self._tools = tools
    self._canary_due = canary
    self._canary: dict[str, float] = {}
    self._last: tuple[int, dict[str, float]] | None = None
    self._before: dict[str, float] = {}
    self.notices = notices
    self.poll = service.poll
    self.prompts_for = service.prompts_for
    self.rewards_for = service.rewards_for
    self.report = service.report
    self.rankings = service.rankings
    self.event_number = service.event_number
    self.rewind = service.rewind
    self.history = service.history
    self.cases = service.cases
    self.export_evidence = service.export_evidence

  def grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups] | None = None
  ) -> list[GradedGroup]:
    """See `GenerationService.grade`."""
    graded = self._service.grade(step, groups, others)
    if self._canary_due:
      self._canary_due = False
      self._send_canary([group.task for group in graded])
    return graded

  def run_tools(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """One result a call, in order; see `ToolRunner`.

    Raises:
      ServiceFailure: there are no tools, or a model is of no more use.
    """
    if self._tools is None:
      raise ServiceFailure(
        "The generation service has no tools; set tools.names on both sides."
      )
    return self._service.run(self._tools.run(calls))

  def _send_canary(self, tasks: Sequence[Task]) -> None:
    """Grades an empty answer; one that is paid is an alarm (spec section 3)."""
    for task in tasks[:CANARY_TASKS]:
      found = self._service.grade_canary(task)
      if found.score is None:
        continue
      self._canary = {
        "service/canary_score": found.score,
        "service/canary_alarm": float(found.alarm is not None),
      }
      if found.alarm is not None:
        self.notices.say(found.alarm)
      return

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """Lets calls end with `Stopped` that wait for a server of its models.

    Args:
      asked: whether the run is to stop.
    """
    self._service.give_up_when(lambda: asked() and self._away())

  def measures(self, step: int) -> dict[str, float]:
    """What was used since the last step that was asked about.

    Returns:
      `service/loop_lag_s` and `service/loop_lag_mean_s`, how late timers of the
      event loop were at most and on average; `calls/...` of the models; once
      `service/canary_score` and `service/canary_alarm`. The step that was asked
      about last gives the same again.
    """
    if self._last is None or self._last[0] != step:
      lag, totals = self._service.loop_lag(), dict(self._meter())
      found = {
        "service/loop_lag_s": lag.longest,
        "service/loop_lag_mean_s": lag.mean,
        **self._canary,
      }
      self._canary = {}
      for name, total in totals.items():
        found[name] = total - self._before.get(name, 0.0)
      self._before = totals
      self._last = (step, found)
    return dict(self._last[1])

  def health(self) -> dict[str, Any]:
    """Where the service stands.

    Returns:
      `step`, `event_number`, `measures` of the last step, `usage` in all, and
      `away`: whether calls wait for a server of its models.
    """
    return {
      "step": self._service.step(),
      "event_number": self._service.event_number(),
      "measures": None if self._last is None else self._last[1],
      "usage": dict(self._meter()),
      "away": self._away(),
    }

  def close(self) -> None:
    """Closes the service, then what it used; harmless when repeated."""
    self._closing.push(contextlib.closing(self._service))
    self._closing.close()
