"""Rows read from files: shapes, places of errors, hashes, corrections."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks import rows
from varl_jax import benchmarks
from varl_jax.benchmarks import BenchmarkError, data, profbench
from varl_jax.roles import judge_template
from varl_jax.types import Message


def load(name, tmp_path, *made):
  return benchmarks.load(name, rows.write_rows(tmp_path / "rows.jsonl", made))


def test_healthbench_rows(tmp_path):
  [task] = load("healthbench_hard", tmp_path, rows.healthbench("a", (7, -2)))
  assert task.task_id == "a"
  assert [turn.role for turn in task.prompt] == ["user", "assistant", "user"]
  assert task.prompt[-1].content == "The {first} one."
  assert [(c.text, c.points) for c in task.criteria] == [
    ("Says 0 of a.", 7),
    ("Says 1 of a.", -2),
  ]
  assert task.groups == {"theme": ("one",)}
  assert rows.CANARY not in repr(task)


def test_whole_points_stay_whole_up_to_the_judge(tmp_path):
  """The published template shows points: `[7]`, never `[7.0]`."""
  [task] = load("healthbench", tmp_path, rows.healthbench("a", (7, -2.5)))
  path = tmp_path / "template.txt"
  path.write_text(
    "<<conversation>>\n\n<<rubric_item>>\nReply with criteria_met as JSON."
  )
  template = judge_template.load_template(str(path), faithful=True)
  answer = "An answer with {braces} and <<rubric_item>>."
  [message] = template.messages(task.prompt, answer, task.criteria[0])
  assert "[7] Says 0 of a." in message.content
  assert message.content.startswith(
    "user: Question a?\n\nassistant: Which one?\n\nuser: The {first} one.\n\n"
    f"assistant: {answer}\n\n"
  )
  [message] = template.messages(task.prompt, answer, task.criteria[1])
  assert "[-2.5] Says 1 of a." in message.content


@pytest.mark.parametrize("bare", [False, True])
def test_professional_rows_come_in_two_shapes(tmp_path, bare):
  row = rows.professional("a", bare=bare, specialty="a new specialty")
  [task] = load("healthbench_professional", tmp_path, row)
  assert task.prompt == (Message(role="user", content="Case a."),)
  assert task.groups == {
    "use_case": ("consult",),
    "type": ("good_faith",),
    "difficulty": ("typical",),
    "specialty": ("a new specialty",),
  }
  assert task.canary == rows.CANARY
  assert "A physician" not in repr(task)


def test_prbench_conversations_hold_references_before_their_turn(tmp_path):
  [task] = load("prbench_legal", tmp_path, rows.prbench("a", turns=3))
  assert [(t.role, t.content) for t in task.prompt] == [
    ("user", "Prompt 0."),
    ("assistant", "Response 0."),
    ("user", "Text 1.\n\nPrompt 1."),
    ("assistant", "Response 1."),
    ("user", "Prompt 2."),
  ]
  assert task.groups == {"field": ("Finance",), "topic": ("Taxes",)}


@pytest.mark.parametrize("weights", [("Critical", "Minor"), (4, 2)])
def test_profbench_weights_by_name_or_number(tmp_path, weights):
  [task] = load("profbench", tmp_path, rows.profbench(weights=weights))
  assert [c.points for c in task.criteria] == [4, 2]
  assert profbench.WEIGHTS == {
    "critical": 4,
    "major": 3,
    "minor": 2,
    "additional": 1,
  }


def test_profbench_names_what_it_cannot_give(tmp_path):
  row = rows.profbench() | {"filepaths": ["model.xlsx"]}
  [task] = load("profbench", tmp_path, row)
  assert task.attachments == ("model.xlsx",)


def test_medxpertqa_rows_come_in_two_shapes(tmp_path):
  plain = rows.medxpertqa("q", "C")
  [task] = load("medxpertqa", tmp_path, plain)
  [other] = load("medxpertqa", tmp_path, rows.medxpertqa("q", "C", listed=True))
  assert task == other
  [image] = load(
    "medxpertqa", tmp_path, rows.medxpertqa("MM-0", "E", images=["a.png"])
  )
  assert image.images == ("a.png",)
  assert image.groups["part"] == ("image",)
  assert task.groups["part"] == ("text",)


@pytest.mark.parametrize(
  ("name", "row", "match"),
  [
    ("healthbench", "{", r"rows.jsonl:1 is no JSON"),
    ("healthbench", "[1]", r"rows.jsonl:1 is no task of HealthBench: a row is"),
    ("healthbench", {"prompt_id": "a"}, "it has no 'rubrics'"),
    (
      "healthbench",
      rows.healthbench() | {"prompt": [{"role": "assistant", "content": "x"}]},
      "The last turn is the user's",
    ),
    (
      "healthbench",
      rows.healthbench("a", (True,)),
      "Points are a number, got True",
    ),
    ("healthbench", rows.healthbench("a", ("7",)), "Points are a number"),
    (
      "healthbench_professional",
      rows.professional() | {"id": ""},
      "'id' is no text",
    ),
    (
      "prbench",
      rows.prbench("a", [rows.prbench_item("x", "important")]),
      "of class 'important' has no 'important_weight'",
    ),
    ("profbench", rows.profbench(weights=("Huge", "Minor")), "'Huge' is none"),
    ("medxpertqa", rows.medxpertqa(label="K"), "label 'K' is none of"),
    ("medxpertqa", rows.medxpertqa(label=["A", "B"]), "one letter"),
    ("healthbench", "", "holds no tasks of HealthBench"),
  ],
)
def test_an_unusable_row_names_its_place(tmp_path, name, row, match):
  path = tmp_path / "rows.jsonl"
  path.write_text(row if isinstance(row, str) else json.dumps(row))
  with pytest.raises(BenchmarkError, match=match):
    benchmarks.load(name, path)


def test_an_id_that_occurs_twice_is_refused(tmp_path):
  with pytest.raises(BenchmarkError, match=r":2 .* 'a' occurs twice"):
    load("healthbench", tmp_path, rows.healthbench(), rows.healthbench())


@pytest.mark.parametrize(
  ("name", "page"),
  [
    ("healthbench_hard", "datasets/openai/healthbench "),
    ("healthbench_professional", "datasets/openai/healthbench-professional "),
    ("prbench_hard", "datasets/ScaleAI/PRBench "),
    ("profbench", "datasets/nvidia/ProfBench "),
    ("medxpertqa", "datasets/TsinghuaC3I/MedXpertQA "),
  ],
)
def test_a_missing_file_says_where_it_is_to_be_had(tmp_path, name, page):
  with pytest.raises(BenchmarkError, match=page):
    benchmarks.load(name, tmp_path / "nowhere.jsonl")


def test_an_unknown_benchmark_lists_the_known(tmp_path):
  with pytest.raises(BenchmarkError, match="choose healthbench, "):
    benchmarks.load("healthbanch", tmp_path)


def test_names_are_read_in_any_spelling(tmp_path):
  assert load("HealthBench Hard", tmp_path, rows.healthbench())
  assert load("MedXpertQA-Text", tmp_path, rows.medxpertqa())


def test_a_folder_is_searched_for_the_published_names(tmp_path):
  for name, task in (
    ("2025-05-07-06-14-12_oss_eval", "full"),
    ("hard_2025-05-08-21-00-10", "hard"),
    ("consensus_2025-05-09-20-00-46", "consensus"),
  ):
    rows.write_rows(tmp_path / f"{name}.jsonl", [rows.healthbench(task)])
  for name, task in (
    ("healthbench", "full"),
    ("healthbench_hard", "hard"),
    ("healthbench_consensus", "consensus"),
  ):
    [found] = benchmarks.load(name, tmp_path)
    assert found.task_id == task


def test_the_two_halves_of_prbench_hard_are_read_together(tmp_path):
  for name in ("finance", "finance_hard", "legal", "legal_hard"):
    rows.write_rows(tmp_path / "data" / f"{name}.jsonl", [rows.prbench(name)])
  names = {
    name: [task.task_id for task in benchmarks.load(name, tmp_path)]
    for name in ("prbench", "prbench_hard", "prbench_finance_hard")
  }
  assert names == {
    "prbench": ["finance", "legal"],
    "prbench_hard": ["finance_hard", "legal_hard"],
    "prbench_finance_hard": ["finance_hard"],
  }


@pytest.mark.parametrize(
  ("text", "image"),
  [
    ("Text/test.jsonl", "MM/test.jsonl"),
    ("medxpertqa_text_input.jsonl", "medxpertqa_mm_input.jsonl"),
  ],
)
def test_both_parts_of_medxpertqa_are_found(tmp_path, text, image):
  rows.write_rows(tmp_path / text, [rows.medxpertqa("Text-0")])
  rows.write_rows(tmp_path / image, [rows.medxpertqa("MM-0", images=["a.png"])])
  found = {
    name: [task.task_id for task in benchmarks.load(name, tmp_path)]
    for name in ("medxpertqa", "medxpertqa_text", "medxpertqa_image")
  }
  assert found == {
    "medxpertqa": ["Text-0", "MM-0"],
    "medxpertqa_text": ["Text-0"],
    "medxpertqa_image": ["MM-0"],
  }


def test_parquet_files_are_read_as_published(tmp_path):
  made = [rows.prbench("a"), rows.prbench("b", turns=1)]
  path = tmp_path / "finance_hard-00000-of-00001.parquet"
  pq.write_table(pa.Table.from_pylist(made), path)
  plain = load("prbench_finance_hard", tmp_path / "plain", *made)
  assert benchmarks.load("prbench_finance_hard", path) == plain


def test_an_unclear_folder_asks_for_the_file(tmp_path):
  for name in ("hard_1", "hard_2"):
    rows.write_rows(tmp_path / f"{name}.jsonl", [rows.healthbench()])
  with pytest.raises(BenchmarkError, match=r"2 files .*hard_1.jsonl, hard_2"):
    benchmarks.load("healthbench_hard", tmp_path)


def test_hashes_are_checked_and_compared(tmp_path):
  path = rows.write_rows(tmp_path / "rows.jsonl", [rows.professional()])
  found = hashlib.sha256(path.read_bytes()).hexdigest()
  name = "healthbench_professional"
  assert benchmarks.load(name, path, sha256=found.upper())
  with pytest.raises(BenchmarkError, match=f"sha256 {found}, not 12"):
    benchmarks.load(name, path, sha256="12")
  benchmark = benchmarks.find(name)
  assert data.check_file(benchmark, path).pinned is False
  assert benchmark.sha256[".jsonl"].startswith("d44b08e6e952e04c")
  other = benchmarks.find("healthbench")
  assert data.check_file(other, path).pinned is None


def test_a_pointer_of_git_lfs_is_no_data(tmp_path):
  path = tmp_path / "rows.jsonl"
  path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\n")
  with pytest.raises(BenchmarkError, match="pointer of Git LFS"):
    benchmarks.load("healthbench", path)


def test_errata_lie_over_the_data(tmp_path):
  path = rows.write_rows(
    tmp_path / "rows.jsonl",
    [rows.professional("a"), rows.professional("b"), rows.professional("c")],
  )
  errata = rows.write_rows(
    tmp_path / "errata.jsonl",
    [
      {"task_id": "a", "criterion": 1, "points": 5},
      {"task_id": "a", "criterion": 0, "text": "Better."},
      {"task_id": "b", "leave_out": True},
    ],
  )
  name = "healthbench_professional"
  first, last = benchmarks.load(name, path, errata=errata)
  assert [(c.text, c.points) for c in first.criteria] == [
    ("Better.", 7),
    ("States fact 1 of a.", 5),
  ]
  assert last.task_id == "c"
  assert benchmarks.load(name, path)[0].criteria[1].points == -5


@pytest.mark.parametrize(
  "row",
  [
    {"task_id": "z", "criterion": 0, "points": 5},
    {"task_id": "a", "criterion": 9, "points": 5},
    {"task_id": "a", "criterion": 0},
    {"task_id": "a", "criterion": 0, "weight": 5},
    {"task_id": "a", "criterion": 0, "points": "5"},
  ],
)
def test_errata_of_nothing_are_refused(tmp_path, row):
  path = rows.write_rows(tmp_path / "rows.jsonl", [rows.professional("a")])
  errata = rows.write_rows(tmp_path / "errata.jsonl", [row])
  with pytest.raises(BenchmarkError, match=r"errata.jsonl:1 corrects nothing"):
    benchmarks.load("healthbench_professional", path, errata=errata)


MODULE = """
from varl_jax.benchmarks.protocol import Benchmark, BenchmarkTask, criterion
from varl_jax.types import Message

BENCHMARK = Benchmark(
  name="mine",
  title="Mine",
  to_task=lambda row, source: BenchmarkTask(
    task_id=row["n"],
    prompt=(Message(role="user", content=row["q"]),),
    criteria=(criterion("Is good.", 2),),
  ),
)
"""


def test_a_benchmark_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / "own_benchmark.py").write_text(MODULE)
  path = rows.write_rows(tmp_path / "rows.jsonl", [{"n": "1", "q": "?"}])
  [task] = benchmarks.load(str(tmp_path / "own_benchmark.py"), path)
  assert task.criteria[0].points == 2
  monkeypatch.syspath_prepend(str(tmp_path))
  assert benchmarks.find("own_benchmark:BENCHMARK").title == "Mine"
  with pytest.raises(BenchmarkError, match="no benchmark OTHER"):
    benchmarks.find("own_benchmark:OTHER")
  with pytest.raises(BenchmarkError, match="cannot be imported"):
    benchmarks.find("no.such_module")
