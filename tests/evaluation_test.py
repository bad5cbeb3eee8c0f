"""Evaluations through a local server: stops, failures, results, pages."""

import collections
import contextlib
import dataclasses
import hashlib
import html.parser
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.benchmarks import rows
from tests.faults.server import (
  Always,
  Answer,
  Fault,
  First,
  fault_server,
  no_faults,
)
from varl_jax import benchmarks, evaluation_run
from varl_jax.benchmarks import BenchmarkError
from varl_jax.benchmarks.folder import read_lines
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.evaluation_data import Request

WHOLE = 525
CRITERIA = 4


def is_judge(body):
  return "response_format" in body or len(body["messages"]) == 1


def digits(body):
  text = json.dumps([body["messages"], body.get("seed")])
  return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def replies(body):
  """Answers of some length, and verdicts that do not follow any order."""
  if is_judge(body):
    met = digits(body) % 3 > 0
    return json.dumps({"explanation": "Seen.", "criteria_met": met})
  return f"An answer. {rows.CANARY} " + "word " * (digits(body) % 150)


def settings(url, *, votes=3, concurrency=64, **judge):
  endpoint = {
    "base_url": url,
    "api_key_env": "",
    "concurrency": concurrency,
    "outage_s": 0.2,
    "attempts": 2,
  }
  return from_config_dict(
    {
      "endpoints": {
        "roles": endpoint,
        "judge": {**endpoint, "model": "judge-model"},
      },
      "judge": {"votes": votes, **judge},
    }
  )


@pytest.fixture(name="data")
def data_file(tmp_path):
  return rows.write_rows(tmp_path / "small.jsonl", rows.professional_set(20))


def request_for(data, url, workdir, **changes):
  config = changes.pop("config", None) or settings(url)
  fields = {
    "benchmark": "healthbench_professional",
    "data": str(data),
    "config": config,
    "workdir": pathlib.Path(workdir),
    "model": "some-model",
    **changes,
  }
  return Request(**fields)


def results_of(workdir):
  return json.loads((pathlib.Path(workdir) / "results.json").read_text())


def bodies_paid(server):
  """How often each request was answered well."""
  return collections.Counter(
    json.dumps(body, sort_keys=True)
    for outcome, body in server.outcomes
    if outcome == "ok"
  )


@pytest.mark.slow
def test_a_whole_set_interrupted_five_times_pays_each_verdict_once(tmp_path):
  data = rows.write_rows(tmp_path / "all.jsonl", rows.professional_set(WHOLE))
  stops = [300, 600, 1000, 1600, 2200]
  # One request in twenty fails first, which is tried again and never lost.
  with fault_server(replies, First("500", share=0.05)) as server:
    served = 0

    def interrupting(body):
      nonlocal served
      served += 1
      if stops and served == stops[0]:
        stops.pop(0)
        os.kill(os.getpid(), signal.SIGINT)
      return replies(body)

    server._replies = interrupting
    config = settings(server.url, votes=1)
    request = request_for(data, server.url, tmp_path / "out", config=config)
    codes = []
    while not codes or codes[-1] == evaluation_run.INTERRUPTED:
      codes.append(evaluation_run.run(request))
    assert codes == [evaluation_run.INTERRUPTED] * 5 + [evaluation_run.DONE]
    paid = bodies_paid(server)
    assert set(paid.values()) == {1}
    assert len(paid) == WHOLE + WHOLE * CRITERIA
    whole = request_for(data, server.url, tmp_path / "again", config=config)
    assert evaluation_run.run(whole) == evaluation_run.DONE
  found, again = results_of(tmp_path / "out"), results_of(tmp_path / "again")
  assert found["complete"]
  assert found["scored"] == WHOLE
  same = ("score", "raw", "interval", "breakdowns", "task_scores", "settings")
  assert {k: found[k] for k in same} == {k: again[k] for k in same}


