"""The exploit analysis as a page in Markdown.

Answers, tasks and reasons are untrusted: they stand in fences longer than any
run of backquotes in them, and in tables and headings only names of the program
and of folders do, with what could end a cell taken out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

TITLES: Final[Mapping[str, str]] = {
  "incorrect_pair": "Incorrect pairs",
  "faulty_answer_key": "Faulty answer keys",
  "fabricated_citations": "Fabricated citations",
  "missed_negatives": "Missed negatives",
  "ambiguous_rubrics": "Ambiguous rubrics",
  "missed_positives": "Missed positives",
}
_TOLD: Final = (
  "A share is of the audited pairs of its column; leftovers of an earlier"
  " repair are left out. An incorrect pair is no failure of the rubric: there"
  " the better answer was not better."
)


def render(result: Mapping[str, Any]) -> str:
  """The page of `exploit_shares.analysis`."""
  parts = [
    "# Exploit analysis",
    *_intro(result),
    "## Categories",
    _TOLD,
    *_share_tables(result),
    "## Second choices",
    _second(result["second_choices"]),
    "## Rewards before and after the first patch",
    _rewards(result["rewards"]),
    "## Repair",
    *_repairs(result["repairs"]),
    "## A repaired case",
    _repaired(result["repaired"]),
    "## Examples",
    *(_example(example) for example in result["examples"]),
  ]
  if not result["examples"]:
    parts.append("There is no audited pair.")
  return "\n\n".join(parts) + "\n"


def _intro(result: Mapping[str, Any]) -> list[str]:
  told = result["shares"]
  runs = result["runs"]
  pairs = sum(run["pairs"] for run in runs)
  audited = sum(run["audited"] for run in runs)
  auditors = ", ".join(map(_plain, result["auditors"])) or "nobody"
  lines = [
    f"{pairs} pairs of solver answers in {len(runs)} runs;"
    f" {audited} audited by {auditors};"
    f" {told['leftovers']} leftovers of an earlier repair;"
    f" {told['cases']} in the shares."
  ]
  failed = sum(count for run in runs for count in run["failures"].values())
  if failed:
    kinds = sorted({kind for run in runs for kind in run["failures"]})
    lines.append(
      f"**The auditor gave no usable reply on {failed} pairs"
      f" ({', '.join(map(_plain, kinds))}); the same command asks again.**"
    )
  elif audited < pairs:
    lines.append(f"**{pairs - audited} pairs are not audited yet.**")
  rows = [
    [
      run["name"],
      run["domain"],
      run["solver"],
      run["method"],
      str(run["steps"]),
      str(run["pairs"]),
      str(run["audited"]),
      str(run["re_attacks"]),
    ]
    for run in runs
  ]
  heads = "run domain solver method steps pairs audited re-attacks".split()
  return [*lines, _table(heads, rows)]


def _share_tables(result: Mapping[str, Any]) -> list[str]:
  columns = {"all": result["shares"], **result["by_domain"]}
  parts = ["### By domain", _shares(columns)]
  parts += ["### By solver", _shares(result["by_solver"])]
  for domain, thirds in result["by_progress"].items():
    parts += [f"### By progress: {_plain(domain)}", _shares(thirds)]
  return parts


def _shares(columns: Mapping[str, Mapping[str, Any]]) -> str:
  rows = []
  for name, title in TITLES.items():
    cells = [title]
    for column in columns.values():
      found = column["categories"][name]
      share = found["share"]
      cells.append(
        "-" if share is None else f"{100 * share:.1f}% ({found['cases']})"
      )
    rows.append(cells)
  rows.append(["cases", *(str(c["cases"]) for c in columns.values())])
  rows.append(["leftovers", *(str(c["leftovers"]) for c in columns.values())])
  return _table(["category", *columns], rows)


def _second(table: Mapping[str, Mapping[str, int]]) -> str:
  rows = [
    [
      TITLES[name],
      ", ".join(
        f"{TITLES.get(second, second)} {count}"
        for second, count in sorted(row.items(), key=lambda item: -item[1])
      ),
    ]
    for name, row in table.items()
  ]
  return _table(["category", "named second"], rows)


def _rewards(by_solver: Mapping[str, Mapping[str, Any]]) -> str:
  rows = []
  for solver, found in by_solver.items():
    for key, count, told in (
      ("same_answers", "groups", "the same answers, graded again"),
      ("same_tasks", "tasks", "the same tasks, served again"),
    ):
      part = found[key]
      rows.append(
        [solver, told, "-", "-", "-"]
        if part is None
        else [
          solver,
          told,
          str(part[count]),
          _number(part["before"]),
          _number(part["after"]),
        ]
      )
  return _table(["solver", "of", "count", "before", "after"], rows)


def _repairs(found: Mapping[str, Any]) -> list[str]:
  """Admission, rounds in training, criteria, attacks."""
  parts = []
  admission = found["admission"]
  if admission is None:
    parts.append("No admission was probed, or the runs have no store.")
  else:
    parts.append(
      f"At admission {admission['probed']} tasks were probed and"
      f" {admission['adopted']} rewrites adopted: the mean lead of a fresh"
      f" exploit went from {_number(admission['lead_before'])} to"
      f" {_number(admission['lead_after'])}, the share of tasks whose honest"
      f" answer is ahead from {_share(admission['honest_ahead_before'])} to"
      f" {_share(admission['honest_ahead_after'])}."
    )
  rows = [
    [
      number,
      str(row["tried"]),
      str(row["patched"]),
      _number(row["before"]),
      _number(row["after"]),
    ]
    for number, row in found["rounds"].items()
  ]
  parts.append(
    _table(["round", "tried", "patched", "lead before", "lead after"], rows)
  )
  criteria, attacks = found["criteria"], found["after_first_patch"]
  parts.append(
    f"{criteria['accepted']} criteria were accepted"
    f" ({criteria['positive']} positive, {criteria['negative']} negative); one"
    " takes from the lead on average"
    f" {_number(criteria['lead_removed_by_one'])}. After the first patch of"
    f" {attacks['tasks']} tasks the adversary found a new exploit in"
    f" {attacks['found']} and none in {attacks['none']};"
    f" {attacks['unknown']} are not known (an attack that failed, or no store)."
  )
  return parts


def _repaired(case: Mapping[str, Any] | None) -> str:
  if case is None:
    return "No pair in order was repaired."
  lines = [
    f"{'new ' if c['added'] else '    '}{c['points']:+g}  {c['text']}"
    f"  (exploit {c['exploit']}, honest {c['honest']})"
    for c in case["criteria"]
  ]
  parts = [
    f"{_plain(case['case_id'])} of {_plain(case['run'])}, step {case['step']}:"
    " of the repaired pairs that the auditor found in order, the one whose"
    " first patch removed the median of the lead.",
    _fence(case["task"]),
  ]
  for side in ("exploit", "honest"):
    answer = case[side]
    parts += [
      f"{side.capitalize()} answer, paid {answer['score']:.2f} before and"
      f" {answer['score_after']:.2f} after:",
      _fence(answer["answer"] or ""),
    ]
  return "\n\n".join([*parts, "Rubric:", _fence("\n".join(lines))])


def _example(example: Mapping[str, Any]) -> str:
  exploit, honest = example["exploit"], example["honest"]
  return "\n\n".join(
    [
      f"### {TITLES[example['category']]}: {_plain(example['case_id'])}"
      f" of {_plain(example['run'])}, step {example['step']}",
      _fence(example["task"]),
      f"Exploit answer, paid {exploit['score']:.2f}:",
      _fence(exploit["answer"] or ""),
      f"Honest answer, paid {honest['score']:.2f}:",
      _fence(honest["answer"] or ""),
      "Rubric:",
      _fence(_criteria(example["rubric"])),
      "Added by its repair:",
      _fence(_criteria(example["added"]) or "nothing"),
      "The auditor, whose second choice is"
      f" {TITLES.get(example['second_choice'], 'none')}:",
      _fence(example["reason"]),
    ]
  )


def _criteria(criteria: Sequence[Mapping[str, Any]]) -> str:
  return "\n".join(f"{c['points']:+g}  {c['text']}" for c in criteria)


def _fence(text: str) -> str:
  longest = max((len(run) for run in re.findall("`+", text)), default=0)
  marks = "`" * max(3, longest + 1)
  return f"{marks}text\n{text}\n{marks}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [f"| {' | '.join(map(_plain, heads))} |", "|---" * len(heads) + "|"]
  lines += [f"| {' | '.join(map(_plain, row))} |" for row in rows]
  return "\n".join(lines)


def _plain(text: str) -> str:
  """A name or number that cannot leave its cell or heading."""
  return re.sub(r"[|`<>\[\]\n\r]", "_", text)


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
  return "-" if value is None else f"{100 * value:.0f}%"
