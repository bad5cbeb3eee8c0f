"""The generation service: what the trainer asks for tasks and reports to.

A step is `poll`, `grade`, `report`; steps may overlap, each kind of call in the
order of the steps. The service is made of parts and does not
know which method they form (`methods`); it is transport-free, and every answer
depends on the event log and the models' replies alone. A `poll`, `grade` or
`report` that is repeated within its step gives the recorded result.

No call takes a validation score, so none can reach a role.
"""

import dataclasses
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from varl_jax.config import Config
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.roles.canary import Canary, grade_canary
from varl_jax.service import evidence
from varl_jax.service.admission import Admitter
from varl_jax.service.assessment import (
  AnswerAssessor,
  score_truncated,
  tally,
)
from varl_jax.service.calls import ServiceFailure, attempt
from varl_jax.service.co_training import (
  CoTraining,
  Groups,
  Rewards,
  rewards_event,
)
from varl_jax.service.event_log import EventStore
from varl_jax.service.evolution import GuidanceSource
from varl_jax.service.ledger import Ledger
from varl_jax.service.loop import LoopLag, LoopThread
from varl_jax.service.memo_keeping import MemoKeeper
from varl_jax.service.pair_check import PairCheck
from varl_jax.service.patching import Patching
from varl_jax.service.refereeing import Refereeing, Suspicion
from varl_jax.service.reporting import Reporter
from varl_jax.service.store import Event
from varl_jax.service.supply import Supply, served_event
from varl_jax.service.writing import TaskWriter
from varl_jax.types import (
  GradedGroup,
  GroupRanking,
  Rollout,
  Task,
  Verdict,
  from_json,
)

