"""Sums that an update leaves, and the step's metrics made of them.

A name's end says how values of several micro-batches become one: `_max` by the
maximum, others by addition.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Sums = dict[str, Any]


def joined(parts: Sequence[Sums]) -> Sums:
  """The values of all micro-batches, [M] each in every part, as one each."""
  return {
    name: np.concatenate([part[name] for part in parts]).max()
    if name.endswith("_max")
    else sum(part[name].sum() for part in parts)
    for name in parts[0]
  }


def update_metrics(
  updates: Sequence[Mapping[str, Any]], *, frozen_once: bool
) -> dict[str, float]:
  """Metrics of a step, `train/...`.

  Args:
    updates: one a mini-batch: `sums` of its parts, `grad_norm` and whether it
      was `sound`.
    frozen_once: the old logprobs of all mini-batches are of the same weights.
  """
  sums = [{**update, **joined(update["sums"])} for update in updates]
  sound = [s for s in sums if s["sound"]]
  metrics = {
    "train/updates": float(len(sound)),
    "train/nonfinite": float(len(sums) - len(sound)),
    "train/tokens": float(sum(s["tokens_sum"] for s in sums)),
  }
  if not sound:
    return metrics
  tokens = sum(s["tokens_sum"] for s in sound)

  def share(name: str) -> float:
    return float(sum(s[name] for s in sound) / tokens)

  if "weight_sum" in sound[0]:
    metrics["train/importance_mean"] = share("weight_sum")
    metrics["train/importance_capped"] = share("capped_sum")
  # Later mini-batches run on newer weights: without the recomputed ones only
  # the first compares the same weights in both programs.
  same = sound if frozen_once else sums[:1]
  compared = sum(s["tokens_sum"] for s in same)
  return metrics | {
    "train/loss": float(
      np.mean([s["loss_sum"] / s["tokens_sum"] for s in sound])
    ),
    "train/ratio_mean": share("ratio_sum"),
    "train/ratio_max": float(max(s["ratio_max"] for s in sound)),
    "train/clip_fraction": share("clipped_sum"),
    "train/entropy": share("entropy_sum"),
    "train/grad_norm": float(np.mean([s["grad_norm"] for s in sound])),
    "train/sampler_gap_mean": float(sum(s["gap_sum"] for s in same) / compared),
    "train/sampler_gap_max": float(max(s["gap_max"] for s in same)),
  }
