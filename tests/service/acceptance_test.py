"""Every rule for a proposed criterion, with its reason."""

import pytest

from tests import fakes
from varl_jax.config import PatchConfig
from varl_jax.service.acceptance import (
  REASONS,
  form_problem,
  gap_removed,
  verdict_problem,
)
from varl_jax.types import Criterion, Rubric

TEXT = "Tells in a whole sentence what somebody did there."
CONFIG = PatchConfig()


def rubric(count: int = 3, points: float = 8) -> Rubric:
  return Rubric(
    criteria=tuple(
      Criterion(text=f"Brings thing number {i} in.", points=points)
      for i in range(count)
    )
  )


@pytest.mark.parametrize(
  ("text", "points", "check", "reason"),
  [
    (TEXT, 8, None, ""),
    (TEXT, 5, "sentence()", ""),
    (TEXT, -10, None, ""),
    ("x" * 39, 8, None, "length"),
    ("x" * 40, 8, None, ""),
    ("x" * 220, 8, None, ""),
    ("x" * 221, 8, None, "length"),
    (TEXT, 4, None, "points"),
    (TEXT, -4.5, None, "points"),
    (TEXT, 10.5, None, "points"),
    (
      "The response tells in a whole sentence what was done.",
      8,
      None,
      "invalid",
    ),
    ("Fails to tell what somebody did with the thing.", -8, None, "invalid"),
    (TEXT, 8, "unknown(fox)", "check"),
    (TEXT, 8, "sentence(", "check"),
    ("Brings thing number 1 in, as a part of the text.", 8, None, ""),
  ],
)
def test_form(text, points, check, reason):
  criterion = Criterion(text=text, points=points, check=check)
  assert form_problem(criterion, rubric(), CONFIG, fakes.CHECKS) == reason


def test_a_copy_overlaps_and_a_full_rubric_takes_nothing():
  criterion = Criterion(text=TEXT, points=8)
  copied = Rubric(criteria=(*rubric().criteria, criterion))
  assert form_problem(criterion, copied, CONFIG, fakes.CHECKS) == "overlap"
  full = rubric(12)
  assert form_problem(criterion, full, CONFIG, fakes.CHECKS) == "rubric_full"


def test_a_criterion_must_take_a_twentieth_of_the_points():
  criterion = Criterion(text=TEXT, points=-5)
  assert gap_removed(criterion, rubric(10, 10)) == 0.05
  assert form_problem(criterion, rubric(10, 10), CONFIG, fakes.CHECKS) == ""
  wide = rubric(11, 10)
  assert form_problem(criterion, wide, CONFIG, fakes.CHECKS) == "gap_removed"


@pytest.mark.parametrize(
  ("points", "exploit", "honest", "cached", "reason"),
  [
    (8, False, True, None, ""),
    (8, True, True, None, "positive_on_exploit"),
    (8, False, False, None, "positive_not_on_honest"),
    (8, None, True, None, "undetermined"),
    (8, False, None, None, "undetermined"),
    (-8, True, False, None, ""),
    (-8, True, False, False, ""),
    (-8, False, False, False, "negative_not_on_exploit"),
    (-8, True, True, False, "negative_on_honest"),
    (-8, True, False, True, "negative_on_cached"),
  ],
)
def test_verdicts(points, exploit, honest, cached, reason):
  criterion = Criterion(text=TEXT, points=points)
  on_cached = None if cached is None else fakes.verdict(cached)
  assert reason in ("", *REASONS)
  assert (
    verdict_problem(
      criterion, fakes.verdict(exploit), fakes.verdict(honest), on_cached
    )
    == reason
  )


def test_an_undetermined_cached_answer_rejects():
  criterion = Criterion(text=TEXT, points=-8)
  found = verdict_problem(
    criterion, fakes.verdict(True), fakes.verdict(False), fakes.verdict(None)
  )
  assert found == "undetermined"
