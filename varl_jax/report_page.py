"""The report's page from runs: what is shown, and in which order."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax import report_cases, report_figures
from varl_jax.page import flatten, render_page, script_json
from varl_jax.report_cases import Index, pick_cases
from varl_jax.report_data import RunData
from varl_jax.report_versions import guidance_views, memo_views
from varl_jax.service.evidence import CaseRecord

TEMPLATE: Final = "report.html.jinja"
# Answers that a report holds token by token, at most.
SHOWN_ROLLOUTS: Final = 600

# (step, task, sample) -> (its part in a case, the case's key)
Roles = dict[tuple[int, str, int], tuple[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Browser:
  """An index to browse, and packed fragments unless a server has them."""

  index: Index
  blocks: Sequence[str] = ()
  size: int = report_cases.BLOCK

  @property
  def json(self) -> str:
    """The index, for a script element."""
    return script_json(self.index.plain())


def render_report(
  runs: Sequence[RunData],
  *,
  cases: Browser | None = None,
  rollouts: Browser | None = None,
  judges: Sequence[tuple[str, int]] | None = None,
  live: bool = False,
  version: str = "",
) -> str:
  """The page's HTML; a pure function of its arguments.

  Args:
    runs: one, or several whose curves are laid over one another.
    cases: of a server that has the fragments; by default all of the runs'.
    rollouts: likewise.
    judges: who decided the verdicts of the cases, likewise.
    live: whether the page asks for news where it came from.
    version: of what the page shows, by which it knows that there are news.
  """
  names = run_names(runs)
  tagged = list(zip(names, runs, strict=True))
  numbers = [(name, run.records) for name, run in tagged]
  first = runs[0]
  every = [record for run in runs for record in run.history.cases]
  alone = len(runs) == 1
  return render_page(
    TEMPLATE,
    script=True,
    live=live,
    version=version,
    name=first.name if alone else " and ".join(names),
    facts=_facts(first) if alone else [("runs", str(len(runs)))],
    planned=first.config.get("train", {}).get("steps") if alone else None,
    steps=first.records[-1]["step"] if first.records else 0,
    recorded=any(run.records for run in runs),
    headline=report_figures.headline(first.records) if alone else "",
    tiles=report_figures.tiles(first.records) if alone else [],
    comparison=[] if alone else report_figures.comparison(numbers),
    curves=report_figures.figure_views(report_figures.CURVES, numbers),
    picked=_picked(tagged, pick_cases(every)),
    cases=cases or case_browser(tagged),
    rollouts=rollouts or rollout_browser(tagged),
    latest=_latest(tagged),
    rates=report_figures.figure_views(report_figures.RATES, numbers),
    criteria=[
      table for run in runs[:1] for table in report_figures.criteria(run.kept)
    ],
    checks=report_figures.hidden_checks(first.records) if alone else [],
    judges=_judges(every) if judges is None else judges,
    judge_figures=report_figures.figure_views(report_figures.JUDGES, numbers),
    health=[(n, report_figures.health(records)) for n, records in numbers],
    calibrations=[
      (name, report_figures.calibration(run.calibration))
      for name, run in tagged
      if run.calibration is not None
    ],
    costs=[(n, report_figures.costs(records)) for n, records in numbers],
    stages=[(n, report_figures.stages(records)) for n, records in numbers],
    pool=report_figures.figure_views(report_figures.POOL, numbers),
    timelines=[
      (name, title, views)
      for name, run in tagged
      for title, views in (
        ("Guidance", guidance_views(run.history.guidance, run.records)),
        ("Memo", memo_views(run.history.memos, run.config)),
      )
    ],
    analyses=[
      (name, _categories(run.analysis, "" if alone else name))
      for name, run in tagged
      if run.analysis is not None
    ],
    settings=flatten(first.config) if alone else [],
    differences=[] if alone else _differences(tagged),
    alone=alone,
  )


def run_names(runs: Sequence[RunData]) -> list[str]:
  """Names that tell runs apart, "" for one alone is never among them."""
  counts: dict[str, int] = {}
  names = []
  for run in runs:
    counts[run.name] = counts.get(run.name, 0) + 1
    number = counts[run.name]
    names.append(run.name if number == 1 else f"{run.name} ({number})")
  return names


def case_browser(tagged: Sequence[tuple[str, RunData]]) -> Browser:
  """All cases of the runs with their fragments, newest first."""
  rows, fragments = [], []
  for name, run in tagged:
    tag = name if len(tagged) > 1 else ""
    groups = run.groups
    for record in run.history.cases:
      rows.append(report_cases.case_row(record, run=tag))
      view = report_cases.case_view(record, kept=groups, run=tag)
      fragments.append(report_cases.case_fragment(view))
  return Browser(
    index=Index(
      facets=report_cases.CASE_FACETS,
      orders=report_cases.CASE_ORDERS,
      rows=tuple(rows),
    ),
    blocks=report_cases.packed(fragments),
  )


def rollout_browser(tagged: Sequence[tuple[str, RunData]]) -> Browser:
  """Kept answers of the runs with their fragments, newest first."""
  rows, fragments = [], []
  for name, run in tagged:
    tag = name if len(tagged) > 1 else ""
    roles = case_roles(run.history.cases, run=tag)
    for step, group, rollout in _spread(
      run.kept, SHOWN_ROLLOUTS // len(tagged)
    ):
      place = (step, group["task_id"], rollout["sample"])
      role, key = roles.get(place, ("", ""))
      rows.append(
        report_cases.rollout_row(step, group, rollout, role=role, run=tag)
      )
      view = report_cases.rollout_view(
        step, group, rollout, role=role, case_key=key
      )
      fragments.append(report_cases.rollout_fragment(view))
  return Browser(
    index=Index(
      facets=report_cases.ROLLOUT_FACETS,
      orders=report_cases.ROLLOUT_ORDERS,
      rows=tuple(rows),
    ),
    blocks=report_cases.packed(fragments),
  )


def case_roles(cases: Sequence[CaseRecord], *, run: str = "") -> Roles:
  """What part solver's answers play in cases."""
  roles: Roles = {}
  for record in cases:
    case = record.case
    if case.source == "on_policy":
      key = report_cases.case_key(case.case_id, run=run)
      for role, answer in (
        ("better answer", case.honest),
        ("exploit", case.exploit),
      ):
        roles[case.step, case.task.task_id, answer.sample] = (role, key)
  return roles


