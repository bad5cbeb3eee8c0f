"""Exploit cases and kept answers as a page shows them.

Each has a row in an index, which is small, and a fragment of HTML, which is
rendered by the same escaping templates as the page. A report packs fragments
into compressed blocks that the page unpacks one at a time, so that ten thousand
cases open as fast as ten; a dashboard sends them one by one.
"""

import base64
import dataclasses
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from varl_jax.page import environment, signed
from varl_jax.rubrics.scoring import by_criterion
from varl_jax.service.evidence import CaseRecord
from varl_jax.types import ExploitCase, Patch, PatchItem, Verdict

SHOWN_CASES: Final = 5
EXCERPT: Final = 140
# Fragments that are unpacked together.
BLOCK: Final = 32
PARTS: Final = "report_parts.jinja"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """An item of an index.

  Attributes:
    key: its name in links.
    title: what it is about.
    facts: what stands under it.
    facets: values to filter by, in the order of the index.
    order: numbers to sort by, likewise.
  """

  key: str
  title: str
  facts: str
  facets: tuple[str, ...]
  order: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
  """Rows with the names of what they can be filtered and sorted by."""

  facets: tuple[str, ...]
  orders: tuple[str, ...]
  rows: tuple[Row, ...]

  def plain(self) -> dict[str, Any]:
    """For JSON."""
    return {
      "facets": self.facets,
      "orders": self.orders,
      "rows": [list(dataclasses.astuple(row)) for row in self.rows],
    }


CASE_FACETS: Final = ("run", "found by", "repair", "label")
CASE_ORDERS: Final = (
  "newest first",
  "widest lead first",
  "most repaired first",
)
ROLLOUT_FACETS: Final = ("run", "shown for")
ROLLOUT_ORDERS: Final = ("newest first", "highest score first", "longest first")


def case_row(record: CaseRecord, *, run: str = "") -> Row:
  """The row of a case; `run` tells several runs apart."""
  case, repair = record.case, main_repair(record.patches)
  return case_row_of(
    case_id=case.case_id,
    step=case.step,
    source=case.source,
    gap=case.gap,
    task_id=case.task.task_id,
    text=case.task.prompt[-1].content if case.task.prompt else "",
    queued=record.queued,
    label=repair.label if repair else "",
    gap_after=repair.gap_after if repair else None,
    run=run,
  )


def case_row_of(
  *,
  case_id: str,
  step: int,
  source: str,
  gap: float,
  task_id: str,
  text: str,
  queued: bool,
  label: str,
  gap_after: float | None,
  run: str = "",
) -> Row:
  """The row of a case from what its index needs."""
  if gap_after is not None:
    repair = "repaired"
  elif label or queued:
    repair = "not repaired"
  else:
    repair = "not sent"
  lead = f"lead {signed(gap)}"
  if gap_after is not None:
    lead += f" \u2192 {signed(gap_after)}"
  facts = [f"step {step}", lead, *([label.replace("_", " ")] if label else [])]
  return Row(
    key=case_key(case_id, run=run),
    title=excerpt(text) or task_id,
    facts=" \u00b7 ".join([*([run] if run else []), *facts]),
    facets=(
      run,
      found_by(source),
      repair,
      label.replace("_", " ") if label else "none",
    ),
    order=(step, gap, gap - gap_after if gap_after is not None else -1e9),
  )


def excerpt(text: str) -> str:
  """The beginning of a text on one line."""
  line = " ".join(text.split())
  return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "\u2026"


def found_by(source: str) -> str:
  """Who found a case, in words."""
  return "blind referee" if source == "on_policy" else "adversary"


def main_repair(patches: Sequence[Patch]) -> Patch | None:
  """The repair that a case is told by: the first that added something."""
  done = [patch for patch in patches if patch.after is not None]
  return next(iter((*done, *patches)), None)


