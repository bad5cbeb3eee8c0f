"""Pairs checked before repair: both orders, who is repaired, what is kept."""

import asyncio
import contextlib
import dataclasses
import json

import pytest

from tests import fakes
from tests.methods import running
from varl_jax.config import ConfigError
from varl_jax.llm.chat import ChatError
from varl_jax.methods.parts import Workshop
from varl_jax.service.evidence import case_record, export_evidence, read_cases
from varl_jax.service.pair_check import outcome_of
from varl_jax.service.store import Store
from varl_jax.types import ExploitCase

WORDS = ("fox", "lamp", "rope")


@pytest.mark.parametrize(
  ("honest_first", "honest_second", "outcome"),
  [
    ("first", "second", "confirmed"),
    ("second", "first", "refuted"),
    ("first", "first", "equal"),
    ("second", "second", "equal"),
    ("equal", "equal", "equal"),
    ("first", "equal", "equal"),
    ("equal", "first", "equal"),
  ],
)
def test_only_a_preference_in_both_orders_counts(
  honest_first, honest_second, outcome
):
  assert outcome_of(honest_first, honest_second) == outcome


def reply(better):
  return json.dumps({"better": better, "reason": "r"})


def by_verb(reading):
  """Sentences beat lists; two lists or two sentences are equal."""
  first, second = (fakes.VERB in reading.blocks[n] for n in ("FIRST", "SECOND"))
  return reply("equal" if first == second else "first" if first else "second")


def case(number, exploit, honest, gap=0.3):
  return ExploitCase(
    case_id=f"c{number}",
    task=fakes.task(task_id=f"t{number}"),
    step=1,
    source="on_policy",
    exploit=fakes.graded(1.0, exploit),
    honest=fakes.graded(1.0 - gap, honest),
    gap=gap,
  )


LISTED, TOLD = fakes.listing(WORDS), fakes.story(WORDS[:2])
CASES = [
  case(0, LISTED, TOLD, 0.2),
  case(1, LISTED, LISTED, 0.5),
  case(2, TOLD, LISTED, 0.4),
  case(3, LISTED, TOLD, 0.3),
]


def chosen(checker=by_verb, cases=CASES, **patch):
  check = Workshop(
    config=fakes.config(patch=patch),
    roles=fakes.roles(pair_checker=checker),
    checks=fakes.CHECKS,
  ).pair_check()
  kept, outcomes = asyncio.run(check.chosen(cases))
  return [c.case_id for c in kept], dict(outcomes)


EVERY = {"c0": "confirmed", "c1": "equal", "c2": "refuted", "c3": "confirmed"}


def test_each_switch_repairs_what_it_says():
  assert chosen(verify_pairs=True) == (["c3", "c0"], EVERY)
  assert chosen(stop_equal=True) == (["c2", "c3", "c0"], EVERY)
  both = chosen(verify_pairs=True, stop_equal=True)
  assert both == (["c3", "c0"], EVERY)


def test_no_more_pairs_are_checked_than_repairs_need():
  kept, outcomes = chosen(verify_pairs=True, cases_per_step=1)
  assert kept == ["c3"]
  assert outcomes == {k: v for k, v in EVERY.items() if k != "c0"}


def test_a_failed_check_confirms_nothing_and_equals_nothing():
  def failing(reading):
    raise ChatError("timeout", "late")

  failed = dict.fromkeys(EVERY, "failed")
  assert chosen(failing, verify_pairs=True) == ([], failed)
  assert chosen(failing, stop_equal=True)[0] == ["c1", "c2", "c3", "c0"]


def run(path, *, steps=6, checker=by_verb, **patch):
  config = fakes.config(patch=patch)
  metrics = []
  with running.service(path, config, pair_checker=checker) as made:
    for number in range(steps):
      metrics.append(running.step(made, number)[1])
    settled = set(made._ledger.state.settled)
  return metrics, settled


def test_off_nothing_is_asked_and_nothing_is_added(tmp_path):
  def never(reading):
    raise AssertionError("asked")

  metrics, settled = run(tmp_path / "s.sqlite", checker=never)
  assert not settled
  assert not any(key.startswith("pairs/") for row in metrics for key in row)
  with contextlib.closing(
    Store(tmp_path / "s.sqlite", read_only=True)
  ) as store:
    export_evidence(store, tmp_path / "e.jsonl")
    records = read_cases(store)
  assert records and all(record.pair == "" for record in records)
  lines = (tmp_path / "e.jsonl").read_text().splitlines()
  assert all("pair" not in json.loads(line) for line in lines)


def test_outcomes_are_counted_kept_and_exported(tmp_path):
  metrics, _ = run(tmp_path / "s.sqlite", verify_pairs=True)
  for row in metrics:
    if "pairs/checked" in row:
      parts = ("confirmed", "equal", "refuted", "failed")
      assert row["pairs/checked"] == sum(row[f"pairs/{p}"] for p in parts)
      assert row["exploit/queued"] == row["pairs/confirmed"]
  with contextlib.closing(
    Store(tmp_path / "s.sqlite", read_only=True)
  ) as store:
    export_evidence(store, tmp_path / "e.jsonl")
    records = {r.case.case_id: r for r in read_cases(store)}
  checked = [r for r in records.values() if r.pair]
  assert sum(row.get("pairs/checked", 0) for row in metrics) == len(checked)
  assert any(r.repaired for r in checked)
  for line in (tmp_path / "e.jsonl").read_text().splitlines():
    again = case_record(json.loads(line))
    assert again == records[again.case.case_id]


def test_a_task_with_an_equal_pair_is_repaired_no_more(tmp_path):
  always = lambda reading: reply("equal")  # noqa: E731
  metrics, settled = run(tmp_path / "s.sqlite", checker=always, stop_equal=True)
  assert settled
  assert sum(row["exploit/queued"] for row in metrics) == 0
  with contextlib.closing(
    Store(tmp_path / "s.sqlite", read_only=True)
  ) as store:
    records = read_cases(store)
  # Each task is checked once: afterwards it is settled.
  names = [r.case.task.task_id for r in records if r.pair]
  assert sorted(names) == sorted(settled)
  assert {r.case.task.task_id for r in records} == settled


def test_the_switches_are_refused_where_nothing_is_repaired(tmp_path):
  config = fakes.config(
    method={"name": "generation_only"}, patch={"verify_pairs": True}
  )
  with pytest.raises(ConfigError, match="repairs none"):
    with running.service(tmp_path / "s.sqlite", config):
      pass
  assert dataclasses.replace(config).patch.verify_pairs
