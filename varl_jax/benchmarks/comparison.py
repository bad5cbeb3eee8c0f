"""Results compared: between arms, and between judges of the same answers.

- Difference of two arms: mean over the tasks both scored, with a paired
  bootstrap interval (the same tasks are drawn for both).
- Agreement of two judges: share of equal verdicts on the same answers and
  criteria, and Cohen's kappa, which is 0 for judges that agree by chance alone.
- Ordering: whether another judge ranks the arms alike.
"""

import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from varl_jax.benchmarks import resampling
from varl_jax.benchmarks.folder import (
  RESULTS,
  VERDICTS,
  read_json,
  read_lines,
  read_verdicts,
)
from varl_jax.benchmarks.protocol import BenchmarkError
from varl_jax.types import Verdict

# (task_id, sample, criterion, mark of the answer).
VerdictKey = tuple[str, int, int, str]
TIE = 1e-9


def paired_difference(
  first: Mapping[str, float],
  second: Mapping[str, float],
  groups: Mapping[str, str] | None = None,
  *,
  seed: int = 0,
) -> dict[str, Any]:
  """Second minus first over the tasks both have.

  Args:
    first: score by task.
    second: likewise.
    groups: of tasks, whose means are averaged with equal weight.
    seed: of the draws.

  Returns:
    `difference`, `interval` (95%), `tasks`, `share_above`: of the resamples in
    which the second is ahead.

  Raises:
    BenchmarkError: no task is in both.
  """
  common = [name for name in first if name in second]
  if not common:
    raise BenchmarkError("The results have no scored task in common.")
  gaps = [second[name] - first[name] for name in common]
  strata = [groups.get(name, "") for name in common] if groups else None
  drawn = resampling.resampled_means(gaps, strata, seed=seed)
  found = resampling.interval(drawn)
  return {
    "difference": resampling.group_mean(gaps, strata or [""] * len(gaps)),
    "interval": [found.low, found.high],
    "tasks": len(common),
    "share_above": float((drawn > 0).mean()),
  }


def agreement(
  first: Mapping[VerdictKey, bool | None],
  second: Mapping[VerdictKey, bool | None],
) -> dict[str, Any] | None:
  """How far two judges agree; None when no verdict is on the same thing.

  Returns:
    `agreement` and `kappa` over the verdicts that both decided (None without
    any; kappa also when both always say the same), `verdicts`, how many,
    `undetermined`, how many either left open, and `met`, the share each calls
    met.
  """
  common = [key for key in first if key in second]
  if not common:
    return None
  pairs = [
    (a, b)
    for a, b in ((first[key], second[key]) for key in common)
    if a is not None and b is not None
  ]
  result: dict[str, Any] = {
    "agreement": None,
    "kappa": None,
    "verdicts": len(pairs),
    "undetermined": len(common) - len(pairs),
    "met": None,
  }
  if not pairs:
    return result
  observed = sum(a == b for a, b in pairs) / len(pairs)
  a_met = sum(a for a, _ in pairs) / len(pairs)
  b_met = sum(b for _, b in pairs) / len(pairs)
  chance = a_met * b_met + (1 - a_met) * (1 - b_met)
  kappa = None if chance == 1 else (observed - chance) / (1 - chance)
  return result | {
    "agreement": observed,
    "kappa": kappa,
    "met": [a_met, b_met],
  }


def ordering(
  first: Mapping[str, float], second: Mapping[str, float]
) -> dict[str, Any]:
  """Whether two judges rank arms alike.

  Args:
    first: score by arm under one judge.
    second: the same arms under another.

  Returns:
    `preserved`, both orders (best first), `kendall_tau` (None for one arm), and
    `swapped`, pairs of arms that changed places. Ties of one judge that the
    other breaks are no swap.
  """
  if set(first) != set(second):
    raise ValueError("The arms differ.")
  swapped, concordant, discordant = [], 0, 0
  for a, b in itertools.combinations(first, 2):
    product = _sign(first[a] - first[b]) * _sign(second[a] - second[b])
    concordant += product > 0
    if product < 0:
      discordant += 1
      swapped.append([a, b])
  pairs = math.comb(len(first), 2)
  return {
    "preserved": not swapped,
    "first": sorted(first, key=lambda name: -first[name]),
    "second": sorted(second, key=lambda name: -second[name]),
    "kendall_tau": (concordant - discordant) / pairs if pairs else None,
    "swapped": swapped,
  }


def _sign(value: float) -> int:
  return 0 if abs(value) <= TIE else int(math.copysign(1, value))