def kept_rollouts(
  kept: Sequence[Mapping[str, Any]],
) -> list[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
  """(step, group, answer) of all kept answers, the newest first."""
  return [
    (line["step"], group, rollout)
    for line in reversed(kept)
    for group in line["groups"]
    for rollout in group["rollouts"]
  ]


def _spread(
  kept: Sequence[Mapping[str, Any]], most: int
) -> list[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
  """At most so many kept answers, of steps spread evenly over the run."""
  found = kept_rollouts(kept)
  if len(found) <= most:
    return found
  every = -(-len(found) // most)
  steps = list(dict.fromkeys(step for step, _, _ in found))
  wanted = set(itertools.islice(steps, 0, None, every))
  return [item for item in found if item[0] in wanted]


def _categories(analysis: Mapping[str, Any], run: str) -> dict[str, Any]:
  found = report_figures.categories(analysis)
  for example in found["examples"]:
    example["key"] = report_cases.case_key(example["case_id"], run=run)
  return found


def _picked(
  tagged: Sequence[tuple[str, RunData]], picked: Sequence[CaseRecord]
) -> list[dict[str, Any]]:
  views = []
  for record in picked:
    for name, run in tagged:
      if record in run.history.cases:
        tag = name if len(tagged) > 1 else ""
        views.append(report_cases.case_view(record, kept=run.groups, run=tag))
        break
  return views


def _latest(
  tagged: Sequence[tuple[str, RunData]],
) -> dict[str, Any] | None:
  """The newest kept answer, for readers without scripts."""
  for _, run in tagged:
    for step, group, rollout in kept_rollouts(run.kept)[:1]:
      return report_cases.rollout_view(step, group, rollout)
  return None


def _facts(run: RunData) -> list[tuple[str, str]]:
  config = run.config
  facts = [
    ("method", config.get("method", {}).get("name", "")),
    ("domain", config.get("domain", "")),
    ("policy", config.get("model", {}).get("path", "")),
    ("seed", str(config.get("seed", ""))),
  ]
  return [(name, str(value)) for name, value in facts if value != ""]


def _judges(records: Sequence[CaseRecord]) -> list[tuple[str, int]]:
  """Who decided the verdicts of the kept cases, and how many each."""
  counts: dict[str, int] = {}
  for record in records:
    pair = record.case.exploit, record.case.honest
    for verdict in (*pair[0].verdicts, *pair[1].verdicts):
      counts[verdict.judge] = counts.get(verdict.judge, 0) + 1
  return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _differences(
  tagged: Sequence[tuple[str, RunData]],
) -> list[tuple[str, list[str]]]:
  """Settings in which runs differ, one value a run."""
  tables = [dict(flatten(run.config)) for _, run in tagged]
  names = dict.fromkeys(name for table in tables for name in table)
  rows = [(name, [table.get(name, "") for table in tables]) for name in names]
  return [(name, values) for name, values in rows if len(set(values)) > 1]
