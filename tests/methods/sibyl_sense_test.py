"""SibylSense as an arm: items that prove themselves lead the next rubrics."""

import pytest

from tests import fakes
from tests.methods.running import service, step
from varl_jax.methods import item_memory, sibyl_sense
from varl_jax.types import Criterion, Rubric


def config(**changed):
  return fakes.config(method__name="sibyl_sense", pool__capacity=60, **changed)


def rounds(made, count):
  """The graded groups and metrics of `count` steps."""
  return [step(made, number) for number in range(count)]


def items_of(text):
  return item_memory.read_memory(text)


def test_items_are_rewarded_against_the_policys_samples():
  rubric = Rubric(
    criteria=(
      Criterion(text="a", points=8, source="item_writer/substance"),
      Criterion(text="b", points=8, source="item_writer/reasoning"),
      Criterion(text="c", points=-6, source="item_writer/fault"),
      Criterion(text="d", points=8, source="generator"),
      Criterion(text="e", points=8, source="item_writer/delivery"),
    )
  )
  met = [
    [True, False, True, True, True],
    [True, None, True, True, True],
    [True, True, False, True, True],
    [False, False, False, True, True],
  ]
  found = sibyl_sense.scored_items(rubric, [True, True, False, True, None], met)
  # 1 - 3/4; 1 - 1/3, an undecided vote left out; 2/4 - 0.
  assert [(i.category, i.reward) for i in found] == [
    ("substance", pytest.approx(0.25)),
    ("reasoning", pytest.approx(2 / 3)),
    ("fault", pytest.approx(0.5)),
  ]


def test_the_memory_leads_the_next_rubrics(tmp_path):
  """Whole sentences tell the reference apart; lists of things do not."""
  with service(tmp_path / "s.sqlite", config()) as made:
    found = rounds(made, 8)
    versions = made.history().guidance

  def share(steps):
    rubrics = [g.task.rubric for graded, _ in steps for g in graded]
    asked = [
      any(c.check == "sentence()" for c in rubric.criteria)
      for rubric in rubrics
    ]
    return sum(asked) / len(asked)

  assert share(found[:2]) < share(found[4:])
  memory = items_of(versions[-1]["generator"])
  assert any("whole sentence" in item.text for item in memory)
  assert all(item.reward > 0 for item in memory)
  assert max(item.seen for item in memory) > 1


def test_a_round_ends_after_its_interval(tmp_path):
  with service(tmp_path / "s.sqlite", config(evolution__interval=3)) as made:
    versions = [m["guidance/version"] for _, m in rounds(made, 7)]
  assert versions == [0, 0, 1, 1, 1, 2, 2]


def test_a_run_that_is_opened_again_goes_on(tmp_path):
  with service(tmp_path / "a.sqlite", config()) as made:
    whole = rounds(made, 6)
  found = []
  for first in (0, 3):
    with service(tmp_path / "b.sqlite", config()) as made:
      found += [step(made, number) for number in range(first, first + 3)]
  assert found == whole


def test_a_rewound_run_forgets(tmp_path):
  with service(tmp_path / "s.sqlite", config()) as made:
    found = rounds(made, 3)
    number = made.event_number()
    after = [step(made, n) for n in (3, 4)]
    made.rewind(number)
    assert [step(made, n) for n in (3, 4)] == after
  assert found[-1][1]["guidance/version"] == 1


def test_what_is_shown_is_the_best_of_each_category():
  def item(category, reward, text):
    return item_memory.Item(
      category=category, text=text, points=8, check=None, reward=reward
    )

  memory = [item("delivery", 0.2, "Says\nso."), item("substance", 0.5, "A")]
  memory += [item("reasoning", 0.1 * n, f"R{n}") for n in range(1, 8)]
  shown = sibyl_sense.memory_block(memory).splitlines()
  assert shown[0] == "substance | +0.50 | A"
  assert shown[1:6] == [f"reasoning | +0.{n}0 | R{n}" for n in (7, 6, 5, 4, 3)]
  assert shown[6:] == ["delivery | +0.20 | Says so."]