@pytest.mark.slow
def test_a_killed_evaluation_loses_only_what_was_in_flight(tmp_path, data):
  flights = 4
  stops = [10, 40, 60]
  with fault_server(replies) as server:
    running = []
    served = 0

    def killing(body):
      nonlocal served
      served += 1
      if stops and served == stops[0]:
        stops.pop(0)
        running[-1].kill()
      return replies(body)

    server._replies = killing
    command = [
      sys.executable,
      "-m",
      "varl_jax.evaluate",
      "--benchmark=healthbench_professional",
      f"--data={data}",
      "--model=some-model",
      f"--model_url={server.url}",
      "--judge=judge-model",
      f"--judge_url={server.url}",
      f"--concurrency={flights}",
      "--config.judge.votes=1",
      "--config.endpoints.roles.api_key_env=",
      "--config.endpoints.judge.api_key_env=",
      f"--workdir={tmp_path / 'out'}",
    ]
    codes = []
    while not codes or codes[-1] == -signal.SIGKILL:
      started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
      )
      running.append(started)
      codes.append(started.wait(timeout=120))
    paid = bodies_paid(server)
  assert codes == [-signal.SIGKILL] * 3 + [0]
  assert len(paid) == 20 + 20 * CRITERIA
  # The model's and the judge's, each on its way or waiting for the disk.
  assert paid.total() - len(paid) <= 3 * 4 * flights
  assert results_of(tmp_path / "out")["scored"] == 20


def test_results_say_what_they_are_of(tmp_path, data):
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out", samples=2)
    assert evaluation_run.run(request) == evaluation_run.DONE
  found = results_of(tmp_path / "out")
  assert found["tasks"] == found["scored"] == 20
  assert found["answers"] == 40
  assert found["answered_by"] == ["some-model"]
  assert found["judged_by"] == ["judge-model"]
  told = found["settings"]
  digest = hashlib.sha256(data.read_bytes()).hexdigest()
  assert told["data"]["sha256"] == {"small.jsonl": digest}
  assert told["data"]["published"] is False
  assert told["judge"]["votes"] == 3
  assert told["judge"]["strict"] is False
  assert len(told["judge"]["prompt_sha256"]) == 64
  assert told["model"]["temperature"] == 1.0
  assert set(found["breakdowns"]) == {
    "difficulty",
    "specialty",
    "type",
    "use_case",
  }
  tasks = benchmarks.load("healthbench_professional", data)
  answers, verdicts = {}, {}
  for row in read_lines(tmp_path / "out" / "answers.jsonl")[0]:
    answers.setdefault(row["task_id"], {})[row["sample"]] = row["answer"]
  for row in read_lines(tmp_path / "out" / "verdicts.jsonl")[0]:
    key = row["task_id"], row["sample"]
    verdicts.setdefault(key, {})[row["criterion"]] = row["met"]
  again = benchmarks.score(
    "healthbench_professional",
    tasks,
    {
      name: [[verdicts[name, s][i] for i in range(CRITERIA)] for s in range(2)]
      for name in answers
    },
    {name: [found[0], found[1]] for name, found in answers.items()},
  )
  assert again["score"] == found["score"]
  assert again["interval"] == found["interval"]


def test_no_canary_is_printed_or_shown(tmp_path, data, capsys):
  with fault_server(replies) as server:
    for flag in (False, True):
      request = request_for(data, server.url, tmp_path / "out")
      evaluation_run.run(request, show_items=flag)
      page = (tmp_path / "out" / "report.html").read_text()
      assert rows.CANARY not in page
      assert ("States fact 0" in page) == flag
      assert ("[canary]" in page) == flag
  said = capsys.readouterr()
  assert rows.CANARY not in said.out + said.err
  assert rows.CANARY not in (tmp_path / "out" / "results.json").read_text()


