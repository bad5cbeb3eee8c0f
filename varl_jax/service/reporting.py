"""What follows from a graded step: windows, cases, repairs, evolution.

A report commits twice: once what the step's answers changed, once what the
optimizers made of it. One that failed in between goes on from the first commit
when it is repeated: no answer is refereed and no case repaired again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from varl_jax.config import Config
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.service import step_metrics
from varl_jax.service.assessment import mean_of, scores_of
from varl_jax.service.event_log import Event
from varl_jax.service.evolution import GuidanceSource, Material
from varl_jax.service.exploits import largest_disagreements
from varl_jax.service.failpoints import failpoint
from varl_jax.service.ledger import Ledger
from varl_jax.service.memo_keeping import MemoKeeper, memo_metrics
from varl_jax.service.pair_check import Outcome, PairCheck
from varl_jax.service.patching import Patching, Repair
from varl_jax.service.pool import eviction_reason
from varl_jax.service.referee_stats import referee_metrics
from varl_jax.service.refereeing import Refereeing, Review, Suspicion
from varl_jax.service.report_events import (
  case_events,
  failure_event,
  guidance_event,
  memo_events,
  rankings_event,
)
from varl_jax.service.state import ServiceState
from varl_jax.types import ExploitCase, GradedGroup

Metrics = dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporter:
  """Draws the consequences of a step.

  Attributes:
    ledger: events and state.
    config: the run's settings.
    refereeing: finds cases; None where they are neither repaired nor
      measured.
    patching: repairs them; None likewise.
    pair_check: chooses those that are repaired; None takes the largest.
    evolution: rewrites guidance, or None.
    memo: keeps the memo, or None.
  """

  ledger: Ledger
  config: Config
  refereeing: Refereeing | None
  patching: Patching | None
  pair_check: PairCheck | None
  evolution: GuidanceSource | None
  memo: MemoKeeper | None

  @property
  def _state(self) -> ServiceState:
    return self.ledger.state

  async def report(
    self,
    step: int,
    groups: Sequence[GradedGroup],
    suspicion: Suspicion | None = None,
  ) -> Metrics:
    """Takes in a step's graded groups and returns the step's metrics.

    Args:
      step: the step.
      groups: all of it.
      suspicion: one a group, for the choice of those that are refereed.

    Raises:
      ValueError: another number of suspicions than groups.
    """
    if suspicion is not None and len(suspicion) != len(groups):
      raise ValueError(f"{len(suspicion)} suspicions for {len(groups)} groups.")
    begun = next(self.ledger.store.events(uid=f"windows/{step}"), None)
    if begun is None:
      metrics, counted = await self._take_in(step, groups, suspicion)
    else:
      metrics, counted = begun.payload["metrics"], begun.payload["counted"]
    events = await self._memo(step)
    failpoint("report/remembered")
    events += await self._evolve(step)
    failpoint("report/evolved")
    metrics = metrics | self._totals(events)
    reported = Event(
      uid=f"reported/{step}",
      step=step,
      kind="reported",
      payload={
        "metrics": metrics,
        "counted": counted,
        "evolved": any(event.kind == "guidance" for event in events),
      },
    )
    self.ledger.commit([*events, reported])
    return metrics

  async def _take_in(
    self,
    step: int,
    groups: Sequence[GradedGroup],
    suspicion: Suspicion | None,
  ) -> tuple[Metrics, dict[str, int]]:
    """The first commit: windows, cases, repairs.

    Returns:
      The metrics so far, and how much of the step's log went into them.
    """
    windows = self._windows(step, groups)
    metrics: Metrics = {"pool/evicted": len(windows.payload["evicted"])}
    metrics["pool/requeued"] = len(windows.payload["requeued"])
    events: list[Event] = []
    repairs: list[Repair] = []
    if self.refereeing is not None:
      review = await self.refereeing.review(groups, suspicion)
      failpoint("report/refereed")
      chosen, pairs = await self._chosen(review)
      repairs = await self._repair(chosen)
      failpoint("report/repaired")
      metrics |= await self._case_metrics(groups, review, repairs)
      metrics |= step_metrics.pair_metrics(pairs)
      events += case_events(
        step,
        review.cases,
        repairs,
        queued={case.case_id for case in chosen},
        means=_means(groups),
        pairs=pairs,
      )
      if self.config.discriminator.on:
        events.append(rankings_event(step, groups, review, repairs, suspicion))
    # No await from here to the commit: what the background finishes later is
    # counted by the next report.
    texts = _Texts.of(self._state).plus(repairs)
    metrics |= step_metrics.judge_metrics(self._state.log.judged)
    metrics |= step_metrics.admission_metrics(self._state.log)
    metrics |= step_metrics.wording_metrics(texts.before, texts.after)
    counted = self._state.log.counts()
    payload = {**windows.payload, "metrics": metrics, "counted": counted}
    self.ledger.commit([dataclasses.replace(windows, payload=payload), *events])
    return metrics, counted

  def _windows(self, step: int, groups: Sequence[GradedGroup]) -> Event:
    """Scores for the pool's windows, and which tasks leave or return."""
    pool, settings = self._state.pool, self.config.pool
    evicted: dict[str, str] = {}
    requeued = []
    evicted |= self._unanswered(step, groups)
    for group in groups:
      name, scores = group.task.task_id, scores_of(group.answers)
      if len(scores) < min(self.config.train.min_graded, len(group.answers)):
        requeued.append(name)
        continue
      window = pool.window_with(name, scores, settings.window)
      reason = eviction_reason(window, settings)
      if reason:
        evicted[name] = reason
    samples = self.evolution.keep(groups, step=step) if self.evolution else []
    return Event(
      uid=f"windows/{step}",
      step=step,
      kind="windows",
      payload={
        "groups": [
          {
            "task_id": group.task.task_id,
            "version": group.task.rubric.version,
            "guidance": group.task.guidance_version,
            "scores": scores_of(group.answers),
          }
          for group in groups
        ],
        "evicted": evicted,
        "requeued": requeued,
        "samples": samples,
      },
    )

  def _unanswered(
    self, step: int, groups: Sequence[GradedGroup]
  ) -> dict[str, str]:
    """Tasks of the step's batch that came back without a group.

    The trainer leaves out a task whose prompt is too long for the solver; kept,
    it would be served again and again.
    """
    answered = {group.task.task_id for group in groups}
    return {
      task.task_id: "unanswered"
      for task in self._state.served.get(step, ())
      if task.task_id not in answered
    }

  async def _chosen(
    self, review: Review
  ) -> tuple[list[ExploitCase], Mapping[str, Outcome]]:
    """The cases to repair, and what a check of pairs said of some."""
    if self.patching is None:
      return [], {}
    able = [case for case in review.cases if self._current(case)]
    if self.pair_check is not None:
      return await self.pair_check.chosen(able)
    return largest_disagreements(able, self.config.patch.cases_per_step), {}

  async def _repair(self, chosen: Sequence[ExploitCase]) -> list[Repair]:
    if self.patching is None:
      return []
    return await together(self.patching.repair(case) for case in chosen)

  def _current(self, case: ExploitCase) -> bool:
    """Whether the case's rubric is still the task's and may still grow."""
    assert self.patching is not None
    settled = case.task.task_id in self._state.settled
    if settled and self.config.patch.stop_equal:
      return False
    task = self._state.pool.get(case.task.task_id) or case.task
    same = task.rubric.version == case.task.rubric.version
    return same and self.patching.repairable(task)

  async def _case_metrics(
    self,
    groups: Sequence[GradedGroup],
    review: Review,
    repairs: Sequence[Repair],
  ) -> Metrics:
    partly = self.config.patch.referee_share < 1
    metrics = referee_metrics(
      review.ranked.values(),
      refereed=review.refereed,
      failures=len(review.failures),
      skipped=review.skipped if partly else None,
    )
    metrics |= step_metrics.exploit_metrics(
      review.cases,
      refereed=review.refereed,
      queued=len(repairs),
      skipped=review.skipped,
    )
    by_task = {group.task.task_id: group for group in groups}
    rescored = []
    if self.patching is not None:
      found = await together(
        self.patching.rescore(by_task[repair.task.task_id], repair.task.rubric)
        for repair in repairs
        if any(patch.after for patch in repair.patches)
      )
      rescored = [pair for pair in found if pair is not None]
    metrics |= step_metrics.patch_metrics(
      repairs, rescored=rescored, revisited=self._revisited(groups)
    )
    return metrics

  def _revisited(
    self, groups: Sequence[GradedGroup]
  ) -> list[tuple[float, float]]:
    """Tasks served for the first time after their first patch."""
    first = self._state.first_patch
    means = _means(groups)
    return [
      (first[name], mean)
      for name, mean in means.items()
      if name in first and mean is not None
    ]

  async def _memo(self, step: int) -> list[Event]:
    if self.memo is None:
      return []
    state = self._state
    probes = tuple(state.memo_probes)
    change = await self.memo.advance(
      state.memo,
      probes,
      exploits=self._evidence(),
      patches=state.patches,
      ordered=state.ordered_memos,
      op=f"memo/{step}",
    )
    if change is None:
      return []
    return memo_events(step, change, probes=len(probes))

  async def _evolve(self, step: int) -> list[Event]:
    state = self._state
    if self.evolution is None or not self.evolution.due(state.reports + 1):
      return []
    # What the background probes meanwhile is for the next round.
    probes = len(state.leads)
    made = await self.evolution.evolve(
      state.samples, self._material(), op=f"evolve/{step}"
    )
    if isinstance(made, ChatError):
      return [failure_event(step, "meta_optimizer", made)]
    version = state.next_guidance(made.proposer, made.generator)
    return [guidance_event(step, version, made, probes=probes)]

  def _material(self) -> Material:
    state = self._state
    current = state.guidance[-1]
    return Material(
      tasks=tuple(state.corpus),
      exploits=self._evidence(),
      patches=tuple(state.patches),
      train_mean=state.train_mean(current.version),
      proposer=current.proposer,
      generator=current.generator,
      history=[
        {
          "version": guidance.version,
          "train_mean": state.train_mean(guidance.version),
          "summary": guidance.summary,
        }
        for guidance in state.guidance
      ],
      hackability=self._hackability(),
    )

  def _evidence(self) -> tuple[dict[str, Any], ...]:
    """Exploits that roles are told of; cases only measured are not."""
    return tuple(
      found
      for found in self._state.exploits
      if self.patching is not None or found["source"] == "admission"
    )

  def _hackability(self) -> str:
    """The adversary at admission since the latest guidance; "" unprobed."""
    leads = self._state.leads
    if not leads:
      return ""
    wins = sum(lead > 0 for lead in leads) / len(leads)
    lead = sum(leads) / len(leads)
    return (
      f"{len(leads)} probes of new tasks: mean lead of the exploit answer"
      f" {lead:+.3f}, ahead of the honest answer in {wins:.0%}."
    )

  def _totals(self, events: Sequence[Event]) -> Metrics:
    """The state at the end of the step."""
    state = self._state
    evolved = [e for e in events if e.kind == "guidance"]
    metrics: Metrics = {
      "pool/size": len(state.pool),
      "pool/replay": len(state.pool.replay),
      "pool/served_replay": state.log.replayed,
      "pool/waiting": len(state.orders),
      "guidance/version": (
        evolved[-1].payload["version"]
        if evolved
        else state.guidance[-1].version
      ),
    }
    if state.solver_mean is not None:
      metrics["solver/mean"] = state.solver_mean
    train_mean = state.train_mean(state.guidance[-1].version)
    if train_mean is not None:
      metrics["guidance/train_mean"] = train_mean
    if self.evolution and self.evolution.due(state.reports + 1):
      metrics["guidance/failures"] = float(not evolved)
    if self.memo is not None:
      metrics |= memo_metrics(state.memo, self.config.memo)
    return metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
  """Criteria texts of repaired rubrics before and after their repair."""

  before: tuple[str, ...] = ()
  after: tuple[str, ...] = ()

  @classmethod
  def of(cls, state: ServiceState) -> "_Texts":
    """Those of the admissions since the last report."""
    pairs = state.log.rewritten
    return cls(
      before=tuple(text for before, _ in pairs for text in before),
      after=tuple(text for _, after in pairs for text in after),
    )

  def plus(self, repairs: Sequence[Repair]) -> "_Texts":
    """With those of accepted patches."""
    before, after = list(self.before), list(self.after)
    for repair in repairs:
      done = [patch for patch in repair.patches if patch.after is not None]
      if done:
        before += [item.text for item in done[0].before.criteria]
        after += [item.text for item in repair.task.rubric.criteria]
    return _Texts(before=tuple(before), after=tuple(after))


def _means(groups: Sequence[GradedGroup]) -> dict[str, float | None]:
  return {g.task.task_id: mean_of(scores_of(g.answers)) for g in groups}
