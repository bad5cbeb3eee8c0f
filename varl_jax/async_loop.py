"""The training loop with the stages of several steps under way at once.

    tasks t+k+2 | sample t+k+1 | judge t+1 ... t+k+1 | update t+1 | repair t

The device does one thing at a time, in a fixed order: it samples step
t + k + 1, then it updates with step t + 1, where k is `train.staleness`. So a
sample is at most k updates old when it is trained on, which is checked for each
(`group_queue`), and a token's weight in the loss is the truncated ratio of the
trainer's probability before the update to the one it was drawn with
(`rl.losses.importance_weights`). Everything else belongs to the service and
goes on meanwhile, each kind of call in the order of the steps: the tasks of one
more step are asked for ahead, up to k + 1 steps are being judged, one is being
reported with up to k behind it. Held-out answers are sampled between two
updates and scored beside the training.

A repaired rubric reaches a batch that is asked for after the repair, so with
k > 0 what a run learns depends on how long calls take. What it leaves does not:
a step's checkpoint has the weights after its update and the number of the event
that ended its report, and waits for both. Later steps that are in flight then
have been served, perhaps graded, and not reported. A resumed run serves them
the same tasks and samples them anew with the weights it has, so no report is
lost or made twice.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from varl_jax.group_queue import GroupQueue, Lot
from varl_jax.rl.train_step import TrainState
from varl_jax.rollouts import Group
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.event_log import StoreError
from varl_jax.service.failpoints import failpoint
from varl_jax.suspicion import Look, RunState
from varl_jax.trainer import Trainer, TrainingFailure
from varl_jax.types import GradedGroup, GroupRanking, Task

Future = concurrent.futures.Future
Lots = GroupQueue[Group, GradedGroup]

# Names of the metrics of stages.
_TIMES = {
  "tasks": "poll",
  "sample": "rollouts",
  "judge": "verdicts",
  "update": "update",
  "repair": "report",
  "examine": "eval",
  "evaluate": "eval",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reported:
  """What a step's report gave; `number` is the event that ended it."""

  metrics: dict[str, float]
  rankings: list[GroupRanking]
  number: int


@dataclasses.dataclass(kw_only=True)
class _Ended:
  """A step whose update is done and whose record is not written.

  Attributes:
    step: its number.
    measured: so far.
    report: None for a step that was reported in an earlier life.
    evaluation: of the held-out tasks, if the step has one.
    weights: the policy after the update, for a checkpoint that is due.
    look: what the discriminator thought of the step.
  """

  step: int
  measured: dict[str, float]
  report: Future[_Reported] | None = None
  evaluation: Future[dict[str, float]] | None = None
  weights: TrainState | None = None
  look: Look | None = None

  @property
  def settled(self) -> bool:
    """Whether nothing is waited for."""
    waits = (self.report, self.evaluation)
    return all(wait is None or wait.done() for wait in waits)


