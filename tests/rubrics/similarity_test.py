import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.rubrics.similarity import trigram_overlap, trigrams

BASE = "Names the brass key that opens the cellar door"


def test_trigrams_of_a_word():
  assert trigrams("Key!") == {" ke", "key", "ey "}


def test_a_hand_computed_overlap():
  # " ke" "key" "ey " against " ke" "key" "eys" "ys "
  assert trigram_overlap("key", "keys") == pytest.approx(2 / 5)


def test_copies_are_caught_and_other_criteria_pass():
  assert trigram_overlap(BASE, BASE.upper() + "...") == 1.0
  assert trigram_overlap(BASE, BASE.replace("that", "which")) > 0.6
  other = "States the dose of metformin in milligrams a day"
  assert trigram_overlap(BASE, other) < 0.2
  assert trigram_overlap("", "") == trigram_overlap(BASE, "!!") == 0.0


@given(st.text(max_size=60), st.text(max_size=60))
def test_symmetric_and_bounded(a, b):
  overlap = trigram_overlap(a, b)
  assert 0 <= overlap <= 1
  assert overlap == trigram_overlap(b, a)
  assert trigram_overlap(a, a) in (0.0, 1.0)
