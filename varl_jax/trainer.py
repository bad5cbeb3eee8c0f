"""The training loop.

One step, in this order (the code below follows it):
1. tasks: the service serves a batch from its pool, repaired tasks first;
2. rollouts: the policy answers each task n times; learners beside it, where a
   method has some, write what they are asked;
3. verdicts: the judge and the verifiers grade every answer;
4. scores: one a rollout, or none when it could not be scored;
5. advantages: score minus the mean of its group;
6. update: GRPO over mini-batches of whole groups, for each learner;
7. report: exploit case -> repair -> pool, then the guidance and the memo; a
   discriminator, if there is one, says before which groups look suspicious and
   learns after from what the referee said;
8. record: validation at its interval, metrics, checkpoint.

This is the loop on policy; with `train.staleness` the same stages overlap
(`async_loop`).

The service is told no validation score and the learner sees no text of the
adversary: neither has an argument for it.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax

from varl_jax.checkpoints import CheckpointError, Checkpoints, SaveError
from varl_jax.companions import Companion, fresh_states, scored_batch
from varl_jax.config import Config
from varl_jax.llm.journal import JournalError
from varl_jax.metrics import MetricsWriter, Progress, RecordError
from varl_jax.protocols import Service, Validator
from varl_jax.rl.batch import Batch
from varl_jax.rl.train_step import Learner, TrainState
from varl_jax.rollout_log import RolloutLog
from varl_jax.rollouts import Group, RolloutWorker
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.event_log import StoreError
from varl_jax.service.failpoints import failpoint
from varl_jax.step_measures import (
  Clock,
  criterion_metrics,
  length_metrics,
  tool_metrics,
)
from varl_jax.suspicion import RunState, Suspecting
from varl_jax.timeline import Timeline
from varl_jax.types import GradedGroup, Rollout, Task

# What a run may lose on its way without losing what it saved.
_LOST: Final = (StoreError, JournalError, SaveError, RecordError)


class TrainingFailure(Exception):
  """Training cannot go on; one sentence says why and what to change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
  """Joins the policy's side and the service's side of the loop.

  Attributes:
    config: settings of the run.
    service: serves, grades and repairs.
    worker: samples answers in training.
    examiner: samples answers in validation.
    learner: updates weights.
    checkpoints: where the state is kept.
    metrics: where records go.
    progress: what people watch.
    validator: held-out tasks, None for a run without validation.
    suspecting: the discriminator, None for a run without.
    kept: where answers are kept for people to read, None for nowhere.
    companions: learners beside the policy.
    interrupted: asked after every step; True stops with the state saved.
    usage: totals of what validation asked models for, by metric.
    timeline: notes when stages begin and end.
  """

  config: Config
  service: Service
  worker: RolloutWorker
  examiner: RolloutWorker
  learner: Learner
  checkpoints: Checkpoints
  metrics: MetricsWriter
  progress: Progress
  validator: Validator | None = None
  suspecting: Suspecting | None = None
  kept: RolloutLog | None = None
  companions: tuple[Companion, ...] = ()
  interrupted: Callable[[], bool] = lambda: False
  usage: Callable[[], Mapping[str, float]] = dict
  timeline: Timeline = dataclasses.field(default_factory=Timeline)

  def run(self, params: Any) -> tuple[TrainState, int]:
    """Trains from the newest checkpoint, or from `params` without one.

    Returns:
      The state and the number of steps done; fewer than configured when
      interrupted.

    Raises:
      ServiceFailure: the service, its store, the judge of the validation or
        the disk cannot go on; the last whole step is saved unless its weights
        were already being updated or the disk has failed. The last checkpoint
        is there in any case.
    """
    state, done, pending = self._resume(self._fresh(params))
    try:
      state, done = self._run_from(state, done, pending)
    except _LOST as error:
      raise ServiceFailure(str(error)) from error
    return state.policy, done

  def _run_from(
    self, state: RunState, done: int, pending: dict[str, float] | None
  ) -> tuple[RunState, int]:
    if done == 0 and self.validator is not None:
      self._record(0, self._validate(state, 0))
    elif pending:
      self._record(done, pending | self._validate(state, done))
    while done < self.config.train.steps:
      boundary = self.service.event_number()
      try:
        state, measured = self._step(state, done + 1)
      except (ServiceFailure, StoreError) as error:
        if not self._of_the_disk(error):
          self._keep(done, state, boundary)
        raise
      done += 1
      last = done == self.config.train.steps
      if last or done % max(1, self.config.eval.interval) == 0:
        try:
          measured |= self._validate(state, done)
        except ServiceFailure:
          # The step is whole; its record waits for the validation.
          number = self.service.event_number()
          self._save(done, state, number, pending=measured)
          raise
      # Recorded first: a crash in between repeats the step and its record.
      self._record(done, measured)
      stop = self.interrupted()
      if last or stop or self.checkpoints.due(done):
        number = self.service.event_number()
        self._save(done, state, number, wait=last or stop)
      if stop:
        break
    return state, done

  def _fresh(self, params: Any) -> RunState:
    return RunState(
      policy=self.learner.init(params),
      head=None if self.suspecting is None else self.suspecting.init(),
      others=fresh_states(self.companions),
    )

  def _step(
    self, state: RunState, step: int
  ) -> tuple[RunState, dict[str, float]]:
    train, policy, head = self.config.train, state.policy, state.head
    clock = Clock()
    with self.timeline.stage("tasks", step):
      tasks = self.service.poll(step, train.tasks_per_step)
    clock.lap("poll")
    failpoint("step/polled")
    groups = self._rollouts(tasks, policy, step)
    sampled = clock.lap("rollouts")
    beside = self._beside(state, step)
    if beside:
      clock.lap("companions")
    graded = self._verdicts(groups, step, beside)
    clock.lap("verdicts")
    failpoint("step/graded")
    batch, measured = self._batch(groups, graded)
    look = None
    if self.suspecting is not None and batch is not None:
      look = self.suspecting.look(state, batch, graded)
      clock.lap("suspicion")
    updated: dict[str, float] = {}
    if batch is not None:
      policy, updated = self._updated(policy, batch, step)
    trained = clock.lap("update")
    others, learnt = self._learn(state.others, beside, step)
    measured |= learnt
    if beside:
      clock.lap("companions_update")
    failpoint("step/updated")
    suspicion = None if look is None else look.suspicion
    with self.timeline.stage("repair", step):
      reported = self.service.report(step, graded, suspicion)
    if self.suspecting is not None and look is not None and head is not None:
      rankings = self.service.rankings(step)
      head, learnt = self.suspecting.learn(head, look, rankings)
      reported |= learnt
    reported |= self.service.measures(step)
    self._keep_answers(step, groups, graded)
    clock.lap("report")
    failpoint("step/reported")
    tokens = sum(sum(r.mask) for g in groups for r in g.rollouts)
    measured |= updated | reported | clock.times()
    measured["rollout/tasks"] = len(groups)
    measured["rollout/overlong"] = len(tasks) - len(groups)
    measured["rollout/new_tokens"] = tokens
    measured["rollout/new_tokens_per_s"] = tokens / sampled
    if batch is not None:
      measured["train/tokens_per_s"] = updated["train/tokens"] / trained
    return RunState(policy=policy, head=head, others=others), measured

  def _beside(self, state: RunState, step: int) -> dict[str, list[Group]]:
    """What each companion writes in a step, by its name."""
    found = {}
    for companion in self.companions:
      name = companion.name
      prompts = self.service.prompts_for(step, name)
      found[name] = companion.collect(prompts, state.others[name], step=step)
      if prompts and not found[name]:
        raise TrainingFailure(
          f"All {len(prompts)} prompts of {name} in step {step} are longer"
          f" than model.max_prompt ({self.config.model.max_prompt} tokens);"
          " raise it."
        )
    return found

  def _learn(
    self,
    states: Mapping[str, TrainState],
    beside: Mapping[str, Sequence[Group]],
    step: int,
  ) -> tuple[dict[str, TrainState], dict[str, float]]:
    """Updates each companion by what the service says it earned."""
    after, measured = dict(states), {}
    for companion in self.companions:
      name = companion.name
      batch, found = companion.batch(
        beside[name], self.service.rewards_for(step, name)
      )
      measured |= found
      if batch is not None:
        after[name], updated = companion.learner.update(states[name], batch)
        _check_finite(updated, step)
        measured |= companion.named(updated)
    return after, measured

  def _rollouts(
    self, tasks: Sequence[Task], policy: TrainState, step: int
  ) -> list[Group]:
    with self.timeline.stage("sample", step):
      groups = self.worker.collect(
        tasks, n=self.config.train.samples, params=policy.params, step=step
      )
    if tasks and not groups:
      raise TrainingFailure(
        f"All {len(tasks)} prompts of step {step} are longer than"
        f" model.max_prompt ({self.config.model.max_prompt} tokens); raise it."
      )
    return groups

  def _verdicts(
    self,
    groups: Sequence[Group],
    step: int,
    beside: Mapping[str, Sequence[Group]] | None = None,
  ) -> list[GradedGroup]:
    with self.timeline.stage("judge", step):
      return self.service.grade(
        step,
        _answers(groups),
        {name: _answers(own) for name, own in (beside or {}).items()},
      )

  def _updated(
    self, policy: TrainState, batch: Batch, step: int
  ) -> tuple[TrainState, dict[str, float]]:
    with self.timeline.stage("update", step):
      policy, updated = self.learner.update(policy, batch)
    _check_finite(updated, step)
    return policy, updated

  def _batch(
    self, groups: Sequence[Group], graded: Sequence[GradedGroup]
  ) -> tuple[Batch | None, dict[str, float]]:
    """Scores -> advantages, packed with the rollouts they belong to."""
    batch, measured = scored_batch(
      groups,
      [[answer.score for answer in group.answers] for group in graded],
      raws=[[answer.raw for answer in group.answers] for group in graded],
      min_graded=self.config.train.min_graded,
      max_prompt=self.config.model.max_prompt,
      max_response=self.config.model.max_response,
    )
    rollouts = [r for g in groups for r in g.rollouts]
    measured |= length_metrics(rollouts)
    measured |= criterion_metrics(graded)
    if self.config.tools.chosen:
      measured |= tool_metrics(rollouts)
    return batch, measured

  def _keep_answers(
    self, step: int, groups: Sequence[Group], graded: Sequence[GradedGroup]
  ) -> None:
    """Leaves some answers of a reported step for people to read."""
    if self.kept is not None:
      cases = self.service.cases(self.kept.config.rollouts)
      self.kept.write(step, groups, graded, cases)

  def _validate(self, state: RunState, step: int) -> dict[str, float]:
    if self.validator is None:
      return {}
    started = time.perf_counter()
    found = self._examined(self._answered(state.policy, step), step)
    return found | {"time/eval": time.perf_counter() - started}

  def _answered(
    self, policy: TrainState, step: int
  ) -> dict[str, list[str | None]]:
    """The policy's answers to the held-out tasks whose prompts fit."""
    assert self.validator is not None
    with self.timeline.stage("examine", step):
      groups = self.examiner.collect(
        self.validator.tasks,
        n=self.config.eval.samples,
        params=policy.params,
        step=step,
      )
    return {g.task.task_id: [r.answer for r in g.rollouts] for g in groups}

  def _examined(
    self, answers: Mapping[str, list[str | None]], step: int
  ) -> dict[str, float]:
    """What the answers score, and what that cost."""
    assert self.validator is not None
    before, tasks = self.usage(), self.validator.tasks
    missing = [None] * self.config.eval.samples
    with self.timeline.stage("evaluate", step):
      found = self.validator.score(
        tasks, [answers.get(t.task_id, missing) for t in tasks]
      )
    used = {
      f"eval/{name}": total - before.get(name, 0.0)
      for name, total in self.usage().items()
    }
    return found | used

  def _record(self, step: int, measured: dict[str, float]) -> None:
    self.timeline.forget(step)
    # A record proves that the checkpoints before it were completed.
    self.checkpoints.wait()
    self.progress.update(self.metrics.write(step, measured))
    failpoint("record/written")

  def _of_the_disk(self, error: Exception) -> bool:
    """Whether what failed lies on the disk that checkpoints would go to."""
    service = self.config.service
    if isinstance(error, StoreError):
      return not (service.url or service.store_env)
    return isinstance(error.__cause__, JournalError)

  def _keep(self, done: int, state: RunState, event_number: int) -> None:
    """Saves the last whole step after a failure, where that can be done."""
    try:
      self.checkpoints.wait()
      if not done or not _intact(state) or done in self.checkpoints.steps():
        return
      self._save(done, state, event_number)
    except SaveError as error:
      # What stopped the run is the better cause to end with.
      print(f"varl_jax: {error}", file=sys.stderr)

  def _save(
    self,
    step: int,
    state: RunState,
    event_number: int,
    *,
    pending: dict[str, float] | None = None,
    wait: bool = True,
  ) -> None:
    """Saves the state after a step; `pending` is its record, if not written.

    Without `wait`, a save in the background goes on during the next step.
    """
    failpoint("checkpoint/begun")
    with self.timeline.stage("checkpoint", step):
      self.checkpoints.save(
        step,
        state.saved(),
        {
          "event_number": event_number,
          "pending": pending,
          "fingerprint": self.config.fingerprint(),
          "seed": self.config.seed,
        },
      )
      if wait:
        self.checkpoints.wait()
    failpoint("checkpoint/saved")

  def _resume(
    self, state: RunState
  ) -> tuple[RunState, int, dict[str, float] | None]:
    """Goes back to the newest checkpoint, in all three places at once.

    Returns:
      The state, its step, and what is to be recorded of that step still.
    """
    step = self.checkpoints.latest()
    self._check_checkpoints(step or 0)
    if step is None:
      self.service.rewind(0)
      self._rewind(-1)
      return state, 0, None
    found, meta = self.checkpoints.restore(step, _released(state.saved()))
    if meta["fingerprint"] != self.config.fingerprint():
      raise CheckpointError(
        f"The checkpoints in {self.checkpoints.folder} belong to another"
        " config; choose another --workdir."
      )
    self.service.rewind(meta["event_number"])
    self._rewind(step)
    return RunState.restored(found), step, meta.get("pending")

  def _rewind(self, step: int) -> None:
    self.metrics.rewind(step)
    if self.kept is not None:
      self.kept.rewind(step)

  def _check_checkpoints(self, newest: int) -> None:
    """Compares what can be read with what the records say must be there.

    A step is recorded before its checkpoint, so a record beyond a scheduled
    checkpoint proves that it was completed; so does a numbered folder.

    Raises:
      CheckpointError: none is left where there was one: starting over would
        wipe the run's records.
    """
    every = self.checkpoints.interval
    scheduled = (max(0, (self.metrics.last_step or 0) - 1) // every) * every
    wanted = max([scheduled, *self.checkpoints.damaged()])
    if newest >= wanted:
      return
    missing = f"The checkpoint of step {wanted} in {self.checkpoints.folder}"
    if not newest:
      raise CheckpointError(
        f"{missing} is missing or damaged, and so are all others; restore the"
        " folder, or choose another --workdir to start over."
      )
    print(
      f"{missing} is missing or damaged; going on from step {newest}.",
      file=sys.stderr,
    )


def _released(state: Any) -> Any:
  """Shapes and places of a state that is given up for another one.

  Its arrays are gone afterwards: two states need not fit beside each other.
  """
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )
  for leaf in jax.tree.leaves(state):
    leaf.delete()
  return like


def _answers(groups: Sequence[Group]) -> list[tuple[Task, list[Rollout]]]:
  return [(group.task, list(group.rollouts)) for group in groups]


def _check_finite(updated: Mapping[str, float], step: int) -> None:
  """Refuses a step that moved nothing because no update was finite."""
  if updated["train/nonfinite"] and not updated["train/updates"]:
    raise TrainingFailure(
      f"No update of step {step} was finite; lower train.learning_rate."
      " The last checkpoint is untouched."
    )


def _intact(state: RunState) -> bool:
  """Whether the weights are still there: an update consumes its input."""
  return not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
