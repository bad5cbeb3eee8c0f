"""docs/benchmarks.md: its own benchmark runs, its flags and names are real."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.benchmarks import rows
from tests.evaluation_test import is_judge, request_for, results_of
from tests.faults.server import fault_server
from varl_jax import evaluation_run
from varl_jax.benchmarks import BENCHMARKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
[MODULE] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
[ROW] = re.findall(r'`(\{"id".*?\})`', PAGE)


def test_a_benchmark_of_ones_own_is_forty_lines():
  assert len(MODULE.splitlines()) <= 40


def test_the_benchmark_of_the_page_is_evaluated(tmp_path):
  (tmp_path / "haiku.py").write_text(MODULE)
  first = json.loads(ROW)
  data = rows.write_rows(
    tmp_path / "haiku.jsonl",
    [first, first | {"id": "2", "subject": "snow", "season": "winter"}],
  )

  def reply(body):
    text = body["messages"][-1]["content"]
    if is_judge(body):
      met = "Is about" in text
      return json.dumps({"explanation": "Read.", "criteria_met": met})
    return "One\ntwo\nthree" if "rain" in text else "x" * 200

  with fault_server(reply) as server:
    request = request_for(
      data,
      server.url,
      tmp_path / "out",
      benchmark=str(tmp_path / "haiku.py"),
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    judged = [body for body in server.requests if is_judge(body)]
  found = results_of(tmp_path / "out")
  # All of it; then the subject alone, less a tenth for its length.
  assert found["task_scores"] == {
    "1": pytest.approx(1.0),
    "2": pytest.approx(5 / 8 - 0.1),
  }
  assert found["breakdowns"]["season"]["winter"]["tasks"] == 1
  assert found["judged_by"] == ["check", "judge-model"]
  # Two criteria of each answer are the judge's, the third the program's.
  assert len(judged) == 2 * 2 * 3
  assert "Haiku" in (tmp_path / "out" / "report.html").read_text()


def test_every_flag_of_the_page_exists():
  done = subprocess.run(
    [sys.executable, "-m", "varl_jax.evaluate", "--help"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  flags = set(re.findall(r"^  --(?:\[no\])?(\w+)", done.stdout, re.M))
  named = set(re.findall(r"--(\w+)", PAGE))
  assert named <= flags, named - flags


def test_every_benchmark_is_in_the_page():
  for name in BENCHMARKS:
    if not name.endswith(("finance_hard", "legal_hard")):
      assert f"`{name}`" in PAGE, name
