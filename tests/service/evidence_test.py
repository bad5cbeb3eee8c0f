"""What is kept of cases, and its export."""

import json

import pytest

from tests import fakes
from varl_jax.methods import METHODS
from varl_jax.service.evidence import export_evidence, read_cases, read_history
from varl_jax.service.store import Store
from varl_jax.types import ExploitCase, from_json


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("run") / "service.sqlite"
  service = METHODS["rri"](
    fakes.config(),
    roles=fakes.roles(),
    store=Store(path),
    checks=fakes.CHECKS,
  )
  for step in range(5):
    groups = [
      (task, fakes.rollouts(task, step)) for task in service.poll(step, 4)
    ]
    service.report(step, service.grade(step, groups))
  service.close()
  reader = Store(path, read_only=True)
  yield reader
  reader.close()


def test_every_case_is_kept_with_answers_verdicts_and_repairs(store):
  records = read_cases(store)
  assert records
  for record in records:
    case = record.case
    assert case.gap == pytest.approx(case.exploit.score - case.honest.score)
    assert len(case.exploit.verdicts) == len(case.task.rubric.criteria)
    assert len(case.honest.verdicts) == len(case.task.rubric.criteria)
    for patch in record.patches:
      assert patch.before == case.task.rubric
      for item in patch.items:
        assert item.rejected or (item.on_exploit and item.on_honest)
  assert any(record.repaired for record in records)


def test_cases_can_be_limited_to_repaired_ones(store):
  repaired = read_cases(store, repaired=True)
  assert repaired and all(record.repaired for record in repaired)
  assert read_cases(store, limit=1) == read_cases(store)[:1]
  steps = [record.case.step for record in read_cases(store)]
  assert steps == sorted(steps, reverse=True)


def test_the_history_holds_the_versions(store):
  history = read_history(store, limit=2)
  assert len(history.cases) == 2
  assert [entry["version"] for entry in history.guidance] == [1, 2]
  assert history.guidance[0]["generator"] == "Ask for what happens."


def test_the_export_is_one_object_a_case(store, tmp_path):
  path = tmp_path / "evidence.jsonl"
  path.write_text("old")
  count = export_evidence(store, path)
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert len(lines) == count == len(read_cases(store))
  by_id = {record.case.case_id: record for record in read_cases(store)}
  for line in lines:
    patches, queued = line.pop("patches"), line.pop("queued")
    record = by_id[line["case_id"]]
    assert from_json(ExploitCase, line) == record.case
    assert queued == record.queued and len(patches) == len(record.patches)
  assert list(tmp_path.iterdir()) == [path]
