"""What the trainer itself measures of a step: scores, lengths, seconds."""

import collections
import time
from collections.abc import Sequence

import numpy as np

from varl_jax.rubrics.scoring import by_criterion
from varl_jax.types import GradedGroup, Rollout


class Clock:
  """Seconds between laps of a step."""

  def __init__(self):
    self._started = self._last = time.perf_counter()
    self._laps: dict[str, float] = {}

  def lap(self, name: str) -> float:
    """Ends a stage; returns its seconds, never 0."""
    now = time.perf_counter()
    self._laps[f"time/{name}"] = seconds = now - self._last
    self._last = now
    return max(seconds, 1e-9)

  def times(self) -> dict[str, float]:
    """`time/STAGE` of every lap and `time/step`, their sum."""
    return self._laps | {"time/step": self._last - self._started}


def score_metrics(
  scores: Sequence[float],
  raws: Sequence[float | None],
  ids: Sequence[int],
  valid: Sequence[bool],
) -> dict[str, float]:
  """Means over scorable rollouts, and how many groups teach nothing.

  Args:
    scores: one a rollout, NaN when unscorable.
    raws: the same clipped to [0, 1], None when unscorable.
    ids: the group of each rollout.
    valid: whether the rollout is trained on.

  Returns:
    `reward/...`; the means are left out when nothing could be scored.
  """
  table = np.array(scores)
  scored = ~np.isnan(table)
  groups = np.array(ids)
  flat = sum(
    np.ptp(table[(groups == i) & scored]) <= 1e-6
    for i in set(groups[scored].tolist())
  )
  found = {
    "reward/unscorable": float((~scored).sum()),
    "reward/untrained": float(len(valid) - sum(valid)),
    "reward/constant_groups": float(flat),
  }
  if scored.any():
    kept = [raw for raw in raws if raw is not None]
    found["reward/mean"] = float(table[scored].mean())
    found["reward/raw"] = float(np.mean(kept))
    found["reward/std"] = float(table[scored].std())
  return found


def length_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
  """Mean tokens and characters an answer, and the share that was cut."""
  if not rollouts:
    return {}
  return {
    "rollout/length": float(np.mean([len(r.tokens) for r in rollouts])),
    "rollout/chars": float(np.mean([len(r.answer or "") for r in rollouts])),
    "rollout/cut": float(np.mean([r.finish == "length" for r in rollouts])),
  }


def criterion_metrics(graded: Sequence[GradedGroup]) -> dict[str, float]:
  """Share of the judged criteria that answers met.

  Returns:
    `criteria/met_positive` and `criteria/met_negative` by the sign of their
    points, `criteria/met_SOURCE` by who wrote those with positive points; kinds
    that no verdict is about are left out.
  """
  found: dict[str, list[bool]] = collections.defaultdict(list)
  for group in graded:
    rubric = group.task.rubric
    for answer in group.answers:
      if not answer.verdicts:
        continue
      pairs = zip(
        rubric.criteria, by_criterion(rubric, answer.verdicts), strict=True
      )
      for criterion, verdict in pairs:
        if verdict is None or verdict.met is None:
          continue
        positive = criterion.points > 0
        found["positive" if positive else "negative"].append(verdict.met)
        if positive:
          found[criterion.source].append(verdict.met)
  return {
    f"criteria/met_{kind}": sum(met) / len(met) for kind, met in found.items()
  }


def tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
  """Use of tools: calls an answer, share of answers that got a result, tokens.

  `tools/failed` is the share of calls without a result, left out without any.
  """
  ends = [end for rollout in rollouts for end in rollout.tool_results]
  count = len(rollouts)
  if not count:
    return {}
  found = {
    "tools/calls": len(ends) / count,
    "tools/answers": sum("" in r.tool_results for r in rollouts) / count,
    "tools/tokens": sum(len(r.mask) - sum(r.mask) for r in rollouts) / count,
  }
  if ends:
    found["tools/failed"] = sum(end != "" for end in ends) / len(ends)
  return found