Value = TypeVar("Value")
# Of a group: its task, and a sample with its text for each rollout.
Texts = tuple[tuple[Task, tuple[tuple[int, str | None], ...]], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Grading:
  """The last grading, for when it is asked for again.

  Kept in memory alone: after a restart the journal of calls answers instead.
  """

  step: int
  groups: tuple[GradedGroup, ...]
  verdicts: tuple[Verdict, ...]
  beside: tuple[Event, ...] = ()
  answers: Texts = ()
  others: tuple[tuple[str, Texts], ...] = ()


class GenerationService:
  """Serves tasks, grades answers, repairs rubrics.

  Args:
    config: the run's settings.
    store: the run's store; closed with the service.
    writer: writes tasks.
    assessor: grades answers.
    admitter: probes and repairs new tasks, or None.
    refereeing: finds exploit cases, or None.
    patching: repairs them, or None.
    pair_check: chooses those that are repaired; None takes the largest.
    evolution: rewrites guidance, or None.
    memo: keeps the adversary memo, or None.
    co_training: of a method that trains more than the policy, or None.
  """

  def __init__(
    self,
    config: Config,
    *,
    store: EventStore,
    writer: TaskWriter,
    assessor: AnswerAssessor,
    admitter: Admitter | None = None,
    refereeing: Refereeing | None = None,
    patching: Patching | None = None,
    pair_check: PairCheck | None = None,
    evolution: GuidanceSource | None = None,
    memo: MemoKeeper | None = None,
    co_training: CoTraining | None = None,
  ):
    self._config = config
    self._store = store
    self._assessor = assessor
    self._co_training = co_training
    self._ledger = Ledger(store, config=config)
    self._supply = Supply(
      self._ledger, writer=writer, admitter=admitter, config=config
    )
    self._reporter = Reporter(
      ledger=self._ledger,
      config=config,
      refereeing=refereeing,
      patching=patching,
      pair_check=pair_check,
      evolution=evolution,
      memo=memo,
    )
    self._grading: _Grading | None = None
    self._loop = LoopThread("generation-service")

  def poll(self, step: int, count: int) -> list[Task]:
    """The `count` tasks of a step, each with the rubric it is graded under.

    Raises:
      ServiceFailure: too few tasks could be written; the state is saved.
      StoreError: the store could not be written.
    """
    return self._run(self._poll(step, count))

  def prompts_for(self, step: int, learner: str) -> list[Task]:
    """What a learner beside the policy is asked in the step that is served.

    Raises:
      ValueError: there is no such learner, or another step is served.
    """
    return self._run(_later(self._prompts_for, step, learner))

  def grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups] | None = None
  ) -> list[GradedGroup]:
    """Grades every answer under the rubric its task was served with.

    Args:
      step: the step.
      groups: the policy's rollouts of each task.
      others: those of each other learner, by its name.

    Raises:
      ServiceFailure: more judge calls failed than `judge.max_failure_rate`
        allows; the state is saved.
    """
    return self._run(self._grade(step, groups, others or {}))

  def rewards_for(self, step: int, learner: str) -> Rewards:
    """What a learner beside the policy earned in a step that was graded.

    Raises:
      ValueError: nothing of the kind was graded.
    """
    return self._run(_later(self._rewards_for, step, learner))

  def grade_canary(self, task: Task) -> Canary:
    """Grades an empty answer to a task; nothing of it is kept."""
    return self._run(
      grade_canary(
        self._assessor.grader,
        task,
        op=f"canary/{task.task_id}",
        seed=self._config.seed,
      )
    )

  def report(
    self,
    step: int,
    groups: Sequence[GradedGroup],
    suspicion: Suspicion | None = None,
  ) -> dict[str, float]:
    """Takes in a graded step; returns its metrics, none of them NaN.

    Args:
      step: the step.
      groups: all of it.
      suspicion: one a group, None for a group without a possible exploit; where
        `patch.referee_share` is below 1 it says which groups are refereed.
    """
    return self._run(self._report(step, groups, suspicion))

  def rankings(self, step: int) -> list[GroupRanking]:
    """The referee's rankings of a step that was reported.

    They are kept for runs with a discriminator alone; [] for others.
    """
    return self._run(_later(self._rankings, step))

  def step(self) -> int | None:
    """The step whose batch was served last, None before the first."""
    return self._run(_later(self._served_step))

  def loop_lag(self) -> LoopLag:
    """How late the event loop was since the last call of this."""
    return self._loop.take_lag()

  def event_number(self) -> int:
    """Number of the last event, for the checkpoint."""
    return self._run(_later(self._store.event_number))

  def rewind(self, seq: int) -> None:
    """Goes back to an event number; keeps work that belongs to no step."""
    self._run(self._rewind(seq))

  def cases(
    self, limit: int | None = None, *, repaired: bool = False
  ) -> list[evidence.CaseRecord]:
    """Exploit cases with their repairs, the newest first."""
    return self._run(
      _later(evidence.read_cases, self._store, limit=limit, repaired=repaired)
    )

  def history(self, limit: int | None = None) -> evidence.History:
    """Cases, guidance and memo versions for the report."""
    return self._run(_later(evidence.read_history, self._store, limit=limit))

  def export_evidence(self, path: str | os.PathLike[str]) -> int:
    """Writes all cases as JSON lines; returns how many."""
    return self._run(_later(evidence.export_evidence, self._store, path))

  def run(self, work: Coroutine[Any, Any, Value]) -> Value:
    """Runs work that asks the same models, in the service's loop.

    Raises:
      ServiceFailure: a model is of no more use.
    """
    return self._run(work)

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """See `LoopThread.give_up_when`."""
    self._loop.give_up_when(asked)

  def close(self) -> None:
    """Ends background work and closes the store; harmless when repeated."""
    if not self._loop.closed:
      self._loop.give_up_when(lambda: False)
      # Also takes note of jobs that failed since the last poll.
      self._loop.run(self._supply.stop())
    self._loop.close()
    self._store.close()

  def _served_step(self) -> int | None:
    return max(self._ledger.state.served, default=None)

  def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
    if self._loop.closed:
      work.close()
    return self._loop.run(_through(work))

  async def _poll(self, step: int, count: int) -> list[Task]:
    state = self._ledger.state
    if step not in state.served:
      await self._supply.provide(step, count)
      event = served_event(
        state,
        step=step,
        count=count,
        share=self._config.pool.replay_share,
        unproposed=self._supply.unproposed,
      )
      self._ledger.commit([event])
      self._supply.prepare(count)
    return list(state.served[step])

  def _prompts_for(self, step: int, learner: str) -> list[Task]:
    tasks = self._ledger.state.served.get(step)
    if self._co_training is None or tasks is None:
      raise ValueError(f"Step {step} asks nothing of a learner {learner!r}.")
    return self._co_training.prompts(learner, tasks)

  def _rewards_for(self, step: int, learner: str) -> Rewards:
    payload = self._rewards(step)
    if payload is None or learner not in payload["rewards"]:
      raise ValueError(f"Step {step} paid no learner {learner!r}.")
    return tuple(tuple(row) for row in payload["rewards"][learner])

  def _rewards(self, step: int) -> Mapping[str, Any] | None:
    found = next(self._store.events(uid=f"rewards/{step}"), None)
    return None if found is None else found.payload

  async def _grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups]
  ) -> list[GradedGroup]:
    answers = _texts(groups)
    beside = tuple((name, _texts(own)) for name, own in others.items())
    last = self._grading
    if last is None or (last.step, last.answers, last.others) != (
      step,
      answers,
      beside,
    ):
      last = await self._graded_anew(step, groups, others)
      last = dataclasses.replace(last, answers=answers, others=beside)
    # After a rewind a grading that is known still has to be recorded.
    self._record_votes(step, last.verdicts, *last.beside)
    self._grading = last
    return list(last.groups)

  async def _graded_anew(
    self, step: int, groups: Groups, others: Mapping[str, Groups]
  ) -> "_Grading":
    if self._co_training is not None:
      made = await self._co_training.grade(step, groups, others)
      return _Grading(
        step=step,
        groups=tuple(made.groups),
        verdicts=tuple(made.verdicts),
        beside=(rewards_event(step, made),),
      )
    graded = await together(
      self._graded(step, task, rollouts) for task, rollouts in groups
    )
    verdicts = tuple(
      verdict
      for group in graded
      for answer in group.answers
      for verdict in answer.verdicts
    )
    return _Grading(step=step, groups=tuple(graded), verdicts=verdicts)

  def _record_votes(
    self, step: int, verdicts: Iterable[Verdict], *beside: Event
  ) -> None:
    """Counts the votes of a grading; too many failed ones end the run."""
    counts = tally(verdicts)
    payload = {
      "verdicts": counts.verdicts,
      "undetermined": counts.undetermined,
      "votes": counts.votes,
      "failures": counts.failures,
    }
    judged = Event(
      uid=f"judged/{step}", step=step, kind="judged", payload=payload
    )
    self._ledger.commit([judged, *beside])
    if counts.failure_rate > self._config.judge.max_failure_rate:
      raise ServiceFailure(
        f"{counts.failure_rate:.0%} of the judge's votes in step {step}"
        f" failed, above judge.max_failure_rate"
        f" {self._config.judge.max_failure_rate:.0%}; the state is saved."
        " Check the judge and resume the run."
      )

  async def _graded(
    self, step: int, task: Task, rollouts: Sequence[Rollout]
  ) -> GradedGroup:
    answers = await together(
      self._assessor.assess_rollout(
        task.prompt,
        rollout,
        task.rubric,
        op=f"grade/{step}/{task.task_id}/{rollout.sample}",
      )
      for rollout in rollouts
    )
    return GradedGroup(
      task=task,
      step=step,
      answers=score_truncated(answers, self._config.reward),
    )

  async def _report(
    self,
    step: int,
    groups: Sequence[GradedGroup],
    suspicion: Suspicion | None,
  ) -> dict[str, float]:
    paid = self._rewards(step)
    beside = {} if paid is None else paid["measures"]
    recorded = next(self._store.events(uid=f"reported/{step}"), None)
    if recorded is not None:
      return dict(recorded.payload["metrics"]) | beside
    return await self._reporter.report(step, groups, suspicion) | beside

  def _rankings(self, step: int) -> list[GroupRanking]:
    found = next(self._store.events(uid=f"rankings/{step}"), None)
    kept = [] if found is None else found.payload["rankings"]
    return [from_json(GroupRanking, ranking) for ranking in kept]

  async def _rewind(self, seq: int) -> None:
    await self._supply.stop()
    self._ledger.rewind(seq)


def _texts(groups: Groups) -> Texts:
  return tuple(
    (task, tuple((rollout.sample, rollout.answer) for rollout in rollouts))
    for task, rollouts in groups
  )


async def _through(work: Coroutine[Any, Any, Value]) -> Value:
  """Makes failures of models that get this far failures of the service.

  Failed replies are dealt with where they happen; what gets here is a model
  that no later call could satisfy either.
  """
  value = await attempt(work)
  if isinstance(value, ChatError):
    raise ServiceFailure(
      f"A model is of no more use ({value}); mend that and resume the run."
    ) from value
  return value


async def _later(call: Any, *values: Any, **named: Any) -> Any:
  """Runs a store reader in the loop's thread, between its commits."""
  return call(*values, **named)
