"""The report's page from a run's records: what is shown, and how it is said."""

import base64
import hashlib
import importlib.resources
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2
from markupsafe import Markup

from varl_jax import charts
from varl_jax.charts import Series
from varl_jax.rubrics.scoring import by_criterion
from varl_jax.service.evidence import CaseRecord, History
from varl_jax.types import PatchItem, Verdict

SHOWN_CASES: Final = 5


def render_report(
  *,
  config: Mapping[str, Any],
  records: Sequence[Mapping[str, Any]],
  history: History,
) -> str:
  """The page's HTML; a pure function of its arguments."""
  files = importlib.resources.files("varl_jax")
  style = (files / "report.css").read_text(encoding="utf-8")
  digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["number"] = charts.number
  environment.filters["signed"] = _signed
  environment.filters["points"] = _points
  template = environment.from_string(
    (files / "report.html.jinja").read_text(encoding="utf-8")
  )
  return template.render(
    style=Markup(style),
    style_digest=digest,
    name=config.get("name") or "run",
    method=config.get("method", {}).get("name", ""),
    domain=config.get("domain", ""),
    seed=config.get("seed", ""),
    steps=records[-1]["step"] if records else 0,
    tiles=_tiles(records),
    figures=_figures(records),
    cases=[_case_view(record) for record in pick_cases(history.cases)],
    case_total=len(history.cases),
    judges=_judges(history.cases),
    health=_health(records),
    timelines=(
      ("Guidance", [_version(entry) for entry in history.guidance]),
      ("Memo", [_version(entry) for entry in history.memos]),
    ),
    settings=_flatten(config),
  )


def pick_cases(
  records: Sequence[CaseRecord], *, limit: int = SHOWN_CASES
) -> list[CaseRecord]:
  """Cases worth reading, in order of steps.

  Repaired ones first, those that the solver found before the adversary's, each
  task once, spread evenly over the run.
  """

  def tier(record: CaseRecord) -> int:
    if not record.repaired:
      return 2
    return 0 if record.case.source == "on_policy" else 1

  order = sorted(records, key=lambda r: (tier(r), -r.case.gap, r.case.case_id))
  by_task: dict[str, CaseRecord] = {}
  for record in order:
    by_task.setdefault(record.case.task.task_id, record)
  picked: list[CaseRecord] = []
  for level in range(3):
    among = [record for record in by_task.values() if tier(record) == level]
    picked += _spread(among, limit - len(picked))
  return sorted(picked, key=_when)


def _when(record: CaseRecord) -> tuple[int, str]:
  return record.case.step, record.case.case_id


