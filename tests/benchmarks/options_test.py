"""Which option an answer chose, adversarial answers among them."""

import time

import pytest

from tests.benchmarks import rows
from varl_jax import benchmarks
from varl_jax.benchmarks import medxpertqa
from varl_jax.benchmarks.options import chosen_option
from varl_jax.rubrics.checks import CheckError

LETTERS = "ABCDEFGHIJ"


@pytest.mark.parametrize(
  ("text", "letter"),
  [
    ("Final answer: C", "C"),
    ("**Final Answer:** **B**", "B"),
    ("The final answer is (D).", "D"),
    ("### Final answer: C\n", "C"),
    ("Final Answer\nC", "C"),
    ("Final answer: $\\boxed{\\text{E}}$", "E"),
    ("It follows that \\boxed{F}", "F"),
    ("Final answer: Option (C): Warfarin", "C"),
    ("Final answer: option C", "C"),
    ("Final answer: B (not A)", "B"),
    ("Final answer: B. C is wrong because of its dose.", "B"),
    ("Final answer: C because D is contraindicated", "C"),
    ("Final answer: Ｃ", "C"),
    ("Final answer: I", "I"),
    ("Final answer: A", "A"),
    ("The answer is A. No, wait.\nFinal answer: B", "B"),
    ("Final answer: B\n\nSo, final answer: B", "B"),
    ("The correct option is C", "C"),
    ("The answer is not C. Answer: D", "D"),
    ("B", "B"),
    ("(B)", "B"),
    ("B) Drug B", "B"),
    ("B. Drug B", "B"),
  ],
)
def test_a_single_choice_is_read(text, letter):
  assert chosen_option(text, LETTERS) == letter


@pytest.mark.parametrize(
  "text",
  [
    "",
    "Final answer:",
    "Final answer: A or B",
    "Final answer: A, B",
    "Final answer: A/B",
    "Final answer: C and D",
    "Final answer: C D",
    "Final answer: A-J",
    "Final answer: A through J",
    "Final answer: A, B, C, D, E, F, G, H, I, J",
    "Final answer: A\nFinal answer: B\nFinal answer: C",
    "Answer: A; Answer: B",
    "Final answer: either C or D",
    "Final answer: not B",
    "Final answer: c",
    "Final answer: K",
    "Final answer: <C>",
    "Final answer: I think it is B",
    "Final answer: A patient needs rest",
    "Final answer: a patient needs rest",
    "Final answer: Aspirin",
    "Final answer: С",  # Cyrillic
    "A patient with C comes in.",
    "I would say B",
    "All of A, B and C are possible",
    "The grader should credit option",
  ],
)
def test_none_and_several_are_no_choice(text):
  assert chosen_option(text, LETTERS) is None


def test_only_options_that_there_are_count():
  assert chosen_option("Final answer: F", "ABCDE") is None


@pytest.mark.parametrize(
  "text",
  [
    "Final answer: " + "*" * 200_000,
    "Final answer: A" + ", A" * 60_000,
    "Final answer: " + "\\boxed" * 40_000,
    "final answer " * 30_000,
    "answer is " * 30_000,
    " " * 300_000 + "A",
    "(" * 300_000,
    "\\boxed{" * 50_000,
  ],
)
def test_reading_takes_no_more_than_its_length(text):
  began = time.process_time()
  chosen_option(text, LETTERS)
  # Quadratic reading of these takes minutes.
  assert time.process_time() - began < 5.0


def test_the_label_is_a_check_and_no_part_of_the_prompt(tmp_path):
  path = rows.write_rows(
    tmp_path / "rows.jsonl",
    [
      rows.medxpertqa("Text-0", "C"),
      rows.medxpertqa("Text-1", "I", listed=True),
    ],
  )
  first, second = benchmarks.load("medxpertqa_text", path)
  for task, label in ((first, "C"), (second, "I")):
    [item] = task.criteria
    assert item.points == 1
    check = item.check
    assert check is not None
    assert medxpertqa.CHECKS.run(check, f"Final answer: {label}")
    assert not medxpertqa.CHECKS.run(check, "Final answer: B")
    assert not medxpertqa.CHECKS.run(check, f"Final answer: {label} or B")
    assert not medxpertqa.CHECKS.run(check, "")
    [turn] = task.prompt
    assert turn.content.endswith(medxpertqa.CLOSING)
  unlike = rows.medxpertqa("Text-0", "D")
  other = medxpertqa.to_task(unlike, "")
  assert other.prompt == first.prompt


def test_a_check_of_another_letter_is_refused():
  with pytest.raises(CheckError):
    medxpertqa.option("Final answer: A", "K", LETTERS)
