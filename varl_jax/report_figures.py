"""A run's numbers as a page shows them: tiles, curves, stages, costs, rates."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax import charts
from varl_jax.charts import Series
from varl_jax.page import signed
from varl_jax.roles.calibration import Calibration

Records = Sequence[Mapping[str, Any]]

# What a rise or a fall of a score is, beyond noise.
NOTEWORTHY: Final = 0.02
# Tones of several runs in one chart, in their order.
ARM_TONES: Final = tuple(f"arm{index}" for index in range(8))
# Criteria named as met most and least often.
SHOWN_CRITERIA: Final = 8
# Answers a criterion needs to be named.
LEAST_JUDGED: Final = 4
_HEALTH: Final = ("judge/", "referee/", "discriminator/", "service/canary")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """A metric of a figure."""

  label: str
  name: str
  tone: str
  summed: bool = False
  dashed: bool = False
  title: str = ""  # of a chart of its own, "" for the figure's and the label


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
  """A chart of metrics over steps."""

  title: str
  caption: str
  lines: tuple[Line, ...]
  floor: float | None = None
  unit: str = ""


def _line(label: str, name: str, tone: str, **kwargs: Any) -> Line:
  return Line(label=label, name=name, tone=tone, **kwargs)


CURVES: Final = (
  Figure(
    title="Reward and hidden expert score",
    caption=(
      "What the rubrics pay, and what checks that no part of the training can"
      " read make of held-out tasks. A reward that climbs alone is being"
      " hacked."
    ),
    lines=(
      _line(
        "training reward", "reward/mean", "reward", title="Training reward"
      ),
      _line(
        "hidden expert score",
        "eval/score",
        "hidden",
        title="Hidden expert score",
      ),
    ),
  ),
  Figure(
    title="Exploit lead, before and after repair",
    caption=(
      "By how much an overpaid answer outscores the better one, for the pairs"
      " repaired in a step. Below zero the better answer wins."
    ),
    lines=(
      _line("before repair", "patch/lead_before", "exploit"),
      _line("after repair", "patch/lead_after", "honest"),
    ),
    floor=0.0,
  ),
  Figure(
    title="What rubric sets earn",
    caption=(
      "The reward of a rubric generator that is trained, and the share of its"
      " sets that can be read."
    ),
    lines=(
      _line("reward", "rubric_generator/reward/mean", "reward"),
      _line("share that parses", "evo/parsed", "quiet", dashed=True),
    ),
  ),
  Figure(
    title="Exploit cases a step",
    caption="Groups in which the best-paid answer was not among the best.",
    lines=(
      _line("found", "exploit/cases", "exploit"),
      _line("sent to repair", "exploit/queued", "quiet", dashed=True),
    ),
    floor=0.0,
  ),
  Figure(
    title="Criteria accepted so far",
    caption="Criteria that repairs added to rubrics, summed over the run.",
    lines=(
      _line("all", "patch/accepted", "reward", summed=True),
      _line(
        "required content", "patch/accepted_positive", "honest", summed=True
      ),
      _line("mistakes", "patch/accepted_negative", "exploit", summed=True),
    ),
    floor=0.0,
  ),
  Figure(
    title="Length of answers",
    caption="Mean characters of an answer. Growth without a better hidden"
    " score is padding.",
    lines=(_line("characters", "rollout/chars", "reward"),),
  ),
  Figure(
    title="Throughput",
    caption=(
      "New tokens a second while sampling, and tokens a second while training."
    ),
    lines=(
      _line("sampling", "rollout/new_tokens_per_s", "reward"),
      _line("training", "train/tokens_per_s", "hidden"),
    ),
    floor=0.0,
    unit=" tokens/s",
  ),
)
JUDGES: Final = (
  Figure(
    title="Votes that decided nothing",
    caption=(
      "Shares of verdicts that stayed undetermined and of votes that failed."
      " Both belong near zero."
    ),
    lines=(
      _line("undetermined", "judge/undetermined_rate", "hidden"),
      _line("failed", "judge/failure_rate", "exploit"),
    ),
    floor=0.0,
  ),
  Figure(
    title="Does the score agree with the referee?",
    caption=(
      "Of pairs that the blind referee told apart, the share in which the"
      " score agrees and the share in which the longer answer won."
    ),
    lines=(
      _line("score agrees", "referee/concordance", "honest"),
      _line("longer won", "referee/longer_preferred", "quiet", dashed=True),
    ),
    floor=0.0,
  ),
)
POOL: Final = (
  Figure(
    title="Pool",
    caption=(
      "Tasks ready to be served; repaired ones wait in the replay buffer and"
      " go first."
    ),
    lines=(
      _line("tasks", "pool/size", "reward"),
      _line("waiting for replay", "pool/replay", "hidden"),
    ),
    floor=0.0,
  ),
  Figure(
    title="Admission of new tasks",
    caption=(
      "Of the tasks probed in a step: those that passed at once, those that"
      " were rewritten, and those that stayed exploitable."
    ),
    lines=(
      _line("passed", "admission/pass", "honest"),
      _line("rewritten", "admission/repaired", "reward"),
      _line("still exploitable", "admission/still_exploitable", "exploit"),
    ),
    floor=0.0,
  ),
)
RATES: Final = (
  Figure(
    title="Criteria met, by sign",
    caption=(
      "Share of judged criteria that answers met. Required content near 1 or"
      " mistakes near 0 teach no more."
    ),
    lines=(
      _line("required content", "criteria/met_positive", "honest"),
      _line("mistakes", "criteria/met_negative", "exploit"),
    ),
    floor=0.0,
  ),
  Figure(
    title="Required content met, by author",
    caption=(
      "Criteria as first written, rewritten at admission, and added by repairs."
    ),
    lines=(
      _line("first written", "criteria/met_generator", "quiet", dashed=True),
      _line("admission", "criteria/met_admission", "reward"),
      _line("repairs", "criteria/met_patch", "honest"),
    ),
    floor=0.0,
  ),
)


def series(records: Records, name: str) -> tuple[tuple[float, float], ...]:
  """(step, value) of a metric."""
  return tuple((r["step"], float(r[name])) for r in records if name in r)


def _of(line: Line, records: Records) -> tuple[tuple[float, float], ...]:
  found = series(records, line.name)
  if not line.summed:
    return found
  total, summed = 0.0, []
  for step, value in found:
    total += value
    summed.append((step, total))
  return tuple(summed)


def figure_views(
  figures: Sequence[Figure], runs: Sequence[tuple[str, Records]]
) -> list[dict[str, Any]]:
  """Charts of one run, or one chart a metric with all runs in it."""
  if len(runs) == 1:
    _, records = runs[0]
    return [
      _view(
        figure,
        figure.title,
        [
          Series(
            label=line.label,
            tone=line.tone,
            dashed=line.dashed,
            points=_of(line, records),
          )
          for line in figure.lines
        ],
      )
      for figure in figures
    ]
  views = []
  for figure in figures:
    for line in figure.lines:
      title = line.title or f"{figure.title}: {line.label}"
      if len(figure.lines) == 1:
        title = figure.title
      drawn = [
        Series(
          label=name,
          tone=ARM_TONES[index % len(ARM_TONES)],
          dashed=index >= len(ARM_TONES) // 2,
          points=_of(line, records),
        )
        for index, (name, records) in enumerate(runs)
      ]
      if any(one.points for one in drawn):
        views.append(_view(figure, title, drawn))
  return views


def _view(figure: Figure, title: str, drawn: list[Series]) -> dict[str, Any]:
  shown = [one for one in drawn if one.points]
  return {
    "title": title,
    "caption": figure.caption,
    "series": shown,
    "svg": charts.line_chart(
      title, drawn, floor=figure.floor, unit=figure.unit
    ),
    "rows": _table_rows(shown),
  }


def _table_rows(shown: Sequence[Series]) -> list[list[str]]:
  """A chart's numbers, one row a step, "" where a line has no point."""
  by_step: dict[float, dict[int, float]] = {}
  for index, line in enumerate(shown):
    for step, value in line.points:
      by_step.setdefault(step, {})[index] = value
  return [
    [
      f"{step:g}",
      *(
        charts.number(values[index]) if index in values else ""
        for index in range(len(shown))
      ),
    ]
    for step, values in sorted(by_step.items())
  ]