def _spread(records: Sequence[CaseRecord], count: int) -> list[CaseRecord]:
  """The case of median gap from each of `count` equal stretches of steps.

  The widest gaps would be the referee's errors more often than not.
  """
  if len(records) <= count:
    return list(records)
  by_step = sorted(records, key=_when)
  bounds = [round(i * len(by_step) / max(count, 1)) for i in range(count + 1)]
  picked = []
  for start, end in itertools.pairwise(bounds):
    stretch = sorted(by_step[start:end], key=lambda record: record.case.gap)
    picked.append(stretch[len(stretch) // 2])
  return picked


def _series(
  records: Sequence[Mapping[str, Any]], name: str
) -> tuple[tuple[float, float], ...]:
  return tuple((r["step"], float(r[name])) for r in records if name in r)


def _running_sum(
  points: Sequence[tuple[float, float]],
) -> tuple[tuple[float, float], ...]:
  total = 0.0
  summed = []
  for step, value in points:
    total += value
    summed.append((step, total))
  return tuple(summed)


def _tiles(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
  """The run in a handful of figures: what it was, what became of it."""
  tiles = []
  for label, name, tone in (
    ("Training reward", "reward/mean", "reward"),
    ("Hidden expert score", "eval/score", "hidden"),
  ):
    points = _series(records, name)
    if points:
      first, last = points[0][1], points[-1][1]
      note = f"{_signed(last - first)} since step {points[0][0]:g}"
      tiles.append(
        {"label": label, "value": f"{last:.3f}", "note": note, "tone": tone}
      )
  for label, name, note_of in (
    ("Exploit cases", "exploit/cases", "exploit/queued"),
    ("Criteria accepted", "patch/accepted", "patch/proposed"),
  ):
    points = _series(records, name)
    if points:
      total = sum(value for _, value in points)
      other = sum(value for _, value in _series(records, note_of))
      word = note_of.rpartition("/")[2]
      tiles.append(
        {
          "label": label,
          "value": charts.number(total),
          "note": f"{charts.number(other)} {word}" if other else "",
          "tone": "",
        }
      )
  before = [v for _, v in _series(records, "patch/lead_before")]
  after = [v for _, v in _series(records, "patch/lead_after")]
  if before and after:
    tiles.append(
      {
        "label": "Exploit lead, repaired",
        "value": _signed(statistics.fmean(after)),
        "note": f"from {_signed(statistics.fmean(before))}",
        "tone": "exploit",
      }
    )
  times = [v for _, v in _series(records, "time/step")]
  if times:
    tiles.append(
      {
        "label": "Seconds a step",
        "value": charts.number(statistics.median(times)),
        "note": "median",
        "tone": "",
      }
    )
  return tiles


def _figures(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  def line(label: str, name: str, tone: str, **kwargs: bool) -> Series:
    return Series(
      label=label, tone=tone, points=_series(records, name), **kwargs
    )

  def summed(label: str, name: str, tone: str) -> Series:
    points = _running_sum(_series(records, name))
    return Series(label=label, tone=tone, points=points)

  wanted: list[tuple[str, str, list[Series], float | None, str]] = [
    (
      "Reward and hidden expert score",
      "What the rubrics pay, and what checks that no part of the training"
      " can read make of held-out tasks. A reward that climbs alone is"
      " being hacked.",
      [
        line("training reward", "reward/mean", "reward"),
        line("hidden expert score", "eval/score", "hidden"),
      ],
      None,
      "",
    ),
    (
      "Exploit lead, before and after repair",
      "By how much an overpaid answer outscores the better one, for the"
      " pairs repaired in a step. Below zero the better answer wins.",
      [
        line("before repair", "patch/lead_before", "exploit"),
        line("after repair", "patch/lead_after", "honest"),
      ],
      0.0,
      "",
    ),
    (
      "Criteria accepted so far",
      "Criteria that repairs added to rubrics, summed over the run.",
      [
        summed("all", "patch/accepted", "reward"),
        summed("required content", "patch/accepted_positive", "honest"),
        summed("mistakes", "patch/accepted_negative", "exploit"),
      ],
      0.0,
      "",
    ),
    (
      "Exploit cases a step",
      "Groups in which the best-paid answer was not among the best.",
      [
        line("found", "exploit/cases", "exploit"),
        line("sent to repair", "exploit/queued", "quiet", dashed=True),
      ],
      0.0,
      "",
    ),
    (
      "Pool",
      "Tasks ready to be served; repaired ones wait in the replay buffer"
      " and go first.",
      [
        line("tasks", "pool/size", "reward"),
        line("waiting for replay", "pool/replay", "hidden"),
      ],
      0.0,
      "",
    ),
    (
      "Throughput",
      "New tokens a second while sampling, and tokens a second while training.",
      [
        line("sampling", "rollout/new_tokens_per_s", "reward"),
        line("training", "train/tokens_per_s", "hidden"),
      ],
      0.0,
      " tokens/s",
    ),
  ]
  if _series(records, "evo/parsed"):
    wanted.append(
      (
        "What rubric sets earn",
        "The reward of a rubric generator that is trained, and the share of its"
        " sets that can be read.",
        [
          line("reward", "rubric_generator/reward/mean", "reward"),
          line("share that parses", "evo/parsed", "quiet", dashed=True),
        ],
        None,
        "",
      )
    )
  return [
    {
      "title": title,
      "caption": caption,
      "series": [one for one in series if one.points],
      "svg": charts.line_chart(title, series, floor=floor, unit=unit),
      "rows": _table_rows([one for one in series if one.points]),
    }
    for title, caption, series, floor, unit in wanted
  ]


def _table_rows(series: Sequence[Series]) -> list[list[str]]:
  """A chart's numbers, one row a step, "" where a line has no point."""
  by_step: dict[float, dict[str, float]] = {}
  for line in series:
    for step, value in line.points:
      by_step.setdefault(step, {})[line.label] = value
  return [
    [
      f"{step:g}",
      *(
        charts.number(values[line.label]) if line.label in values else ""
        for line in series
      ),
    ]
    for step, values in sorted(by_step.items())
  ]


def _case_view(record: CaseRecord) -> dict[str, Any]:
  case = record.case
  accepted = [patch for patch in record.patches if patch.after is not None]
  repair = next(iter((*accepted, *record.patches)), None)
  items = repair.items if repair else ()
  rubric = case.task.rubric
  exploit = by_criterion(rubric, case.exploit.verdicts)
  honest = by_criterion(rubric, case.honest.verdicts)
  return {
    "case": case,
    "gap": case.gap,
    "repair": repair,
    "gap_after": repair.gap_after if repair else None,
    "found_by": (
      "the blind referee"
      if case.source == "on_policy"
      else "the adversary's new attack"
    ),
    "before": [
      {
        "criterion": criterion,
        "exploit": _mark(_at(exploit, i)),
        "honest": _mark(_at(honest, i)),
      }
      for i, criterion in enumerate(rubric.criteria)
    ],
    "added": [_item_view(item) for item in items if not item.rejected],
    "rejected": [item for item in items if item.rejected],
  }


def _item_view(item: PatchItem) -> dict[str, Any]:
  return {
    "criterion": item.criterion,
    "exploit": _mark(item.on_exploit),
    "honest": _mark(item.on_honest),
  }


def _at(verdicts: Sequence[Verdict | None], index: int) -> Verdict | None:
  return verdicts[index] if index < len(verdicts) else None


def _mark(verdict: Verdict | None) -> dict[str, str]:
  if verdict is None:
    return {"word": "not judged", "kind": "none", "why": ""}
  why = f"{verdict.judge}: {verdict.explanation}".rstrip(": ")
  if verdict.met is None:
    return {"word": "undetermined", "kind": "none", "why": why}
  word = "met" if verdict.met else "not met"
  return {"word": word, "kind": word.replace(" ", "-"), "why": why}


def _judges(records: Sequence[CaseRecord]) -> list[tuple[str, int]]:
  """Who decided the verdicts of the kept cases, and how many each."""
  counts: dict[str, int] = {}
  for record in records:
    pair = record.case.exploit, record.case.honest
    for verdict in (*pair[0].verdicts, *pair[1].verdicts):
      counts[verdict.judge] = counts.get(verdict.judge, 0) + 1
  return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _health(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
  """Figures of judge, referee and discriminator: mean, extremes, last value."""
  names = sorted(
    {
      name
      for record in records
      for name in record
      if name.startswith(("judge/", "referee/", "discriminator/"))
    }
  )
  rows = []
  for name in names:
    values = [value for _, value in _series(records, name)]
    rows.append(
      {
        "name": name,
        "mean": charts.number(statistics.fmean(values)),
        "low": charts.number(min(values)),
        "high": charts.number(max(values)),
        "last": charts.number(values[-1]),
      }
    )
  return rows


def _version(entry: Mapping[str, Any]) -> dict[str, Any]:
  """A version of the guidance or the memo: its texts, its words and numbers."""
  texts, facts = [], []
  for name, value in entry.items():
    label = name.replace("_", " ")
    if isinstance(value, str):
      if " " in value.strip():
        texts.append((label, value))
      elif value:
        facts.append((label, value.replace("_", " ")))
    elif isinstance(value, (int, float)) and name not in ("version", "step"):
      facts.append((label, charts.number(value)))
  return {
    "version": entry.get("version", "?"),
    "step": entry.get("step"),
    "texts": texts,
    "facts": facts,
  }


def _flatten(tree: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
  rows: list[tuple[str, str]] = []
  for key, value in tree.items():
    if isinstance(value, Mapping):
      rows += _flatten(value, f"{path}{key}.")
    else:
      rows.append((f"{path}{key}", str(value)))
  return rows


def _signed(value: float) -> str:
  return f"{value:+.2f}".replace("-", "\u2212")


def _points(value: float) -> str:
  return f"{value:+g}".replace("-", "\u2212")
