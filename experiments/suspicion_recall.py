"""How many exploit cases a choice of groups finds, and how far to trust it.

Pure functions of what `story_discriminator` records: a run is a list of steps,
a step a list of groups, a group has, by answer, `scores` (None where it could
not be compared), `words` and `quality`; the referee's `tiers`; what the `head`
and the one that learns from its `own` choice suspect; and whether both had
`learnt` enough to say so.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from varl_jax.config import Config
from varl_jax.rl.discriminator import suspicion, tier_comparisons
from varl_jax.service.exploits import find_exploit

SHARE: Final = 0.25
EPSILON: Final = Config().patch.epsilon
# Draws that ties and random choices are averaged over, and of the bootstrap.
LOTS: Final = 200
RESAMPLES: Final = 4000
BINS: Final = 10

Group = Mapping[str, Any]


def chosen(
  able: Sequence[int], keys: Sequence[float | None], rng: random.Random
) -> list[int]:
  """A share of `able` with the largest keys, ties by lot, None last."""
  order = list(able)
  rng.shuffle(order)
  order.sort(key=lambda i: -math.inf if (k := keys[i]) is None else k)
  return order[::-1][: math.ceil(SHARE * len(order))]


def _scored(group: Group) -> list[float]:
  return [score for score in group["scores"] if score is not None]


# What a group is chosen by; a random choice gives all the same.
RULES: Final[Mapping[str, Callable[[Group], float | None]]] = {
  "head": lambda group: group["head"],
  "head, learnt from its own choice": lambda group: group["own"],
  "score spread": lambda group: max(_scored(group)) - min(_scored(group)),
  "top score": lambda group: max(_scored(group)),
  "length for quality": lambda group: suspicion(
    group["words"], group["scores"], epsilon=EPSILON
  ),
  "random, measured": lambda group: 0.0,
}


def step_counts(steps: Sequence[Sequence[Group]]) -> dict[str, np.ndarray]:
  """Cases there were, and cases among the chosen, by rule; one a step."""
  found: dict[str, list[float]] = {"cases": [], "groups": [], "calls": []}
  for index, step in enumerate(steps):
    groups = [g for g in step if g["tiers"] and len(_scored(g)) > 1]
    if not groups:
      continue
    cases = [
      find_exploit(g["scores"], g["tiers"], epsilon=EPSILON) is not None
      for g in groups
    ]
    calls = math.ceil(SHARE * len(groups))
    found["cases"].append(sum(cases))
    found["groups"].append(len(groups))
    found["calls"].append(calls)
    counts = {
      "random, expected": sum(cases) * calls / len(groups),
      "most possible": min(calls, sum(cases)),
    }
    for name, rule in RULES.items():
      keys = [rule(group) for group in groups]
      rng = random.Random(f"{index}/{name}")
      draws = [chosen(range(len(groups)), keys, rng) for _ in range(LOTS)]
      counts[name] = sum(cases[i] for draw in draws for i in draw) / LOTS
    for name, count in counts.items():
      found.setdefault(name, []).append(count)
  return {name: np.array(values, float) for name, values in found.items()}


def recall(counts: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
  """Share of the cases that each rule finds, and what the head finds more.

  Returns:
    By rule `recall`, `head_minus`, the head's recall minus the rule's, and the
    95% `interval` of each, a bootstrap over steps.
  """
  rng = np.random.default_rng(0)
  size = len(counts["cases"])
  draws = rng.integers(0, size, (RESAMPLES, size))
  draws = draws[counts["cases"][draws].sum(1) > 0]
  total = counts["cases"][draws].sum(1)

  def share(values: np.ndarray) -> tuple[float, list[float]]:
    spread = np.quantile(values[draws].sum(1) / total, [0.025, 0.975])
    return float(values.sum() / counts["cases"].sum()), spread.tolist()

  found = {}
  for name in ("random, expected", *RULES, "most possible"):
    own, interval = share(counts[name])
    gap, gap_interval = share(counts["head"] - counts[name])
    found[name] = {
      "recall": own,
      "interval": interval,
      "head_minus": gap,
      "head_minus_interval": gap_interval,
    }
  return found


def calibration(steps: Sequence[Sequence[Group]]) -> dict[str, Any]:
  """Predicted against observed, over all pairs of different tiers.

  A pair counts as predicted with the chance of whichever answer is the likelier
  to be better; a group's pairs weigh 1 together. `bins` are equal parts of
  [0.5, 1].
  """
  chance, right, weight, long = [], [], [], []
  for step in steps:
    for group in step:
      place = {i: at for at, tier in enumerate(group["tiers"]) for i in tier}
      tiers = [place.get(i) for i in range(len(group["scores"]))]
      pairs = tier_comparisons(tiers, [0] * len(tiers))
      quality = np.array(group["quality"])
      words = np.array(group["words"])
      lead = quality[pairs.better] - quality[pairs.worse]
      more = words[pairs.better] - words[pairs.worse]
      long += ((np.sign(more) + 1) / 2).tolist()
      chance += (1 / (1 + np.exp(-np.abs(lead)))).tolist()
      right += ((np.sign(lead) + 1) / 2).tolist()
      weight += pairs.weight.tolist()
  p, hit, w, longer = map(np.array, (chance, right, weight, long))
  at = np.minimum(((p - 0.5) * 2 * BINS).astype(int), BINS - 1)
  bins = []
  for index in range(BINS):
    own = w * (at == index)
    if own.sum():
      bins.append(
        {
          "from": 0.5 + index / (2 * BINS),
          "share": float(own.sum() / w.sum()),
          "predicted": float((own * p).sum() / own.sum()),
          "observed": float((own * hit).sum() / own.sum()),
        }
      )
  return {
    "accuracy": float((w * hit).sum() / w.sum()),
    "accuracy_of_length": float((w * longer).sum() / w.sum()),
    "brier": float((w * (p - hit) ** 2).sum() / w.sum()),
    "expected_calibration_error": sum(
      b["share"] * abs(b["predicted"] - b["observed"]) for b in bins
    ),
    "pairs": len(p),
    "bins": bins,
  }


def summary(runs: Sequence[Sequence[Sequence[Group]]]) -> dict[str, Any]:
  """All measures of one arm's runs, of steps in which the head had its say."""
  steps = [
    [group for group in step if group["tiers"]]
    for run in runs
    for step in run
    if step and all(group["learnt"] for group in step)
  ]
  counts = step_counts(steps)
  return {
    "runs": len(runs),
    "steps": len(counts["cases"]),
    **{name: int(counts[name].sum()) for name in ("groups", "calls", "cases")},
    "recall": recall(counts),
    "calibration": calibration(steps),
  }


