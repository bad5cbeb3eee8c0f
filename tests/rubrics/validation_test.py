import math

import pytest

from varl_jax.rubrics import validation
from varl_jax.types import Criterion, Rubric

GOOD = Criterion(text="Names the key that opens the cellar door", points=8)


def _negative(text):
  return Criterion(text=text, points=-6)


@pytest.mark.parametrize(
  "text",
  [
    "The response names the key",
    "the  answer names the key",
    "The model explains the plan",
    "\"The model's plan is sound",
    "- The response: states a dose",
    "1. The answer states a dose",
    "Award points for naming the key",
    "AWARD five points for the key",
    "Deduct two points for a wrong dose",
    "Penalise vague advice",
    "Penalize vague advice",
    "Score higher when a dose is stated",
    "Mark as met when a dose is stated",
  ],
)
def test_addressing_the_judge_is_refused(text):
  for points in (8, -8):
    problems = validation.criterion_problems(
      Criterion(text=text, points=points)
    )
    assert len(problems) == 1 and "addresses the judge" in problems[0]


@pytest.mark.parametrize(
  "text",
  [
    "Awards the medal to Mia at the end",
    "Scores of villagers come to help",
    "Marks the hidden door with chalk",
    "Marking the door, Mia finds her way back",
    "Names the award that the hero wins",
    "The modelling clay is used to copy the key",
    "The answers of the oracle come in threes",
    "States the score of the match",
  ],
)
def test_whole_words_at_the_start_only(text):
  assert validation.criterion_problems(Criterion(text=text, points=8)) == []


@pytest.mark.parametrize(
  "text",
  [
    "Does not mention the key",
    "Doesn\u2019t mention the key",
    "Do not state a dose",
    "Avoids the question of the dose",
    "Fails to state a dose",
    "FAILED TO state a dose",
    "Omits the warning about warfarin",
    "Lacks a unit",
    "Lacking a unit",
    "Never says who opened the door",
    "No mention of the key",
    "Without any dose",
    "Missing a unit",
    "Leaves out the ending",
    "Contains no ending",
    "Neglects the allergy",
    "It omits the ending",
    "The story does not use the rope",
    "The closing paragraph lacks a decision",
    "A dose is missing",
    "Mia does not use the rope",
    "* omits the ending",
  ],
)
def test_negatives_phrased_as_absences_are_refused(text):
  problems = validation.criterion_problems(_negative(text))
  assert len(problems) == 1 and "absence" in problems[0]
  # The same words as a positive are no absence rule's business.
  assert validation.criterion_problems(Criterion(text=text, points=6)) == []


@pytest.mark.parametrize(
  "text",
  [
    "Claims that the drug does not interact with warfarin",
    "States that no dose adjustment is needed",
    "Recommends avoiding heparin in every patient",
    "Advises the patient never to take aspirin",
    "Repeats the request without adding a decision",
    "Says the door lacks a lock although it is locked",
    "Noting nothing else, lists the objects one after another",
    "Invents a second key",
  ],
)
def test_false_claims_are_legitimate_mistakes(text):
  assert validation.criterion_problems(_negative(text)) == []


@pytest.mark.parametrize("points", [0, 10.5, -11, math.nan, math.inf, True])
def test_points_out_of_range(points):
  (problem,) = validation.criterion_problems(
    Criterion(text=GOOD.text, points=points)
  )
  assert problem.startswith("Points")


@pytest.mark.parametrize("points", [10, -10, 0.5, 5])
def test_points_in_range(points):
  criterion = Criterion(text=GOOD.text, points=points)
  assert validation.criterion_problems(criterion) == []


def test_number_of_criteria():
  def problems(count, **kwargs):
    return validation.rubric_problems(
      Rubric(criteria=(GOOD,) * count), **kwargs
    )

  assert problems(1) == problems(6) == []
  assert "1 to 6" in problems(7)[0]
  assert problems(7, patched=True) == problems(12, patched=True) == []
  assert "1 to 12" in problems(13, patched=True)[0]
  assert len(problems(0)) == 2


def test_a_positive_is_needed_and_problems_name_their_criterion():
  rubric = Rubric(criteria=(_negative("Invents a key"), _negative("   ")))
  assert validation.rubric_problems(rubric) == [
    "A rubric has at least one positive criterion.",
    "Criterion 2: The criterion has no text.",
  ]
