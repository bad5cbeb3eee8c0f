"""Metrics of a step from what happened in it; pure logic.

Every function leaves out what nothing was measured for, so that no NaN reaches
the logs.
"""

import collections
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from varl_jax.service.assessment import Tally
from varl_jax.service.pair_check import OUTCOMES
from varl_jax.service.patching import Repair
from varl_jax.service.state import StepLog
from varl_jax.types import ExploitCase, Patch, PatchItem

Metrics = dict[str, float]

_DIGIT = re.compile(r"\d")
# Criteria that are satisfied by naming a thing.
_MENTION = re.compile(
  r"\b(?:mention|refer|note|name|acknowledge|discuss|address|include|list)"
  r"(?:s|es|ed|ing)?\b",
  re.I,
)


def judge_metrics(tally: Tally) -> Metrics:
  """Votes of the step's grading."""
  metrics: Metrics = {
    "judge/verdicts": tally.verdicts,
    "judge/failures": tally.failures,
    "judge/failure_rate": tally.failure_rate,
  }
  if tally.verdicts:
    metrics["judge/undetermined_rate"] = tally.undetermined / tally.verdicts
  return metrics


def admission_metrics(log: StepLog) -> Metrics:
  """Writing and admission since the last report."""
  metrics: Metrics = {
    "pool/written": log.written,
    "pool/dropped": len(log.dropped),
    "pool/rejected_replies": len(log.rejected),
  }
  if log.flagged:
    metrics["pool/key_flagged"] = log.flagged
  if not log.admissions:
    return metrics
  outcomes = collections.Counter(a["outcome"] for a in log.admissions)
  metrics["admission/probed"] = len(log.admissions)
  for outcome in (
    "pass",
    "exploitable",
    "saturated",
    "unsatisfiable",
    "discarded",
    "unusable",
  ):
    metrics[f"admission/{outcome}"] = outcomes[outcome]
  rounds = [made for a in log.admissions for made in a["rounds"]]
  metrics["admission/rounds"] = len(rounds)
  metrics["admission/unusable_rewrites"] = sum(
    made["outcome"] is None for made in rounds
  )
  adopted = [a for a in log.admissions if a["adopted"] is not None]
  metrics["admission/repaired"] = len(adopted)
  metrics["admission/still_exploitable"] = sum(
    a["outcome_after"] == "exploitable" for a in log.admissions
  )
  known = [a for a in log.admissions if a["lead"] is not None]
  _mean(metrics, "admission/lead", [a["lead"] for a in known])
  _mean(metrics, "admission/honest", [a["honest"] for a in known])
  _mean(metrics, "admission/win_rate", [a["lead"] > 0 for a in known])
  _mean(metrics, "admission/lead_before", [a["lead"] for a in adopted])
  _mean(metrics, "admission/lead_after", [a["lead_after"] for a in adopted])
  return metrics


def exploit_metrics(
  cases: Sequence[ExploitCase],
  *,
  refereed: int,
  queued: int,
  skipped: int = 0,
) -> Metrics:
  """The step's cases from the referee.

  `exploit/rate` is the share of groups with a case. Where groups were skipped
  it is not known, and `exploit/rate_of_refereed` stands in its place: those it
  is a share of may have been chosen for looking suspicious.
  """
  metrics: Metrics = {
    "exploit/cases": len(cases),
    "exploit/queued": queued,
  }
  if refereed:
    name = "exploit/rate_of_refereed" if skipped else "exploit/rate"
    metrics[name] = len(cases) / refereed
  _mean(metrics, "exploit/gap", [case.gap for case in cases])
  return metrics