def test_a_page_runs_nothing_and_escapes_everything(tmp_path):
  row = rows.profbench("<script>alert(1)</script>", weights=("Major",))
  data = rows.write_rows(tmp_path / "rows.jsonl", [row])
  hostile = "<img src=x onerror=alert(1)>"
  with fault_server(
    lambda body: replies(body) if is_judge(body) else hostile
  ) as server:
    request = request_for(
      data, server.url, tmp_path / "out", benchmark="profbench"
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
  page = (tmp_path / "out" / "report.html").read_text()
  assert "<script" not in page
  assert "<img" not in page
  assert "&lt;img src=x" in page
  assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


@pytest.mark.parametrize(
  "fault", ["503", "wrong_schema", "refusal", "html", "cut_reply"]
)
def test_a_judge_that_always_fails_exits_with_an_error(
  tmp_path, data, capsys, fault
):
  def judge_fails(call):
    return fault if is_judge(call.body) else None

  with fault_server(replies, judge_fails) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.FAILED
    said = capsys.readouterr()
    assert "100% of the judge's votes failed" in said.err
    found = results_of(tmp_path / "out")
    assert found["score"] is None
    assert not found["complete"]
    assert found["scored"] == 0
    # Nothing is lost: the same command goes on once the judge is mended.
    server.faults = no_faults
    code = evaluation_run.run(request)
  if fault == "503":
    assert code == evaluation_run.DONE
    assert results_of(tmp_path / "out")["scored"] == 20
  else:
    assert code in (evaluation_run.DONE, evaluation_run.FAILED)


@pytest.mark.parametrize("fault", ["quota", "unauthorized"])
def test_calls_that_cannot_succeed_end_it_with_the_reason(
  tmp_path, data, capsys, fault
):
  with fault_server(replies) as server:

    def later(call):
      return fault if server.counts["ok"] >= 100 else None

    server.faults = later
    config = settings(server.url, concurrency=4)
    request = request_for(data, server.url, tmp_path / "out", config=config)
    assert evaluation_run.run(request) == evaluation_run.FAILED
    assert "The judge had no reply from judge-model" in capsys.readouterr().err
    assert not results_of(tmp_path / "out")["complete"]
    server.faults = no_faults
    assert evaluation_run.run(request) == evaluation_run.DONE
    assert set(bodies_paid(server).values()) == {1}


def test_unscorable_tasks_are_reported_and_no_zeros(tmp_path, data):
  """A judge that never decides on one task; the others' mean stands."""

  def no_vote(body):
    if is_judge(body) and "Case hbp-0003." in body["messages"][-1]["content"]:
      return "I would rather not say."
    met = {"explanation": "Seen.", "criteria_met": True}
    return json.dumps(met) if is_judge(body) else "x" * 2000

  with fault_server(no_vote) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.DONE
    asked = len(server.requests)
    assert evaluation_run.run(request) == evaluation_run.DONE
    # Replies that were paid for come from the journal, unreadable ones too.
    assert len(server.requests) == asked
  found = results_of(tmp_path / "out")
  assert found["scored"] == 19
  assert found["unscorable"] == {
    "tasks": 1,
    "answers": 1,
    "reasons": {"undetermined": 1},
    "task_ids": ["hbp-0003"],
  }
  tasks = benchmarks.load("healthbench_professional", data)
  wanted = benchmarks.score(
    "healthbench_professional",
    [task for task in tasks if task.task_id != "hbp-0003"],
    [[True] * CRITERIA] * 19,
    ["x" * 2000] * 19,
  )
  assert found["score"] == pytest.approx(wanted["score"])


def test_an_unreadable_vote_is_asked_for_again(tmp_path, data):
  """A bounded number of times, under a name and a seed of its own."""

  def first_seeds_fail(body):
    if is_judge(body) and digits(body) % 5 == 0:
      return '{"explanation": "It is \\"false\\".", "criteria_met": "false"}'
    return replies(body)

  with fault_server(first_seeds_fail) as server:
    config = settings(server.url, votes=1, max_failure_rate=0.5)
    request = request_for(data, server.url, tmp_path / "out", config=config)
    assert evaluation_run.run(request) == evaluation_run.DONE
    seeds = [body["seed"] for body in server.requests]
  assert len(seeds) == len(set(seeds))
  found = results_of(tmp_path / "out")
  assert found["scored"] >= 18
  assert len(seeds) > 20 + 20 * CRITERIA


def test_missing_answers_count_nothing_and_are_counted(tmp_path, data):
  def some_silent(body):
    if is_judge(body):
      return json.dumps({"explanation": "Seen.", "criteria_met": True})
    text = body["messages"][-1]["content"]
    if "hbp-0001" in text:
      return Answer(text="<think>for ever", finish="length")
    if "hbp-0002" in text:
      return Answer(text="", finish="length")
    return "x" * 2000

  def refuses(call):
    text = call.body["messages"][-1]["content"]
    return None if is_judge(call.body) or "hbp-0004" not in text else "refusal"

  with fault_server(some_silent, refuses) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.DONE
    judged = [body for body in server.requests if is_judge(body)]
  found = results_of(tmp_path / "out")
  assert found["missing"] == 3
  assert found["scored"] == 20
  assert len(judged) == 17 * CRITERIA * 3
  for name in ("hbp-0001", "hbp-0002", "hbp-0004"):
    assert found["task_scores"][name] == 0.0


def test_answers_that_could_not_be_had_are_asked_for_again(tmp_path, data):
  def some_fail(call):
    text = call.body["messages"][-1]["content"]
    return "500" if not is_judge(call.body) and "hbp-0007" in text else None

  with fault_server(replies, some_fail) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.DONE
    found = results_of(tmp_path / "out")
    assert found["unscorable"]["reasons"] == {"unanswered": 1}
    server.faults = no_faults
    assert evaluation_run.run(request) == evaluation_run.DONE
  assert results_of(tmp_path / "out")["scored"] == 20


def test_a_model_that_never_answers_exits_with_an_error(tmp_path, data, capsys):
  with fault_server(replies, Always(Fault(name="500").name)) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.FAILED
  assert "calls for answers failed" in capsys.readouterr().err


def test_another_setting_does_not_mix_into_a_folder(tmp_path, data):
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out", limit=2)
    assert evaluation_run.run(request) == evaluation_run.DONE
    other = request_for(
      data, server.url, tmp_path / "out", limit=2, temperature=0.0
    )
    with pytest.raises(BenchmarkError, match=r"model.temperature 1.0 instead"):
      evaluation_run.run(other)


def test_saved_answers_are_graded_without_a_model(tmp_path, data):
  answers = [{"task_id": f"hbp-{i:04d}", "answer": "x" * 99} for i in range(19)]
  file = rows.write_rows(tmp_path / "saved.jsonl", answers)
  with fault_server(replies) as server:
    request = request_for(
      data, server.url, tmp_path / "out", model="", answers=str(file)
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    assert all(map(is_judge, server.requests))
  found = results_of(tmp_path / "out")
  # A task without a row was not answered, which is no reason to leave it out.
  assert found["missing"] == 1
  assert found["settings"]["model"]["kind"] == "saved"


def test_a_last_row_without_a_line_break_counts(tmp_path, data):
  """And a limit leaves the other answers of the file alone."""
  answers = [{"task_id": f"hbp-{i:04d}", "answer": "x"} for i in range(4)]
  file = tmp_path / "saved.jsonl"
  file.write_text("\n".join(map(json.dumps, answers)))
  for limit, missing in ((4, 0), (2, 0)):
    with fault_server(replies) as server:
      request = request_for(
        data,
        server.url,
        tmp_path / f"out{limit}",
        model="",
        answers=str(file),
        limit=limit,
      )
      assert evaluation_run.run(request) == evaluation_run.DONE
    found = results_of(tmp_path / f"out{limit}")
    assert (found["tasks"], found["missing"]) == (limit, missing)


@pytest.mark.parametrize(
  ("row", "match"),
  [
    ({"task_id": "z", "answer": "x"}, r"saved.jsonl:1 answers the task 'z'"),
    ({"task_id": "hbp-0000"}, "holds no answer"),
    ({"task_id": "hbp-0000", "answer": 3}, "holds no answer"),
    ({"task_id": "hbp-0000", "answer": "x", "sample": 1}, "one more answer"),
  ],
)
def test_saved_answers_of_something_else_are_refused(
  tmp_path, data, row, match
):
  file = rows.write_rows(tmp_path / "saved.jsonl", [row])
  request = request_for(
    data, "http://127.0.0.1:9/v1", tmp_path / "out", answers=str(file)
  )
  with pytest.raises(BenchmarkError, match=match):
    evaluation_run.run(request)


def test_options_are_read_by_a_program_and_no_judge_is_asked(tmp_path):
  made = [rows.medxpertqa(f"Text-{i}", "C") for i in range(4)]
  data = rows.write_rows(tmp_path / "rows.jsonl", made)
  said = ["Final answer: C", "Final answer: A", "Final answer: C or A", "C"]

  def answer(body):
    text = body["messages"][-1]["content"]
    return next(s for i, s in enumerate(said) if f"Text-{i}?" in text)

  with fault_server(answer) as server:
    config = settings(server.url)
    config = dataclasses.replace(
      config,
      endpoints=dataclasses.replace(
        config.endpoints,
        judge=dataclasses.replace(config.endpoints.judge, model=""),
      ),
    )
    request = request_for(
      data,
      server.url,
      tmp_path / "out",
      benchmark="medxpertqa_text",
      config=config,
      temperature=0.0,
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    assert {body["temperature"] for body in server.requests} == {0.0}
    assert len(server.requests) == 4
  found = results_of(tmp_path / "out")
  assert found["score"] == 0.5
  assert found["judged_by"] == ["check"]


def test_images_go_to_models_that_take_them(tmp_path):
  (tmp_path / "images").mkdir()
  (tmp_path / "images" / "a.png").write_bytes(b"\x89PNG made up")
  row = rows.medxpertqa("MM-0", "B", images=["a.png"])
  data = rows.write_rows(tmp_path / "rows.jsonl", [row])
  with fault_server(lambda body: "Final answer: B") as server:
    config = from_config_dict(
      {"endpoints": {"roles": {"base_url": server.url, "api_key_env": ""}}}
    )
    request = request_for(
      data,
      server.url,
      tmp_path / "out",
      benchmark="medxpertqa_image",
      config=config,
    )
    with pytest.raises(BenchmarkError, match="1 tasks show images; add --ima"):
      evaluation_run.run(request)
    assert not server.requests
    taking = dataclasses.replace(request, images=True)
    assert evaluation_run.run(taking) == evaluation_run.DONE
    [body] = server.requests
  text, image = body["messages"][-1]["content"]
  assert text["text"].startswith("Which one for MM-0?")
  assert image["image_url"]["url"].startswith("data:image/png;base64,")
  assert results_of(tmp_path / "out")["score"] == 1.0


def test_the_authors_judge_is_taken_on_request(tmp_path, data):
  with fault_server(replies) as server:
    request = request_for(
      data, server.url, tmp_path / "out", official_judge=True
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    judged = [body for body in server.requests if is_judge(body)]
  assert len(judged) == 20 * CRITERIA
  assert {b["model"] for b in judged} == {"gpt-5.4-2026-03-05"}
  assert {b["reasoning_effort"] for b in judged} == {"low"}
  told = results_of(tmp_path / "out")["settings"]["judge"]
  assert told["official"] is True
  assert told["model"] == "gpt-5.4-2026-03-05"


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"model": ""}, "Name who answers by --model"),
    ({"method": "medrag"}, "'medrag' needs retrieval: name an index"),
    ({"method": "magic"}, "no method 'magic'"),
    ({"benchmark": ""}, "--benchmark is missing"),
    ({"data": "nowhere.jsonl"}, "There are no data of HealthBench Profess"),
    ({"system": "nowhere.txt"}, "--system is solver, none or a text file"),
    ({"benchmark": "profbench", "official_judge": True}, "no task|official"),
  ],
)
def test_wrong_input_is_one_sentence(tmp_path, data, changes, match):
  request = dataclasses.replace(
    request_for(data, "http://127.0.0.1:9/v1", tmp_path / "out"), **changes
  )
  with pytest.raises((BenchmarkError, ConfigError), match=match):
    evaluation_run.run(request)
  assert not (tmp_path / "out" / "settings.json").exists()