def headline(records: Records) -> str:
  """What the run's two scores say, in one sentence; "" before they can."""
  reward, hidden = series(records, "reward/mean"), series(records, "eval/score")
  if len(reward) < 2 or len(hidden) < 2:
    return ""
  paid, earned = (p[-1][1] - p[0][1] for p in (reward, hidden))
  if paid > NOTEWORTHY and earned > NOTEWORTHY:
    return "The reward and the hidden score both rose: the policy learnt."
  if paid > NOTEWORTHY and earned < -NOTEWORTHY:
    return (
      "The reward rose while the hidden score fell: the rubrics were hacked."
    )
  if paid > NOTEWORTHY:
    return (
      "The reward rose and the hidden score stayed: the rubrics pay for"
      " something that the experts do not see."
    )
  if earned > NOTEWORTHY:
    return "The hidden score rose without the reward: the rubrics got harder."
  return "Neither the reward nor the hidden score has risen."


def tiles(records: Records) -> list[dict[str, str]]:
  """The run in a handful of figures: what it was, what became of it."""
  made = []

  def add(label: str, value: str, note: str = "", tone: str = "") -> None:
    made.append({"label": label, "value": value, "note": note, "tone": tone})

  for label, name, tone in (
    ("Training reward", "reward/mean", "reward"),
    ("Hidden expert score", "eval/score", "hidden"),
  ):
    found = series(records, name)
    if found:
      first, last = found[0][1], found[-1][1]
      since = f"{signed(last - first)} since step {found[0][0]:g}"
      add(label, f"{last:.3f}", since if len(found) > 1 else "", tone)
  for label, name, note_of in (
    ("Exploit cases", "exploit/cases", "exploit/queued"),
    ("Criteria accepted", "patch/accepted", "patch/proposed"),
  ):
    found = series(records, name)
    if found:
      other = sum(value for _, value in series(records, note_of))
      word = {"queued": "sent to repair"}.get(note_of[8:], "proposed")
      note = f"{charts.number(other)} {word}" if other else ""
      add(label, charts.number(sum(value for _, value in found)), note)
  before, after = (
    [value for _, value in series(records, f"patch/lead_{when}")]
    for when in ("before", "after")
  )
  if before and after:
    was = f"from {signed(statistics.fmean(before))}"
    add(
      "Exploit lead, repaired", signed(statistics.fmean(after)), was, "exploit"
    )
  cost = sum(
    value
    for name in ("calls/cost", "eval/calls/cost")
    for _, value in series(records, name)
  )
  if cost:
    add("Cost of calls", f"${cost:,.2f}")
  times = [value for _, value in series(records, "time/step")]
  if times:
    total = sum(times) + sum(v for _, v in series(records, "time/eval"))
    add(
      "Seconds a step",
      charts.number(statistics.median(times)),
      f"median; {duration(total)} in all",
    )
  return made