def case_view(
  record: CaseRecord,
  *,
  kept: Mapping[tuple[int, str], Mapping[str, Any]],
  run: str = "",
) -> dict[str, Any]:
  """All a page shows of a case.

  Args:
    record: the case.
    kept: groups of `rollouts.jsonl` by (step, task).
    run: tells several runs apart.
  """
  case = record.case
  group = kept.get((case.step, case.task.task_id), {})
  rubric = case.task.rubric
  exploit = by_criterion(rubric, case.exploit.verdicts)
  honest = by_criterion(rubric, case.honest.verdicts)
  repair = main_repair(record.patches)
  return {
    "key": case_key(case.case_id, run=run),
    "run": run,
    "case": case,
    "title": excerpt(_request(case)) or case.task.task_id,
    "gap": case.gap,
    "repair": repair,
    "gap_after": repair.gap_after if repair else None,
    "found_by": found_by(case.source),
    "queued": record.queued,
    "links": _links(case, group, run),
    "before": [
      {
        "criterion": criterion,
        "exploit": mark(_at(exploit, i)),
        "honest": mark(_at(honest, i)),
        "rate": _rate(group, i),
      }
      for i, criterion in enumerate(rubric.criteria)
    ],
    "rounds": [_round(patch) for patch in record.patches],
  }


def _request(case: ExploitCase) -> str:
  return case.task.prompt[-1].content if case.task.prompt else ""


def _round(patch: Patch) -> dict[str, Any]:
  return {
    "patch": patch,
    "added": [item_view(item) for item in patch.items if not item.rejected],
    "rejected": [item for item in patch.items if item.rejected],
  }


def item_view(item: PatchItem) -> dict[str, Any]:
  """A proposed criterion with its verdicts."""
  return {
    "criterion": item.criterion,
    "exploit": mark(item.on_exploit),
    "honest": mark(item.on_honest),
    "rate": "",
  }


def mark(verdict: Verdict | None) -> dict[str, str]:
  """A verdict in words, and why."""
  if verdict is None:
    return {"word": "not judged", "kind": "none", "why": ""}
  why = f"{verdict.judge}: {verdict.explanation}".rstrip(": ")
  if verdict.met is None:
    return {"word": "undetermined", "kind": "none", "why": why}
  word = "met" if verdict.met else "not met"
  return {"word": word, "kind": word.replace(" ", "-"), "why": why}


def _at(verdicts: Sequence[Verdict | None], index: int) -> Verdict | None:
  return verdicts[index] if index < len(verdicts) else None


def _rate(group: Mapping[str, Any], index: int) -> str:
  """How many answers of the group met a criterion, "" where it was not kept."""
  criteria = group.get("criteria", ())
  if index >= len(criteria):
    return ""
  met = criteria[index]["met"]
  judged = met + criteria[index]["unmet"]
  return f"{met} of {judged}" if judged else ""


def _links(
  case: ExploitCase, group: Mapping[str, Any], run: str
) -> dict[str, str]:
  """Names of the kept answers of a case, "" for one that was not kept."""
  links = {"exploit": "", "honest": ""}
  if case.source != "on_policy":
    return links
  samples = {rollout["sample"] for rollout in group.get("rollouts", ())}
  for side, answer in (("exploit", case.exploit), ("honest", case.honest)):
    if answer.sample in samples:
      links[side] = rollout_key(
        case.step, case.task.task_id, answer.sample, run=run
      )
  return links


def rollout_key(step: int, task_id: str, sample: int, *, run: str = "") -> str:
  """The name of a kept answer in links."""
  parts = [*([run] if run else []), str(step), task_id, str(sample)]
  return _sendable(".".join(parts))


def case_key(case_id: str, *, run: str = "") -> str:
  """The name of a case in links."""
  return _sendable(f"{run}.{case_id}" if run else case_id)


def _sendable(key: str) -> str:
  """Addresses are UTF-8, which has no halves of surrogate pairs."""
  return key.encode("utf-8", "replace").decode()