def table(result: Mapping[str, Any]) -> str:
  """The result as Markdown."""
  arms = result["arms"]
  lines = [
    "Share of the exploit cases that are among the groups the referee is asked"
    f" about, when it is asked about {SHARE:.0%} of each step's; 95% intervals"
    " from a bootstrap over steps. Story world, an offline simulation; seeds"
    f" from {result['first_seed']}, {result['steps']} steps a run, those before"
    f" {result['warmup_updates']} updates of the head left out. `length for"
    " quality` suspects a group whose longest worse-paid answer is longer than"
    " its longest best-paid one: it knows that this world's scripted referee"
    " favours long texts, which the head has to find out.",
    *_head("recall", arms),
  ]
  for name in ("runs", "steps", "groups", "calls", "cases"):
    lines.append(_row(name, [str(arm[name]) for arm in arms.values()]))
  for name in next(iter(arms.values()))["recall"]:
    found = [arm["recall"][name] for arm in arms.values()]
    cells = [_cell(f["recall"], f["interval"], "") for f in found]
    lines.append(_row(name, cells))
  lines += _head("recall of the head minus that of", arms)
  for name in ("random, expected", *RULES):
    if not name.startswith("head"):
      found = [arm["recall"][name] for arm in arms.values()]
      cells = [
        _cell(f["head_minus"], f["head_minus_interval"], "+") for f in found
      ]
      lines.append(_row(name, cells))
  lines += [
    "",
    *(f"- {name}: {_verdict(arm['recall'])}" for name, arm in arms.items()),
    "",
    "Which of two answers in different tiers is the better one, as the head"
    " said before it learnt from them:",
    *_head("pairs of a group weigh 1 together", arms),
    _row("pairs", [str(a["calibration"]["pairs"]) for a in arms.values()]),
  ]
  for name in (
    "accuracy",
    "accuracy_of_length",
    "brier",
    "expected_calibration_error",
  ):
    cells = [f"{arm['calibration'][name]:.3f}" for arm in arms.values()]
    lines.append(_row(name.replace("_", " "), cells))
  for name, arm in arms.items():
    lines += ["", f"| {name}: predicted | observed | share of pairs |"]
    lines.append("|---|---|---|")
    for row in arm["calibration"]["bins"]:
      cells = [f"{row[key]:.3f}" for key in ("observed", "share")]
      lines.append(_row(f"{row['predicted']:.3f}", cells))
  return "\n".join(lines) + "\n"


def _verdict(found: Mapping[str, Any]) -> str:
  """Which rules the head beats, by intervals that leave out 0."""
  rivals = [name for name in RULES if not name.startswith(("head", "random"))]
  beaten = [n for n in rivals if found[n]["head_minus_interval"][0] > 0]
  others = [name for name in rivals if name not in beaten]
  said = f"the head finds more than {', '.join(beaten) or 'no rule'}"
  return f"{said}{'; not clearly more than ' if others else ''}" + (
    f"{', '.join(others)}."
  )


def _head(title: str, arms: Mapping[str, Any]) -> list[str]:
  return ["", _row(title, list(arms)), "|---|" + "---|" * len(arms)]


def _row(name: str, cells: Sequence[str]) -> str:
  return f"| {name} | {' | '.join(cells)} |"


def _cell(value: float, interval: Sequence[float], sign: str) -> str:
  low, high = interval
  return f"{value:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"