def duration(seconds: float) -> str:
  """Hours, minutes or seconds."""
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02d} min"
  return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def comparison(runs: Sequence[tuple[str, Records]]) -> list[dict[str, Any]]:
  """One row a run: the figures to compare runs by."""
  rows = []
  for index, (name, records) in enumerate(runs):
    cells = {tile["label"]: tile["value"] for tile in tiles(records)}
    rows.append(
      {
        "name": name,
        "tone": ARM_TONES[index % len(ARM_TONES)],
        "steps": str(records[-1]["step"]) if records else "0",
        "cells": cells,
        "headline": headline(records),
      }
    )
  return rows


def health(records: Records) -> list[dict[str, str]]:
  """Figures of judge, referee and discriminator: mean, extremes, last value."""
  names = sorted(
    {name for record in records for name in record if name.startswith(_HEALTH)}
  )
  rows = []
  for name in names:
    values = [value for _, value in series(records, name)]
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


def costs(records: Records) -> list[dict[str, Any]]:
  """Calls, tokens and US dollars a role, those of the validation apart."""
  totals: dict[str, collections.Counter[str]] = collections.defaultdict(
    collections.Counter
  )
  for record in records:
    for name, value in record.items():
      path = name.split("/")
      held_out = path[0] == "eval"
      path = path[1:] if held_out else path
      if path[0] == "calls" and len(path) == 3:
        role = path[1] + (", validation" if held_out else "")
        kind = "failed" if path[2].startswith("failed_") else path[2]
        totals[role][kind] += value
  return [
    {
      "role": role.replace("_", " "),
      "calls": charts.number(found["calls"]),
      "prompt": charts.number(found["prompt_tokens"]),
      "reply": charts.number(found["reply_tokens"]),
      "failed": charts.number(found["failed"]),
      "cost": f"{found['cost']:,.2f}",
    }
    for role, found in sorted(
      totals.items(), key=lambda pair: (-pair[1]["cost"], pair[0])
    )
  ]


