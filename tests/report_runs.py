"""Runs made by hand, for pages: cases, repairs, kept answers."""

import dataclasses
import json

from varl_jax.metrics import MetricsWriter
from varl_jax.service.evidence import CaseRecord, History
from varl_jax.service.store import Event, Store
from varl_jax.types import (
  Criterion,
  ExploitCase,
  GradedAnswer,
  Message,
  Patch,
  PatchItem,
  Rubric,
  Task,
  Verdict,
  to_json,
)

EVIL = (
  "</p><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
  "<!--<script>\u2028</noscript></summary>\ud800"
)
RUBRIC = Rubric(
  criteria=(
    Criterion(text="Names the lantern", points=8, check="mentions(lantern)"),
    Criterion(text="Repeats a sentence", points=-6),
  )
)
ADDED = Criterion(
  text="Someone opens the door with the key", points=9, source="patch"
)


def verdict(met):
  return Verdict(met=met, votes=(True,), explanation="seen", judge="check")


def case(number=0, *, text="a thin list", step=3, gap=0.4, **changes):
  made = ExploitCase(
    case_id=f"case{number}",
    task=Task(
      task_id=f"task{number}",
      prompt=(Message(role="user", content=f"Write a story. {text}"),),
      rubric=RUBRIC,
    ),
    step=step,
    source="on_policy",
    exploit=GradedAnswer(
      sample=0,
      answer=text,
      verdicts=(verdict(True), verdict(False)),
      score=1.0,
      raw=1.0,
    ),
    honest=GradedAnswer(
      sample=1,
      answer="a good story",
      verdicts=(verdict(True), verdict(None)),
      score=0.6,
      raw=0.6,
    ),
    gap=gap,
  )
  return dataclasses.replace(made, **changes)


def patch(case, *, accepted=True):
  items = (
    PatchItem(
      criterion=ADDED,
      on_exploit=verdict(False),
      on_honest=verdict(True),
      rejected="" if accepted else "not_separating",
    ),
  )
  after = Rubric(criteria=(*RUBRIC.criteria, ADDED), version=1)
  return Patch(
    case_id=case.case_id,
    task_id=case.task.task_id,
    step=case.step,
    round=1,
    label="keyword_stuffing",
    items=items,
    before=RUBRIC,
    after=after if accepted else None,
    gap_before=case.gap,
    gap_after=-0.2 if accepted else None,
  )


def record(case, *patches):
  return CaseRecord(case=case, queued=bool(patches), patches=patches)


def history(*records, guidance=(), memos=()):
  return History(cases=records, guidance=guidance, memos=memos)


def kept_line(step, *, task_id="task0", text="a thin list", count=2):
  """A line of `rollouts.jsonl` with one group."""
  words = text.split(" ")
  pieces = [words[0], *(" " + word for word in words[1:])]
  return {
    "step": step,
    "groups": [
      {
        "task_id": task_id,
        "version": 0,
        "prompt": to_json((Message(role="user", content=f"Tell: {text}"),)),
        "criteria": [
          {**to_json(item), "met": 3, "unmet": 5} for item in RUBRIC.criteria
        ],
        "scores": [1.0, 0.5, None],
        "rollouts": [
          {
            "sample": sample,
            "score": 1.0 - sample / 2,
            "finish": "stop",
            "tokens": len(pieces) + 7,
            "trained": len(pieces) - 1,
            "pieces": pieces,
            "logprobs": [-0.01 - 2.5 * i for i in range(len(pieces))],
            "mask": [1] * (len(pieces) - 1) + [0],
            "met": [True, None],
          }
          for sample in range(count)
        ],
      }
    ],
  }


def write_run(folder, *, steps=2, config=None, kept=(), **more):
  """Writes metrics, config and kept answers of a run."""
  with MetricsWriter(folder) as writer:
    for step in range(1, steps + 1):
      found = {"reward/mean": 0.4 + step / 100, "eval/score": 0.2} | more
      writer.write(step, found)
  if config is not None:
    (folder / "config.json").write_text(json.dumps(config))
  if kept:
    lines = "".join(json.dumps(line) + "\n" for line in kept)
    (folder / "rollouts.jsonl").write_text(lines)


def case_events(record):
  """The events that put a case into a store."""
  found = record.case
  yield Event(
    uid=f"case/{found.case_id}",
    kind="case",
    step=found.step,
    payload={"case": to_json(found), "queued": record.queued},
  )
  for made in record.patches:
    yield Event(
      uid=f"patch/{made.case_id}/{made.round}",
      kind="patch",
      step=found.step,
      payload={"patch": to_json(made), "task": None},
    )


def write_store(folder, records):
  """A store with these cases, closed again."""
  store = Store(folder / "service.sqlite")
  store.commit([event for record in records for event in case_events(record)])
  store.close()
