"""Held-out tasks graded by a scripted judge, against hand-worked scores."""

import asyncio
import json

import pytest

from tests.benchmarks import rows
from varl_jax import benchmarks
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.judged_validation import JudgedValidator
from varl_jax.llm.chat import ChatError
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.types import Criterion, Message, Rubric, Task, to_json


def task(name, *items, **fields):
  return Task(
    task_id=name,
    prompt=(Message(role="user", content=f"Question {name}?"),),
    rubric=Rubric(
      criteria=tuple(Criterion(text=t, points=p) for t, p in items)
    ),
    **fields,
  )


TASKS = [
  task("a", ("red", 8), ("blue", 2), ("rude", -5), use_case="consult"),
  task("b", ("red", 4), use_case="basic medicine", red_team=True),
]


def judge(reading):
  """Met when the criterion's word is in the answer; no vote on `silence`."""
  if "silence" in reading.blocks["ANSWER"]:
    return "I would rather not say."
  met = reading.blocks["CRITERION"] in reading.blocks["ANSWER"]
  return json.dumps({"explanation": "Seen.", "criteria_met": met})


@pytest.fixture(name="path")
def tasks_file(tmp_path):
  path = tmp_path / "tasks.jsonl"
  lines = [json.dumps(to_json(t)) for t in TASKS]
  path.write_text("\n".join(lines) + "\n\n")
  return path


def validator(path, *, respond=judge, chat=None, **settings):
  config = from_config_dict(
    {
      "eval": {"tasks_path": str(path)},
      "judge": {"max_failure_rate": settings.pop("max_failure_rate", 1.0)},
      "reward": settings,
    }
  )
  model = chat or ScriptedChat(name="judge", responders={"judge": respond})
  return JudgedValidator(
    config, checks=CheckRegistry(), make_judge=lambda: model
  )


def scored(made, answers):
  try:
    return made.score(made.tasks, answers)
  finally:
    made.close()


def test_tasks_are_read_as_they_are(path):
  made = validator(path)
  assert [t.task_id for t in made.tasks] == [t.task_id for t in TASKS]
  assert [t.prompt for t in made.tasks] == [t.prompt for t in TASKS]
  assert [t.rubric for t in made.tasks] == [t.rubric for t in TASKS]


class Endless:
  """A judge behind a server that never comes back."""

  name = "judge"

  async def complete(self, request):
    await asyncio.Event().wait()


def test_a_run_that_is_to_stop_does_not_wait_for_the_judge(path):
  made = validator(path, chat=Endless())
  made.give_up_when(lambda: True)
  with pytest.raises(Stopped):
    scored(made, [["red"], ["red"]])


def test_the_length_term_is_two_sided_and_signed(path):
  """r is 0.8 and 1; of 1,000 and 3,000 characters one gains, one pays."""
  found = scored(
    validator(path), [["red".ljust(1000, ".")], ["red".ljust(3000, ".")]]
  )
  gain = 0.0147 * 1000 / 500
  assert found["eval/score"] == pytest.approx((0.8 + gain + 1.0 - gain) / 2)
  assert found["eval/use_case_consult"] == pytest.approx(0.8 + gain)
  assert found["eval/use_case_basic_medicine"] == pytest.approx(1.0 - gain)
  assert found["eval/red_team"] == pytest.approx(1.0 - gain)
  assert found["eval/good_faith"] == pytest.approx(0.8 + gain)
  assert found["eval/raw"] == pytest.approx(0.9)
  assert found["eval/missing"] == found["eval/undetermined"] == 0.0


def test_without_the_length_term_the_score_is_clipped_a_task(path):
  """r is -5/10 and 1: raw 0 and 1, their unclipped mean 0.25."""
  found = scored(validator(path, length_adjusted=False), [["rude"], ["red"]])
  assert found["eval/score"] == found["eval/raw"] == pytest.approx(0.5)
  assert found["eval/unclipped"] == pytest.approx(0.25)


def test_missing_and_empty_answers_count_nothing(path):
  """As a short answer, an empty one would earn 0.0588."""
  found = scored(validator(path), [[None], [None]])
  assert found["eval/score"] == found["eval/raw"] == 0.0
  assert found["eval/missing"] == 1.0
  empty = scored(validator(path), [[""], [None]])
  assert empty["eval/score"] == empty["eval/raw"] == 0.0
  assert empty["eval/missing"] == 1.0


def test_undetermined_answers_are_counted_and_left_out(path):
  found = scored(validator(path, length_adjusted=False), [["silence"], ["red"]])
  assert found["eval/score"] == 1.0
  assert found["eval/undetermined"] == 0.5
  assert found["eval/failure_rate"] == pytest.approx(9 / 12)
  assert "eval/use_case_consult" not in found


def test_nothing_graded_is_no_score(path):
  found = scored(validator(path), [["silence"], ["silence"]])
  assert "eval/score" not in found
  assert found["eval/undetermined"] == 1.0


def test_a_judge_that_fails_too_often_stops_the_run(path):
  with pytest.raises(ServiceFailure, match="75% of the judge's votes in valid"):
    scored(validator(path, max_failure_rate=0.7), [["silence"], ["red"]])