def compare_folders(
  folders: Sequence[pathlib.Path], against: Sequence[pathlib.Path] = ()
) -> dict[str, Any]:
  """Compares results folders.

  Args:
    folders: arms; every later one is compared with the first.
    against: the same arms in the same order, graded by another judge.

  Returns:
    `arms` (score and judge of each), `differences` (to the first arm), and with
    `against` for each arm `agreement` of the judges and the `ordering` of arms.

  Raises:
    BenchmarkError: a folder has no results, or the folders do not belong
      together.
  """
  if len(folders) < 2 and not against:
    raise BenchmarkError("Name two results folders or more to compare.")
  if against and len(against) != len(folders):
    raise BenchmarkError(
      f"--compare names {len(folders)} folders and --against {len(against)};"
      " name the same arms in the same order."
    )
  if len(set(folders)) < len(folders):
    raise BenchmarkError("A results folder is named twice.")
  first = {str(folder): _results(folder) for folder in folders}
  second = {str(folder): _results(folder) for folder in against}
  _check_same_data({**first, **second})
  found: dict[str, Any] = {
    "arms": {name: _arm(one) for name, one in {**first, **second}.items()},
    "differences": [
      *_differences(list(folders), first),
      *_differences(list(against), second),
    ],
  }
  if against:
    pairs = list(zip(folders, against, strict=True))
    found["agreements"] = [
      {"folders": [str(a), str(b)], **_agreement(a, b)} for a, b in pairs
    ]
    found["ordering"] = ordering(
      {str(a): first[str(a)]["score"] for a, _ in pairs},
      {str(a): second[str(b)]["score"] for a, b in pairs},
    )
  elif len(folders) == 2:
    judged = agreement(*map(_verdicts, folders))
    if judged is not None:
      found["agreements"] = [{"folders": list(map(str, folders)), **judged}]
  return found


def _results(folder: pathlib.Path) -> dict[str, Any]:
  results = read_json(folder / RESULTS)
  if results.get("score") is None:
    raise BenchmarkError(f"{folder} holds no score; finish its evaluation.")
  if not results.get("complete"):
    raise BenchmarkError(
      f"{folder} is not complete; give its command again before comparing."
    )
  return results


def _check_same_data(results: Mapping[str, Mapping[str, Any]]) -> None:
  names = list(results)
  kinds = {
    name: (one["benchmark"], one["settings"]["data"]["sha256"])
    for name, one in results.items()
  }
  for name in names[1:]:
    if kinds[name] != kinds[names[0]]:
      raise BenchmarkError(
        f"{names[0]} and {name} are results on other data; compare results on"
        " the same ones."
      )


def _arm(results: Mapping[str, Any]) -> dict[str, Any]:
  return {
    "score": results["score"],
    "interval": results["interval"],
    "judged_by": results["judged_by"],
    "answered_by": results["answered_by"]
    or [results["settings"]["model"]["name"]],
  }


def _differences(
  folders: Sequence[pathlib.Path], results: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
  if not folders:
    return []
  base = str(folders[0])
  groups = results[base].get("task_groups") or None
  return [
    {
      "folders": [base, str(other)],
      **paired_difference(
        results[base]["task_scores"],
        results[str(other)]["task_scores"],
        groups,
      ),
    }
    for other in folders[1:]
  ]


def _agreement(a: pathlib.Path, b: pathlib.Path) -> dict[str, Any]:
  found = agreement(_verdicts(a), _verdicts(b))
  if found is None:
    raise BenchmarkError(
      f"{a} and {b} share no answer; grade the answers of the one again by"
      " --answers to compare judges."
    )
  return found


def _verdicts(folder: pathlib.Path) -> dict[VerdictKey, bool | None]:
  rows, _ = read_lines(folder / VERDICTS)
  found: dict[VerdictKey, bool | None] = {}
  for (task_id, sample), judged in read_verdicts(rows).items():
    for index, (mark, verdict) in judged.items():
      assert isinstance(verdict, Verdict)
      found[task_id, sample, index, mark] = verdict.met
  return found


def comparison_text(found: Mapping[str, Any]) -> list[str]:
  """A comparison in lines."""
  lines = []
  for name, arm in found["arms"].items():
    low, high = arm["interval"]
    judges = ", ".join(arm["judged_by"])
    lines.append(
      f"{name}: score {arm['score']:.4f} [{low:.4f}, {high:.4f}] by {judges}"
    )
  for row in found["differences"]:
    low, high = row["interval"]
    lines.append(
      f"{row['folders'][1]} minus {row['folders'][0]}: {row['difference']:+.4f}"
      f" [{low:+.4f}, {high:+.4f}] over {row['tasks']} tasks, ahead in"
      f" {row['share_above']:.0%} of resamples"
    )
  for row in found.get("agreements", ()):
    if row["agreement"] is None:
      lines.append(f"{' and '.join(row['folders'])}: no verdict of both")
      continue
    kappa = "undefined" if row["kappa"] is None else f"{row['kappa']:.3f}"
    lines.append(
      f"{' and '.join(row['folders'])}: judges agree on"
      f" {row['agreement']:.1%} of {row['verdicts']} verdicts, kappa {kappa}"
    )
  order = found.get("ordering")
  if order:
    word = "preserved" if order["preserved"] else "not preserved"
    tau = order["kendall_tau"]
    said = "" if tau is None else f" (Kendall's tau {tau:.2f})"
    lines.append(f"The order of the arms is {word}{said}")
  return lines