def test_a_second_process_is_kept_out(tmp_path, data):
  from varl_jax import run_folder

  (tmp_path / "out").mkdir()
  with contextlib.closing(run_folder.lock(tmp_path / "out")):
    request = request_for(data, "http://127.0.0.1:9/v1", tmp_path / "out")
    with pytest.raises(run_folder.RunError, match="in use by another process"):
      evaluation_run.run(request)


def test_progress_tells_cost_and_time_left(tmp_path, data, capsys):
  with fault_server(replies) as server:
    config = settings(server.url)
    priced = dataclasses.replace(config.endpoints.judge, price_out=1000.0)
    config = dataclasses.replace(
      config,
      endpoints=dataclasses.replace(config.endpoints, judge=priced),
    )
    request = request_for(data, server.url, tmp_path / "out", config=config)
    assert evaluation_run.run(request) == evaluation_run.DONE
  line = capsys.readouterr().err.splitlines()[-1]
  assert "graded 20/20" in line
  assert "left 0s" in line
  usage = results_of(tmp_path / "out")["usage"]
  assert usage["calls/judge/calls"] == 20 * CRITERIA * 3
  assert f"cost ${usage['calls/cost']:.2f}" in line
  assert usage["calls/cost"] > 0
  # A later start that asks nothing still tells what all of it cost.
  assert evaluation_run.run(request) == evaluation_run.DONE
  again = results_of(tmp_path / "out")
  assert "calls/cost" not in again["usage"]
  assert again["cost"] == pytest.approx(usage["calls/cost"])