@dataclasses.dataclass(kw_only=True)
class _Flight:
  """Where a run is.

  Attributes:
    state: after the update of step `trained`.
    lots: sampled and not trained.
    sampled: the last step that was sampled.
    trained: the last step whose update was made; the weights' version.
    recorded: the last step whose record is written.
    number: of the event that ended that step's report.
    tasks: asked for, by step.
    ended: steps between `recorded` and `trained`, the oldest first.
    updated: when the last update ended.
  """

  state: RunState
  lots: Lots
  sampled: int
  trained: int
  recorded: int
  number: int
  tasks: dict[int, Future[list[Task]]] = dataclasses.field(default_factory=dict)
  ended: collections.deque[_Ended] = dataclasses.field(
    default_factory=collections.deque
  )
  updated: float = dataclasses.field(default_factory=time.perf_counter)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Hands:
  """Threads that wait for the service, one pool a kind of call."""

  asking: concurrent.futures.ThreadPoolExecutor
  judging: concurrent.futures.ThreadPoolExecutor
  reporting: concurrent.futures.ThreadPoolExecutor
  scoring: concurrent.futures.ThreadPoolExecutor

  @classmethod
  @contextlib.contextmanager
  def of(cls, judging: int) -> Iterator["_Hands"]:
    """Ended without waiting for calls when something failed."""
    counts = {"asking": 1, "judging": judging, "reporting": 1, "scoring": 1}
    pools = {
      name: concurrent.futures.ThreadPoolExecutor(count, name)
      for name, count in counts.items()
    }
    whole = False
    try:
      yield cls(**pools)
      whole = True
    finally:
      for pool in pools.values():
        pool.shutdown(wait=whole, cancel_futures=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncTrainer(Trainer):
  """A trainer whose sampling runs `train.staleness` updates ahead."""

  def _run_from(
    self, state: RunState, done: int, pending: dict[str, float] | None
  ) -> tuple[RunState, int]:
    ahead = self.config.train.staleness
    if jax.process_count() > 1:
      raise TrainingFailure(
        "train.staleness needs a single process; set it to 0 on several hosts."
      )
    flight = _Flight(
      state=state,
      lots=GroupQueue(depth=ahead + 1, staleness=ahead, first=done + 1),
      sampled=done,
      trained=done,
      recorded=done,
      number=self.service.event_number(),
    )
    with _Hands.of(ahead + 1) as hands:
      try:
        self._fly(flight, hands, pending)
      except (ServiceFailure, StoreError) as error:
        if not self._of_the_disk(error):
          self._keep_whole(flight)
        raise
      finally:
        flight.lots.close()
    return flight.state, flight.recorded

  def _fly(
    self, flight: _Flight, hands: _Hands, pending: dict[str, float] | None
  ) -> None:
    steps = self.config.train.steps
    if pending or (self.validator is not None and not flight.trained):
      ended = _Ended(step=flight.trained, measured=pending or {})
      if self.validator is not None:
        ended.evaluation = self._examination(flight, hands)
      flight.ended.append(ended)
    while flight.trained < steps:
      self._sample_ahead(flight, hands)
      self._train_once(flight, hands)
      self._settle(flight)
      if self.interrupted():
        break
    self._settle(flight, everything=True)
    last = flight.recorded
    if last and last not in self.checkpoints.steps():
      self._save(last, flight.state, flight.number)

  def _sample_ahead(self, flight: _Flight, hands: _Hands) -> None:
    train = self.config.train
    while flight.sampled < min(
      train.steps, flight.trained + 1 + train.staleness
    ):
      step = flight.sampled + 1
      asked = self._ask(flight, hands, step)
      with self.timeline.waiting(f"the tasks of step {step}"):
        tasks = asked.result()
      del flight.tasks[step]
      failpoint("step/polled")
      if step < train.steps:
        self._ask(flight, hands, step + 1)
      groups = self._rollouts(tasks, flight.state.policy, step)
      versions = [[flight.trained] * len(g.rollouts) for g in groups]
      if not flight.lots.offer(step, groups, versions):
        raise AssertionError("Sampling ran ahead of its bound.")
      flight.sampled = step
      hands.judging.submit(self._judge, flight.lots, step, groups)

  def _ask(
    self, flight: _Flight, hands: _Hands, step: int
  ) -> Future[list[Task]]:
    if step not in flight.tasks:
      flight.tasks[step] = hands.asking.submit(self._tasks, step)
    return flight.tasks[step]

  def _tasks(self, step: int) -> list[Task]:
    with self.timeline.stage("tasks", step):
      return self.service.poll(step, self.config.train.tasks_per_step)

  def _judge(self, lots: Lots, step: int, groups: Sequence[Group]) -> None:
    try:
      graded = self._verdicts(groups, step)
    except BaseException as error:  # noqa: BLE001 - `take` raises it
      lots.fail(step, error)
    else:
      lots.grade(step, graded)

  def _train_once(self, flight: _Flight, hands: _Hands) -> None:
    step, state = flight.trained + 1, flight.state
    begun = time.perf_counter()
    with self.timeline.waiting(f"the verdicts of step {step}"):
      lot = flight.lots.take(version=flight.trained)
    waited = time.perf_counter() - begun
    failpoint("step/graded")
    graded = admitted(lot)
    batch, measured = self._batch(lot.groups, graded)
    ended = _Ended(step=step, measured=measured | staleness_metrics(lot))
    if self.suspecting is not None and batch is not None:
      ended.look = self.suspecting.look(state, batch, graded)
    suspicion = None if ended.look is None else ended.look.suspicion
    ended.report = hands.reporting.submit(
      self._report, step, lot.groups, graded, suspicion
    )
    flight.ended.append(ended)
    updated: dict[str, float] = {}
    if batch is not None:
      policy, updated = self._updated(state.policy, batch, step)
      flight.state = dataclasses.replace(state, policy=policy)
    flight.trained = step
    failpoint("step/updated")
    now = time.perf_counter()
    ended.measured |= updated | self._sampling(lot)
    ended.measured["time/wait"] = waited
    ended.measured["time/step"] = now - flight.updated
    flight.updated = now
    last = step == self.config.train.steps
    if self.checkpoints.due(step) and not last:
      ended.weights = _copied(flight.state.policy)
    due = last or step % max(1, self.config.eval.interval) == 0
    if due and self.validator is not None:
      ended.evaluation = self._examination(flight, hands)

  def _sampling(self, lot: Lot[Group, GradedGroup]) -> dict[str, float]:
    rollouts = [r for group in lot.groups for r in group.rollouts]
    return {
      "rollout/tasks": len(lot.groups),
      "rollout/overlong": self.config.train.tasks_per_step - len(lot.groups),
      "rollout/new_tokens": sum(sum(r.mask) for r in rollouts),
    }

  def _examination(
    self, flight: _Flight, hands: _Hands
  ) -> Future[dict[str, float]]:
    """Samples the held-out answers now; their scores come later."""
    answers = self._answered(flight.state.policy, flight.trained)
    return hands.scoring.submit(self._examined, answers, flight.trained)

  def _report(
    self,
    step: int,
    groups: Sequence[Group],
    graded: list[GradedGroup],
    suspicion: Sequence[float | None] | None,
  ) -> _Reported:
    with self.timeline.stage("repair", step):
      metrics = self.service.report(step, graded, suspicion)
      rankings = []
      if self.suspecting is not None:
        rankings = self.service.rankings(step)
      # The next report has not begun, so the number divides the two.
      number = self.service.event_number()
    measures = self.service.measures(step)
    self._keep_answers(step, groups, graded)
    return _Reported(
      metrics=metrics | measures,
      rankings=rankings,
      number=number,
    )

  def _settle(self, flight: _Flight, *, everything: bool = False) -> None:
    """Writes the records that are complete, and the checkpoints after them.

    It waits where more reports than `train.staleness` are outstanding, or
    where a whole interval's records wait for one evaluation.
    """
    ahead, ended = self.config.train.staleness, flight.ended
    if len(ended) > ahead:
      late = ended[-1 - ahead]
      if late.report is not None:
        with self.timeline.waiting(f"the repair of step {late.step}"):
          concurrent.futures.wait([late.report])
    most = max(ahead, self.config.eval.interval)
    while ended and (everything or ended[0].settled or len(ended) > most):
      self._finish(flight, ended[0])
      ended.popleft()

  def _finish(self, flight: _Flight, ended: _Ended) -> None:
    step, measured = ended.step, ended.measured
    with self.timeline.waiting(f"the record of step {step}"):
      if ended.report is not None:
        reported = ended.report.result()
        head = flight.state.head
        measured |= reported.metrics
        if self.suspecting and ended.look is not None and head is not None:
          head, learnt = self.suspecting.learn(
            head, ended.look, reported.rankings
          )
          flight.state = dataclasses.replace(flight.state, head=head)
          measured |= learnt
          ended.look = None
        flight.number = reported.number
        failpoint("step/reported")
        ended.report = None
      measured |= self._times(ended)
      if ended.evaluation is not None:
        try:
          measured |= ended.evaluation.result()
        except ServiceFailure:
          self._save_unvalidated(flight, ended)
          raise
        measured |= self._times(ended)
    self._record(step, measured)
    flight.recorded = step
    if ended.weights is not None:
      state = dataclasses.replace(flight.state, policy=ended.weights)
      self._save(step, state, flight.number)

  def _times(self, ended: _Ended) -> dict[str, float]:
    """Seconds of the stages, and what was done a second."""
    found: dict[str, float] = {}
    seconds = self.timeline.seconds(ended.step)
    for stage, spent in seconds.items():
      name = f"time/{_TIMES.get(stage, stage)}"
      found[name] = found.get(name, 0.0) + spent
    for metric, stage, name in (
      ("rollout/new_tokens", "sample", "rollout/new_tokens_per_s"),
      ("train/tokens", "update", "train/tokens_per_s"),
    ):
      if metric in ended.measured and seconds.get(stage):
        found[name] = ended.measured[metric] / seconds[stage]
    return found

  def _save_unvalidated(self, flight: _Flight, ended: _Ended) -> None:
    """The step is whole; its record waits for the validation."""
    policy = ended.weights
    if policy is None and flight.trained == ended.step:
      policy = flight.state.policy
    if policy is None or not ended.step:
      return
    if ended.step not in self.checkpoints.steps():
      state = dataclasses.replace(flight.state, policy=policy)
      self._save(ended.step, state, flight.number, pending=ended.measured)

  def _keep_whole(self, flight: _Flight) -> None:
    """After a failure, saves the last update if its report is there too."""
    # What stopped the run is the better cause to end with.
    with contextlib.suppress(ServiceFailure, StoreError):
      self._settle(flight, everything=True)
    if flight.recorded == flight.trained:
      self._keep(flight.recorded, flight.state, flight.number)


def admitted(lot: Lot[Group, GradedGroup]) -> list[GradedGroup]:
  """The graded groups of a lot; samples of the wrong age have no score."""
  found = []
  for group, fresh in zip(lot.grades, lot.fresh, strict=True):
    answers = tuple(
      answer if usable else dataclasses.replace(answer, score=None, raw=None)
      for answer, usable in zip(group.answers, fresh, strict=True)
    )
    found.append(dataclasses.replace(group, answers=answers))
  return found


def staleness_metrics(lot: Lot[Group, GradedGroup]) -> dict[str, float]:
  """`staleness/...`: updates that samples are behind, and how many refused."""
  behind = [age for group in lot.staleness for age in group]
  if not behind:
    return {}
  return {
    "staleness/mean": float(np.mean(behind)),
    "staleness/max": float(max(behind)),
    "staleness/refused": float(sum(not ok for g in lot.fresh for ok in g)),
  }


def _copied(state: Any) -> Any:
  """The arrays on the host; the next update consumes those on the device."""
  return jax.tree.map(lambda leaf: np.array(jax.device_get(leaf)), state)
