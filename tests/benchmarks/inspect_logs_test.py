"""Results written as Inspect logs and read back; needs the extra."""

import importlib.util
import json
import sys

import pytest

from tests.benchmarks import rows
from tests.evaluation_test import is_judge, request_for, results_of
from tests.faults.server import fault_server
from varl_jax import benchmarks, evaluation_run
from varl_jax.benchmarks import BenchmarkError, inspect_logs
from varl_jax.benchmarks.answering import Answer
from varl_jax.types import Verdict

installed = importlib.util.find_spec("inspect_ai") is not None
needs_inspect = pytest.mark.skipif(
  not installed, reason="the extra `inspect` is not installed"
)


def made(tmp_path):
  path = rows.write_rows(
    tmp_path / "rows.jsonl", [rows.professional("a"), rows.professional("b")]
  )
  tasks = benchmarks.load("healthbench_professional", path)
  answers = {
    ("a", 0): Answer(
      task_id="a",
      sample=0,
      answer=f"An answer with {rows.CANARY}.",
      finish="stop",
      model="m-1",
    ),
    ("a", 1): Answer(task_id="a", sample=1, answer="Another.", model="m-1"),
    ("b", 0): Answer(task_id="b", sample=0, answer=None, finish="length"),
  }
  verdicts = {
    ("a", 0): {
      0: Verdict(met=True, votes=(True,), explanation="Said.", judge="j"),
      1: Verdict(met=False, votes=(False,), explanation="No.", judge="j"),
    },
    ("a", 1): {
      0: Verdict(
        met=None, votes=(), explanation="", judge="j", failures=("timeout",)
      ),
      1: Verdict(met=False, votes=(False,), explanation="No.", judge="j"),
    },
  }
  results = benchmarks.score(
    "healthbench_professional",
    tasks,
    {
      "a": [list(verdicts["a", s].values()) for s in (0, 1)],
      "b": [[]],
    },
    {"a": [answers["a", s].answer for s in (0, 1)], "b": [None]},
  )
  return tasks, answers, verdicts, results


def write(path, parts):
  tasks, answers, verdicts, results = parts
  return inspect_logs.write_log(
    path,
    benchmark=benchmarks.find("healthbench_professional"),
    tasks=tasks,
    answers=answers,
    verdicts=verdicts,
    results=results,
    settings={"model": {"name": "m-1"}, "samples": 2},
  )


@needs_inspect
@pytest.mark.parametrize("ending", ["eval", "json"])
def test_a_log_is_read_back_whole(tmp_path, ending):
  parts = made(tmp_path)
  path = write(tmp_path / f"log.{ending}", parts)
  answers, verdicts = inspect_logs.read_log(path)
  found = {(a.task_id, a.sample): a for a in answers}
  assert set(found) == set(parts[1])
  assert found["a", 1].answer == "Another."
  assert found["a", 0].answer == "An answer with [canary]."
  assert found["b", 0].answer is None
  assert found["b", 0].finish == "length"
  assert verdicts["a", 0] == parts[2]["a", 0]
  assert verdicts["a", 1] == parts[2]["a", 1]
  assert verdicts["b", 0] == {}


@needs_inspect
def test_a_log_is_one_that_inspect_itself_reads(tmp_path):
  from inspect_ai.log import read_eval_log

  parts = made(tmp_path)
  log = read_eval_log(str(write(tmp_path / "log.eval", parts)))
  assert log.status == "success"
  assert log.eval.task == "healthbench_professional"
  assert log.results is not None and log.samples is not None
  metrics = log.results.scores[0].metrics
  assert metrics["score"].value == pytest.approx(parts[3]["score"])
  assert len(log.samples) == 3
  assert rows.CANARY not in log.model_dump_json()


@needs_inspect
def test_what_is_no_log_is_refused(tmp_path):
  path = tmp_path / "log.json"
  path.write_text("{}")
  with pytest.raises(BenchmarkError, match="no Inspect log"):
    inspect_logs.read_log(path)
  with pytest.raises(BenchmarkError, match=r"ends in .eval or .json"):
    write(tmp_path / "log.txt", made(tmp_path))


def test_without_the_extra_one_sentence_names_it(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
  with pytest.raises(
    BenchmarkError, match=r"need the extra: pip install .*insp"
  ):
    write(tmp_path / "log.eval", made(tmp_path))


@needs_inspect
def test_an_evaluation_leaves_a_log_whose_answers_grade_alike(tmp_path):
  data = rows.write_rows(tmp_path / "rows.jsonl", rows.professional_set(6))

  def reply(body):
    if is_judge(body):
      met = "fact 0" in body["messages"][-1]["content"]
      return json.dumps({"explanation": "Seen.", "criteria_met": met})
    return "An answer of some length."

  log = tmp_path / "log.eval"
  with fault_server(reply) as server:
    request = request_for(data, server.url, tmp_path / "out")
    code = evaluation_run.run(request, to_inspect=str(log))
    assert code == evaluation_run.DONE
    again = request_for(
      data, server.url, tmp_path / "again", model="", answers=str(log)
    )
    assert evaluation_run.run(again) == evaluation_run.DONE
  first, second = results_of(tmp_path / "out"), results_of(tmp_path / "again")
  assert first["task_scores"] == second["task_scores"]
  assert second["answered_by"] == ["some-model"]