def test_a_judge_without_quota_stops_the_run(path):
  class Spent:
    name = "spent"

    async def complete(self, request):
      raise ChatError("quota", "Nothing is left.")

  with pytest.raises(ServiceFailure, match=r"no more use \(Nothing is left"):
    scored(validator(path, chat=Spent()), [["red"], ["red"]])


def test_several_answers_a_task(path):
  found = scored(
    validator(path, length_adjusted=False),
    [["red", "blue", "red blue"], ["red", "", None]],
  )
  assert found["eval/score"] == pytest.approx((0.8 + 0.2 + 1.0 + 1.0) / 6)
  assert found["eval/missing"] == pytest.approx(2 / 6)


def test_the_judge_is_asked_plainly_and_by_a_stable_name(path):
  seen = []

  class Recorder:
    name = "judge"

    async def complete(self, request):
      seen.append(request)
      return await ScriptedChat(
        name="judge", responders={"judge": judge}
      ).complete(request)

  for _ in range(2):
    scored(validator(path, chat=Recorder()), [["red"], ["blue"]])
  half = len(seen) // 2
  assert half == 12
  assert [r.operation for r in seen[:half]] == [
    r.operation for r in seen[half:]
  ]
  assert len({r.operation for r in seen}) == half
  assert not any("strictly" in r.messages[-1].content for r in seen)


@pytest.mark.parametrize(
  ("line", "match"),
  [
    ("{", "tasks.jsonl:1 is no JSON"),
    ("3", "tasks.jsonl:1 is no task"),
    ("{}", "Incomplete Task"),
    ('{"task_id": "a", "colour": 1}', "no field 'colour'"),
    (json.dumps(to_json(task("a"))), "without a positive"),
    (json.dumps(to_json(task("a", ("x", -3)))), "without a positive"),
    ("\n".join([json.dumps(to_json(TASKS[0]))] * 2), ":2 .* occurs twice"),
    (
      json.dumps(to_json(TASKS[0]) | {"prompt": []}),
      "no last turn by the user",
    ),
    ("", "holds no tasks"),
  ],
)
def test_an_unusable_file_names_the_line(tmp_path, line, match):
  path = tmp_path / "tasks.jsonl"
  path.write_text(line)
  with pytest.raises(ConfigError, match=match):
    validator(path)


def test_a_missing_file_names_the_setting(tmp_path):
  with pytest.raises(ConfigError, match=r"eval\.tasks_path .* no data of held"):
    validator(tmp_path / "nowhere.jsonl")


def test_a_benchmark_is_scored_as_the_evaluator_scores_it(tmp_path):
  """The same rows, verdicts and answers; HealthBench Professional's length."""
  path = rows.write_rows(
    tmp_path / "rows.jsonl", [rows.professional("a"), rows.professional("b")]
  )
  config = from_config_dict(
    {
      "eval": {
        "tasks_path": str(path),
        "benchmark": "healthbench_professional",
      },
      # Not the reward's length term: the benchmark has its own.
      "reward": {"length_adjusted": False},
    }
  )

  def respond(reading):
    met = "fact 0" in reading.blocks["CRITERION"]
    return json.dumps({"explanation": "Seen.", "criteria_met": met})

  model = ScriptedChat(name="judge", responders={"judge": respond})
  made = JudgedValidator(
    config, checks=CheckRegistry(), make_judge=lambda: model
  )
  found = scored(made, [["x" * 3000], [None]])
  loaded = benchmarks.load("healthbench_professional", path)
  wanted = benchmarks.score(
    "healthbench_professional",
    loaded,
    [[True, False], []],
    ["x" * 3000, None],
  )
  assert found["eval/score"] == wanted["score"]
  assert found["eval/raw"] == wanted["raw"]
  assert found["eval/use_case_consult"] == wanted["score"]
  assert found["eval/specialty_cardiology"] == wanted["score"]
  assert found["eval/good_faith"] == wanted["score"]
  assert found["eval/missing"] == 0.5


def test_options_are_read_by_a_program_in_validation_too(tmp_path):
  path = rows.write_rows(tmp_path / "rows.jsonl", [rows.medxpertqa("q", "C")])
  config = from_config_dict(
    {"eval": {"tasks_path": str(path), "benchmark": "medxpertqa_text"}}
  )
  silent = ScriptedChat(name="judge", responders={})
  made = JudgedValidator(
    config, checks=CheckRegistry(), make_judge=lambda: silent
  )
  found = scored(made, [["Final answer: C", "Final answer: A"]])
  assert found["eval/score"] == 0.5


def test_images_are_no_task_for_the_solver(tmp_path):
  row = rows.medxpertqa("q", "C", images=["a.png"])
  path = rows.write_rows(tmp_path / "rows.jsonl", [row])
  config = from_config_dict(
    {"eval": {"tasks_path": str(path), "benchmark": "medxpertqa"}}
  )
  with pytest.raises(ConfigError, match="tasks with images"):
    JudgedValidator(config, checks=CheckRegistry(), make_judge=lambda: None)


def test_an_unknown_benchmark_is_a_wrong_setting(path):
  config = from_config_dict(
    {"eval": {"tasks_path": str(path), "benchmark": "no_such"}}
  )
  with pytest.raises(ConfigError, match="no benchmark 'no_such'"):
    JudgedValidator(config, checks=CheckRegistry(), make_judge=lambda: None)