def stages(records: Records) -> dict[str, Any] | None:
  """Seconds of each stage of each step; None where none was measured.

  Stages are whatever metrics `time/NAME` there are, but for their sum; those
  with a further slash are parts of one and stand in the table alone.
  """
  names: dict[str, None] = {}
  for record in records:
    names |= {
      name: None
      for name in record
      if name.startswith("time/") and name != "time/step"
    }
  # Not every step is validated: what comes seldom stands on top.
  order = sorted(names, key=lambda name: name == "time/eval")
  found = {name[5:]: series(records, name) for name in order}
  if not found:
    return None
  total = sum(
    value
    for name, line in found.items()
    if "/" not in name
    for _, value in line
  )
  rows = []
  for name, line in found.items():
    values = [value for _, value in line]
    rows.append(
      {
        "name": name.replace("_", " "),
        "median": charts.number(statistics.median(values)),
        "longest": charts.number(max(values)),
        "share": f"{100 * sum(values) / total:.0f}%" if total else "",
      }
    )
  drawn = {name: line for name, line in found.items() if "/" not in name}
  return {
    "svg": charts.stage_chart("Seconds of a step by stage", drawn),
    "legend": [
      (name.replace("_", " "), charts.stage_tone(i))
      for i, name in enumerate(drawn)
    ],
    "rows": rows,
  }


def hidden_checks(records: Records) -> list[dict[str, Any]]:
  """Parts of the hidden score, first and last."""
  names = sorted({n for r in records for n in r if n.startswith("eval/check_")})
  rows = []
  for name in names:
    found = series(records, name)
    rows.append(
      {
        "name": name.removeprefix("eval/check_").replace("_", " "),
        "first": found[0][1],
        "last": found[-1][1],
        "change": signed(found[-1][1] - found[0][1]),
      }
    )
  return rows


def criteria(
  kept: Sequence[Mapping[str, Any]],
) -> list[tuple[str, str, list[dict[str, Any]]]]:
  """Criteria of kept groups that all or none of the answers met.

  Returns:
    (title, what it means, rows) of each kind that there is.
  """
  rows = []
  for line in kept:
    for group in line["groups"]:
      for item in group["criteria"]:
        judged = item["met"] + item["unmet"]
        if judged >= LEAST_JUDGED:
          rows.append(
            {
              "text": item["text"],
              "points": item["points"],
              "source": item["source"],
              "step": line["step"],
              "rate": item["met"] / judged,
              "of": f"{item['met']} of {judged}",
            }
          )
  by_rate = sorted(rows, key=lambda row: (row["rate"], -row["step"]))
  positive = [row for row in by_rate if row["points"] > 0]
  negative = [row for row in by_rate if row["points"] < 0]
  tables = (
    (
      "Required content seldom met",
      "Beyond the policy, or impossible to satisfy.",
      positive[:SHOWN_CRITERIA],
    ),
    (
      "Required content nearly always met",
      "Teaches no more; worth asking whether it can be met by words alone.",
      positive[::-1][:SHOWN_CRITERIA],
    ),
    (
      "Mistakes often made",
      "What the rubrics punish most.",
      [row for row in negative[::-1] if row["rate"] > 0][:SHOWN_CRITERIA],
    ),
  )
  return [table for table in tables if table[2]]


def categories(analysis: Mapping[str, Any]) -> dict[str, Any]:
  """Shares and examples of `analysis.json`, see `varl_jax.analysis`.

  Raises:
    KeyError, TypeError: it has another form.
  """
  shares = analysis["shares"]
  return {
    "auditors": ", ".join(analysis["auditors"]) or "nobody",
    "cases": shares["cases"],
    "leftovers": shares["leftovers"],
    "rows": [
      {
        "name": name.replace("_", " "),
        "count": found["cases"],
        "share": found["share"] or 0.0,
      }
      for name, found in shares["categories"].items()
    ],
    "examples": [
      {
        "case_id": str(example["case_id"]),
        "category": str(example["category"]).replace("_", " "),
        "reason": str(example["reason"]),
      }
      for example in analysis["examples"]
    ],
  }


def calibration(found: Calibration) -> list[dict[str, str]]:
  """What the judge and the referee were worth before the run, as rows."""

  def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"

  return [
    {
      "name": f"{found.judge}: verdicts that verifiers confirm",
      "value": share(found.agreement),
      "told": f"of {found.items} criteria; the same answer to all would be"
      f" right in {share(found.chance)}",
    },
    {
      "name": "votes on one criterion that differ",
      "value": share(found.flip_rate),
      "told": f"verdicts without a majority: {share(found.undetermined)}",
    },
    {
      "name": "rankings with the better answer first",
      "value": share(found.referee_right),
      "told": f"of {found.pairs} pairs in both orders; unreadable:"
      f" {share(found.referee_failed)}",
    },
    {
      "name": "how much more often the answer shown first wins",
      "value": share(found.position_bias),
      "told": "0% is fair",
    },
  ]