def test_a_second_interrupt_stops_at_once(tmp_path, data):
  with fault_server(replies) as server:
    served = 0

    def twice(body):
      nonlocal served
      served += 1
      if served in (40, 44):
        os.kill(os.getpid(), signal.SIGINT)
      return replies(body)

    server._replies = twice
    config = settings(server.url, concurrency=4)
    request = request_for(data, server.url, tmp_path / "out", config=config)
    try:
      code = evaluation_run.run(request)
    except KeyboardInterrupt:
      code = evaluation_run.INTERRUPTED
    assert code == evaluation_run.INTERRUPTED
    assert evaluation_run.run(request) == evaluation_run.DONE
  assert results_of(tmp_path / "out")["scored"] == 20


def test_tasks_that_cannot_be_scored_are_not_judged(tmp_path):
  made = [rows.professional("a", (-4, -2)), rows.professional("b", (4,))]
  data = rows.write_rows(tmp_path / "rows.jsonl", made)
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out")
    assert evaluation_run.run(request) == evaluation_run.DONE
    judged = [body for body in server.requests if is_judge(body)]
  assert len(judged) == 3
  found = results_of(tmp_path / "out")
  assert found["unscorable"]["reasons"] == {"no_positive": 1}


def test_a_local_text_model_is_shown_no_images(tmp_path):
  row = rows.medxpertqa("MM-0", "B", images=["a.png"])
  data = rows.write_rows(tmp_path / "rows.jsonl", [row])
  request = request_for(
    data,
    "http://127.0.0.1:9/v1",
    tmp_path / "out",
    benchmark="medxpertqa",
    model="story",
  )
  with pytest.raises(BenchmarkError, match="story is a text model"):
    evaluation_run.run(request)