def patch_metrics(
  repairs: Sequence[Repair],
  *,
  rescored: Sequence[tuple[float, float]],
  revisited: Sequence[tuple[float, float]],
) -> Metrics:
  """The step's repairs.

  Args:
    repairs: one a queued case.
    rescored: mean of a patched group's answers before and after its patch.
    revisited: mean of a task's answers when it was first patched, and of its
      answers when it was served again.
  """
  patches = [patch for repair in repairs for patch in repair.patches]
  items = [item for patch in patches for item in patch.items]
  kept = [item for item in items if not item.rejected]
  done = [patch for patch in patches if patch.after is not None]
  attacks = [outcome for repair in repairs for outcome in repair.attacks]
  metrics: Metrics = {
    "patch/rounds": len(patches),
    "patch/proposed": len(items),
    "patch/accepted": len(kept),
    "patch/accepted_positive": sum(i.criterion.points > 0 for i in kept),
    "patch/accepted_negative": sum(i.criterion.points < 0 for i in kept),
    "patch/accepted_on_policy": _accepted(repairs, re_attack=False),
    "patch/accepted_re_attack": _accepted(repairs, re_attack=True),
    "patch/tasks": sum(
      any(p.after is not None for p in r.patches) for r in repairs
    ),
    "patch/failures": sum(len(repair.failures) for repair in repairs),
    "patch/earned": sum(patch.label == "none" for patch in patches),
    "patch/attacks": len(attacks),
    "patch/attacks_found": attacks.count("found"),
    "patch/attacks_failed": attacks.count("failed"),
    "patch/sealed": sum(repair.sealed is not None for repair in repairs),
  }
  metrics["exploit/patched"] = metrics["patch/tasks"]
  rejected = collections.Counter(i.rejected for i in items if i.rejected)
  for reason, count in sorted(rejected.items()):
    metrics[f"patch/rejected_{reason}"] = count
  if items:
    metrics["patch/accept_rate"] = len(kept) / len(items)
  _lead(metrics, done)
  _both(metrics, "patch/group", rescored)
  _both(metrics, "patch/revisited", revisited)
  return metrics


def pair_metrics(outcomes: Mapping[str, str]) -> Metrics:
  """What the check of pairs said, by case; nothing where none was checked."""
  if not outcomes:
    return {}
  counts = collections.Counter(outcomes.values())
  metrics: Metrics = {"pairs/checked": len(outcomes)}
  for outcome in OUTCOMES:
    metrics[f"pairs/{outcome}"] = counts[outcome]
  return metrics


def wording_metrics(before: Iterable[str], after: Iterable[str]) -> Metrics:
  """Shares of criteria with a digit and of criteria worded as a mention.

  Args:
    before: texts of the criteria of the rubrics repaired since the last
      report, as they were.
    after: of the same rubrics after their repair.
  """
  metrics: Metrics = {}
  for name, texts in (("before", list(before)), ("after", list(after))):
    _mean(
      metrics,
      f"criteria/digit_{name}",
      [_DIGIT.search(text) is not None for text in texts],
    )
    _mean(
      metrics,
      f"criteria/mention_{name}",
      [_MENTION.search(text) is not None for text in texts],
    )
  return metrics


def rejection_counts(items: Sequence[PatchItem]) -> Mapping[str, Any]:
  """How many criteria of a round were accepted, and why others were not."""
  reasons = collections.Counter(item.rejected or "accepted" for item in items)
  return dict(sorted(reasons.items()))


def _accepted(repairs: Sequence[Repair], *, re_attack: bool) -> int:
  return sum(
    not item.rejected
    for repair in repairs
    for patch in repair.patches
    if (patch.round > 1) == re_attack
    for item in patch.items
  )


def _lead(metrics: Metrics, patches: Sequence[Patch]) -> None:
  _both(
    metrics,
    "patch/lead",
    [
      (patch.gap_before, patch.gap_after)
      for patch in patches
      if patch.gap_after is not None
    ],
  )


def _both(
  metrics: Metrics, key: str, pairs: Sequence[tuple[float, float]]
) -> None:
  _mean(metrics, f"{key}_before", [before for before, _ in pairs])
  _mean(metrics, f"{key}_after", [after for _, after in pairs])


def _mean(metrics: Metrics, key: str, values: Sequence[float]) -> None:
  if values:
    metrics[key] = statistics.fmean(values)
