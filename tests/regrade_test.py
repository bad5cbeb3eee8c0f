"""Saved answers under another judge, and the comparison of what comes out."""

import dataclasses
import json

import pytest

from tests.benchmarks import rows
from tests.evaluation_test import (
  is_judge,
  replies,
  request_for,
  results_of,
  settings,
)
from tests.faults.server import fault_server
from varl_jax import evaluation_run
from varl_jax.benchmarks import BenchmarkError, comparison

ARMS = {"weak": 0.3, "middle": 0.5, "strong": 0.8}


def by_quality(body):
  """Each arm's answers say how good they are; judges read it."""
  if not is_judge(body):
    return f"Quality {ARMS[body['model']]}."
  text = body["messages"][-1]["content"]
  quality = next(q for q in ARMS.values() if f"Quality {q}." in text)
  # The other judge is harsher, and wrong about one arm when it is `odd`.
  if body["model"] == "harsh":
    quality *= 0.8
  if body["model"] == "odd" and quality == 0.3:
    quality = 0.9
  number = sum(map(ord, text)) % 100
  return json.dumps(
    {"explanation": "Read.", "criteria_met": number < 100 * quality}
  )


def judged_by(request, name):
  config = request.config
  endpoints = config.endpoints
  judge = dataclasses.replace(endpoints.judge, model=name)
  return dataclasses.replace(
    request,
    config=dataclasses.replace(
      config, endpoints=dataclasses.replace(endpoints, judge=judge)
    ),
  )


@pytest.fixture(name="graded", scope="module")
def graded_arms(tmp_path_factory):
  """Folders of three arms under three judges, the answers drawn once."""
  place = tmp_path_factory.mktemp("arms")
  data = rows.write_rows(place / "rows.jsonl", rows.professional_set(40))
  with fault_server(by_quality) as server:
    config = settings(server.url, votes=1)
    for arm in ARMS:
      request = request_for(
        data, server.url, place / arm, model=arm, config=config
      )
      assert evaluation_run.run(request) == evaluation_run.DONE
    answered = sum(not is_judge(body) for body in server.requests)
    for judge in ("harsh", "odd"):
      for arm in ARMS:
        request = request_for(
          data,
          server.url,
          place / f"{arm}_{judge}",
          model="",
          answers=str(place / arm),
          config=config,
        )
        code = evaluation_run.run(judged_by(request, judge))
        assert code == evaluation_run.DONE
    assert sum(not is_judge(body) for body in server.requests) == answered
  return place


def test_a_regrade_keeps_who_answered_and_says_who_judged(graded):
  first, again = results_of(graded / "weak"), results_of(graded / "weak_harsh")
  assert first["answered_by"] == again["answered_by"] == ["weak"]
  assert first["judged_by"] == ["judge-model"]
  assert again["judged_by"] == ["harsh"]
  assert again["settings"]["model"]["name"] == "weak"
  assert again["settings"]["model"]["kind"] == "saved"
  assert len(again["settings"]["model"]["saved_sha256"]) == 64


def folders(place, judge=""):
  return [place / f"{arm}{judge and '_' + judge}" for arm in ARMS]


def test_another_judge_may_keep_the_order(graded):
  found = comparison.compare_folders(folders(graded), folders(graded, "harsh"))
  assert found["ordering"]["preserved"]
  assert found["ordering"]["first"][0].endswith("strong")
  for row in found["agreements"]:
    assert 0.5 < row["agreement"] < 1
    assert 0 < row["kappa"] < 1
    assert row["verdicts"] == 160
  [middle, strong] = found["differences"][:2]
  assert middle["difference"] > 0
  assert strong["interval"][0] > 0


def test_or_turn_it_which_is_said(graded, capsys, tmp_path):
  code = evaluation_run.compare(
    [str(f) for f in folders(graded)],
    [str(f) for f in folders(graded, "odd")],
    workdir=str(tmp_path / "out"),
  )
  kept = json.loads((tmp_path / "out" / "comparison.json").read_text())
  assert kept["ordering"]["preserved"] is False
  assert code == evaluation_run.DONE
  said = capsys.readouterr().out
  assert "The order of the arms is not preserved" in said
  assert "kappa" in said


def test_two_judges_of_one_arm_are_compared_without_more_ado(graded):
  found = comparison.compare_folders([graded / "weak", graded / "weak_harsh"])
  assert found["agreements"][0]["verdicts"] == 160


@pytest.mark.parametrize(
  ("first", "second", "match"),
  [
    (["weak"], [], "two results folders"),
    (["weak", "middle"], ["weak_harsh"], "2 folders and --against 1"),
    (["weak", "weak"], [], "named twice"),
    (["weak", "nowhere"], [], "cannot be read"),
    (["weak"], ["middle_harsh"], "share no answer"),
  ],
)
def test_what_cannot_be_compared_is_said(graded, first, second, match):
  with pytest.raises(BenchmarkError, match=match):
    comparison.compare_folders(
      [graded / name for name in first], [graded / name for name in second]
    )


def test_other_data_are_not_compared(graded, tmp_path):
  data = rows.write_rows(tmp_path / "rows.jsonl", rows.professional_set(3))
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.DONE
  with pytest.raises(BenchmarkError, match="results on other data"):
    comparison.compare_folders([graded / "weak", tmp_path / "out"])