def test_a_damaged_folder_is_said_and_a_cut_line_is_not(tmp_path, data):
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out", limit=5)
    assert evaluation_run.run(request) == evaluation_run.DONE
    path = tmp_path / "out" / "verdicts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    asked = len(server.requests)
    assert evaluation_run.run(request) == evaluation_run.DONE
    # The row that was lost comes from the journal.
    assert len(server.requests) == asked
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    path.write_bytes(b"{broken\n" + whole)
    with pytest.raises(BenchmarkError, match=r"Line 1 of .*verdicts.jsonl is"):
      evaluation_run.run(request)


class Tags(html.parser.HTMLParser):
  """Opens and closes tags; keeps what is left open or closed wrongly."""

  EMPTY = frozenset({"meta", "rect", "br", "link"})

  def __init__(self):
    super().__init__()
    self.open: list[str] = []
    self.wrong: list[str] = []
    self.ids: list[str] = []
    self.links: list[str] = []

  def handle_starttag(self, tag, attrs):
    found = dict(attrs)
    if "id" in found:
      self.ids.append(found["id"])
    if tag == "a":
      self.links.append(found["href"])
    if tag not in self.EMPTY:
      self.open.append(tag)

  def handle_endtag(self, tag):
    if tag in self.EMPTY:
      return
    if not self.open or self.open.pop() != tag:
      self.wrong.append(tag)


@pytest.mark.parametrize("show_items", [False, True])
def test_the_page_is_whole(tmp_path, data, show_items):
  with fault_server(replies) as server:
    request = request_for(data, server.url, tmp_path / "out")
    evaluation_run.run(request, show_items=show_items)
  page = (tmp_path / "out" / "report.html").read_text()
  tags = Tags()
  tags.feed(page)
  assert not tags.open
  assert not tags.wrong
  assert len(tags.ids) == len(set(tags.ids))
  assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
  found = results_of(tmp_path / "out")
  assert f"{found['score']:.3f}" in page
  for name in ("HealthBench Professional", "some-model", "judge-model"):
    assert name in page
  for group in ("consult", "red_teaming", "specialty 3"):
    assert group in page
  assert found["settings"]["judge"]["prompt_sha256"] in page
  assert "is not the published file" in page


