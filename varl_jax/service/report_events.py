"""The events of a report, from what was found, repaired and written."""

from collections.abc import Collection, Mapping, Sequence

from varl_jax.llm.chat import ChatError
from varl_jax.service import step_metrics
from varl_jax.service.event_log import Event
from varl_jax.service.evolution import Round
from varl_jax.service.memo_keeping import MemoStep
from varl_jax.service.patching import Repair
from varl_jax.service.refereeing import Review, Suspicion
from varl_jax.types import ExploitCase, GradedGroup, GroupRanking, to_json


def case_events(
  step: int,
  cases: Sequence[ExploitCase],
  repairs: Sequence[Repair],
  *,
  queued: Collection[str],
  means: Mapping[str, float | None],
  pairs: Mapping[str, str] | None = None,
) -> list[Event]:
  """Cases, then each repair with the cases it opened and its seal.

  Args:
    step: the step.
    cases: found by the referee.
    repairs: of some of them.
    queued: names of the cases taken to repair.
    means: mean score of each task's answers in the step.
    pairs: outcomes of the check of pairs, by case; None without any.
  """
  outcomes = pairs or {}
  events = [
    _case_event(c, c.case_id in queued, outcomes.get(c.case_id, ""))
    for c in cases
  ]
  for repair in repairs:
    opened = {case.case_id for case in repair.cases}
    patched = {patch.case_id for patch in repair.patches}
    events += [_case_event(c, c.case_id in patched) for c in repair.cases]
    task = None
    for patch in repair.patches:
      if patch.after is not None:
        # The task as of the last accepted round; the rounds share one event
        # batch, so no serving can come between them.
        task = repair.task
      events.append(
        Event(
          uid=f"patch/{patch.case_id}/{patch.round}",
          step=step,
          kind="patch",
          payload={
            "patch": to_json(patch),
            "task": to_json(task) if patch.after else None,
            "source": "re_attack" if patch.case_id in opened else "on_policy",
            "decisions": step_metrics.rejection_counts(patch.items),
            "group_mean": means.get(patch.task_id),
          },
        )
      )
    if repair.sealed is not None:
      name = repair.task.task_id
      events.append(
        Event(
          uid=f"sealed/{name}/{repair.sealed}",
          step=step,
          kind="sealed",
          payload={"task_id": name, "version": repair.sealed},
        )
      )
  return events


def rankings_event(
  step: int,
  groups: Sequence[GradedGroup],
  review: Review,
  repairs: Sequence[Repair],
  suspicion: Suspicion | None,
) -> Event:
  """What the trainer's discriminator learns of a step, and what it had said.

  Args:
    step: the step.
    groups: all of it.
    review: the referee's word on them, or on some.
    repairs: of some of its cases; only criteria that were accepted confirm the
      pair of a case.
    suspicion: one a group, None when the trainer gave none.
  """
  confirmed = {
    patch.case_id
    for repair in repairs
    for patch in repair.patches
    if patch.after is not None
  }
  cases = {c.task.task_id: c for c in review.cases if c.case_id in confirmed}
  rankings = []
  for group in groups:
    name = group.task.task_id
    if name in review.ranked:
      pair: tuple[int, ...] = ()
      if name in cases:
        pair = (
          group.answers.index(cases[name].honest),
          group.answers.index(cases[name].exploit),
        )
      tiers = review.ranked[name].tiers
      rankings.append(GroupRanking(task_id=name, tiers=tiers, repaired=pair))
  return Event(
    uid=f"rankings/{step}",
    step=step,
    kind="rankings",
    payload={
      "rankings": to_json(rankings),
      "suspicion": None if suspicion is None else list(suspicion),
    },
  )


def memo_events(step: int, change: MemoStep, *, probes: int) -> list[Event]:
  """A change of the memo that used `probes` probes, and what failed in it."""
  failure = change.failure
  payload = {
    "state": to_json(change.state),
    "probes": probes,
    "decision": change.decision,
    "failure": failure.kind if failure is not None else "",
  }
  events = [Event(uid=f"memo/{step}", step=step, kind="memo", payload=payload)]
  if failure is not None:
    events.append(failure_event(step, "memo_optimizer", failure))
  return events


def guidance_event(
  step: int, version: int, made: Round, *, probes: int
) -> Event:
  """New guidance, measured by the first `probes` probes since the last."""
  return Event(
    uid=f"guidance/{version}",
    step=step,
    kind="guidance",
    payload={
      "version": version,
      "proposer": made.proposer,
      "generator": made.generator,
      "summary": made.summary,
      "snapshot": made.snapshot,
      "probes": probes,
    },
  )


def failure_event(step: int, role: str, error: ChatError) -> Event:
  """An optimizer's call that failed; what it writes stays as it was."""
  return Event(
    uid=f"failure/{role}/{step}",
    step=step,
    kind="failure",
    payload={"role": role, "kind": error.kind, "message": str(error)},
  )


def _case_event(case: ExploitCase, queued: bool, pair: str = "") -> Event:
  checked = {"pair": pair} if pair else {}
  return Event(
    uid=f"case/{case.case_id}",
    step=case.step,
    kind="case",
    payload={"case": to_json(case), "queued": queued, **checked},
  )