def rollout_row(
  step: int,
  group: Mapping[str, Any],
  rollout: Mapping[str, Any],
  *,
  role: str = "",
  run: str = "",
) -> Row:
  """The row of a kept answer; `role` is its part in a case, if it has one."""
  score = rollout["score"]
  facts = [
    f"step {step}",
    f"answer {rollout['sample']}",
    "no score" if score is None else f"score {signed(score)}",
    f"{rollout['tokens']} tokens",
    *([role] if role else []),
  ]
  return Row(
    key=rollout_key(step, group["task_id"], rollout["sample"], run=run),
    title=excerpt(group["prompt"][-1]["content"]) if group["prompt"] else "",
    facts=" \u00b7 ".join([*([run] if run else []), *facts]),
    facets=(run, role or "a random group"),
    order=(step, -1e9 if score is None else score, rollout["tokens"]),
  )


def rollout_view(
  step: int,
  group: Mapping[str, Any],
  rollout: Mapping[str, Any],
  *,
  role: str = "",
  case_key: str = "",
) -> dict[str, Any]:
  """All a page shows of a kept answer."""
  scores = [score for score in group["scores"] if score is not None]
  mean = sum(scores) / len(scores) if scores else None
  score = rollout["score"]
  shown = len(rollout["pieces"])
  trained = [
    value
    for value, own in zip(rollout["logprobs"], rollout["mask"], strict=True)
    if own
  ]
  met = rollout["met"]
  return {
    "step": step,
    "group": group,
    "rollout": rollout,
    "role": role,
    "case_key": case_key,
    "advantage": None if None in (mean, score) else score - mean,
    "mean_logprob": sum(trained) / len(trained) if trained else None,
    "unseen": rollout["tokens"] - shown,
    "tokens": token_spans(rollout),
    "criteria": [
      {
        "criterion": criterion,
        "word": _word(met[i] if i < len(met) else None),
        "rate": _rate(group, i),
      }
      for i, criterion in enumerate(group["criteria"])
    ],
  }


def _word(met: bool | None) -> dict[str, str]:
  if met is None:
    return {"word": "undetermined", "kind": "none", "why": ""}
  word = "met" if met else "not met"
  return {"word": word, "kind": word.replace(" ", "-"), "why": ""}


def token_spans(rollout: Mapping[str, Any]) -> list[dict[str, str]]:
  """Tokens with their class: masked, or how likely they were (q0 to q4)."""
  spans = []
  for text, value, own in zip(
    rollout["pieces"], rollout["logprobs"], rollout["mask"], strict=True
  ):
    if not text:
      continue
    spans.append(
      {
        "text": text,
        "kind": likelihood(value) if own else "masked",
        "why": f"p = {math.exp(min(0.0, value)):.2g}"
        if own
        else "not trained: a tool wrote it",
      }
    )
  return spans


def likelihood(logprob: float) -> str:
  """A class of how likely a token was: q0 (90% and more) to q4 (below 1%)."""
  bounds = (0.9, 0.5, 0.1, 0.01)
  chance = math.exp(min(0.0, logprob))
  return f"q{sum(chance < bound for bound in bounds)}"


def case_fragment(view: Mapping[str, Any]) -> str:
  """HTML of a case for the browser of cases."""
  return str(_parts().case_detail(view))


def rollout_fragment(view: Mapping[str, Any]) -> str:
  """HTML of a kept answer."""
  return str(_parts().rollout_detail(view))


def _parts() -> Any:
  return environment().get_template(PARTS).module


def packed(fragments: Iterable[str]) -> list[str]:
  """Fragments in compressed blocks of `BLOCK`, as base64 of raw deflate."""
  blocks = []
  rest = iter(fragments)
  while block := list(itertools.islice(rest, BLOCK)):
    text = json.dumps(block, ensure_ascii=False)
    squeezer = zlib.compressobj(6, zlib.DEFLATED, -15)
    data = squeezer.compress(text.encode("utf-8", "replace"))
    blocks.append(base64.b64encode(data + squeezer.flush()).decode())
  return blocks


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