def test_a_published_template_grades_with_whole_points(tmp_path):
  """Conversation and `[7] criterion`, literally; braces mean nothing."""
  template = tmp_path / "grader.txt"
  template.write_text(
    "Grade it.\n<<conversation>>\n--\n<<rubric_item>>\n--\n"
    'Reply with JSON: {"explanation": "...", "criteria_met": false}\n'
  )
  digest = hashlib.sha256(template.read_bytes()).hexdigest()
  data = rows.write_rows(
    tmp_path / "rows.jsonl", [rows.healthbench("a", (7, -3))]
  )

  def reply(body):
    if "Grade it." in body["messages"][-1]["content"]:
      return '```json\n{"explanation": "Yes.", "criteria_met": true}\n```'
    return "Take {dose} <<rubric_item>>."

  with fault_server(reply) as server:
    config = settings(
      server.url,
      votes=1,
      template_path=str(template),
      template_sha256=digest,
      faithful=True,
    )
    request = request_for(
      data,
      server.url,
      tmp_path / "out",
      benchmark="healthbench_hard",
      config=config,
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
    asked = {
      body["messages"][0]["content"]
      for body in server.requests
      if "Grade it." in body["messages"][0]["content"]
    }
  conversation = (
    "user: Question a?\n\nassistant: Which one?\n\nuser: The {first} one.\n\n"
    "assistant: Take {dose} <<rubric_item>>."
  )
  for item in ("[7] Says 0 of a.", "[-3] Says 1 of a."):
    assert any(f"{conversation}\n--\n{item}\n--" in text for text in asked)
  found = results_of(tmp_path / "out")
  assert found["task_scores"] == {"a": pytest.approx(4 / 7)}
  told = found["settings"]["judge"]
  assert told["faithful"] is True
  assert told["prompt_sha256"] == digest
  assert found["judged_by"] == [f"judge-model [{told['template']}, faithful]"]


def test_a_judge_may_be_asked_for_yes_or_no(tmp_path):
  template = tmp_path / "grader.txt"
  template.write_text(
    "Answer:\n{response}\nCriterion:\n{criterion_description}\nYes or No?\n"
  )
  data = rows.write_rows(
    tmp_path / "rows.jsonl",
    [rows.profbench("a", weights=("Critical", "Minor"))],
  )

  def reply(body):
    text = body["messages"][-1]["content"]
    if "Yes or No?" not in text:
      return "A report."
    return "Yes" if "Has 0 of a." in text else "No."

  with fault_server(reply) as server:
    config = settings(server.url, template_path=str(template))
    request = request_for(
      data, server.url, tmp_path / "out", benchmark="profbench", config=config
    )
    assert evaluation_run.run(request) == evaluation_run.DONE
  assert results_of(tmp_path / "out")["score"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(
  ("flags", "code", "said"),
  [
    (["--judge=j"], 3, "The judge had no reply"),
    (["--judge=j", "--official_judge"], 2, "exclude each other"),
    (["--judge=j", "--greedy", "--temperature=0.5"], 2, "give one of them"),
    (["--judge=j", "--config.judge.vote=1"], 2, "no setting"),
    ([], 2, "name its model by --judge"),
  ],
)
def test_the_command_says_what_is_wrong_and_its_code(
  tmp_path, data, flags, code, said
):
  with fault_server(replies, Always("quota")) as server:
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        "varl_jax.evaluate",
        "--benchmark=healthbench_professional",
        f"--data={data}",
        f"--answers={answers_file(tmp_path)}",
        f"--judge_url={server.url}",
        "--config.endpoints.judge.api_key_env=",
        f"--workdir={tmp_path / 'out'}",
        *flags,
      ],
      capture_output=True,
      text=True,
      timeout=120,
    )
  assert done.returncode == code, done.stderr
  assert said in done.stderr
  assert "Traceback" not in done.stderr


def answers_file(folder):
  return rows.write_rows(
    folder / "saved.jsonl",
    [{"task_id": f"hbp-{i:04d}", "answer": "x"} for i in range(20)],
  )
