import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service import probe
from varl_jax.service.probe import Probe
from varl_jax.types import Criterion, Rubric


@pytest.mark.parametrize(
  ("exploit", "honest", "outcome"),
  [
    (0.3, 0.4, "exploitable"),
    (0.1, 0.93, "saturated"),
    (-0.2, 0.14, "unsatisfiable"),
    (0.3, 0.5, "pass"),  # 0.3 - 0.5 is -0.2 but for rounding
    (0.3001, 0.5, "exploitable"),
    (-0.5, 0.15, "pass"),
    (0.1, 0.92, "pass"),
    (1.2, 0.95, "saturated"),  # the band comes before the margin
    (0.4, 0.1, "unsatisfiable"),
    (None, 0.5, "unusable"),
    (0.5, None, "unusable"),
    (math.nan, 0.5, "unusable"),
  ],
)
def test_outcomes(exploit, honest, outcome):
  assert probe.probe_outcome(exploit, honest) == outcome


def test_an_adversary_that_earned_nothing_is_discarded_first():
  for honest in (0.05, 0.5, 0.99):
    got = probe.probe_outcome(-0.4, honest, exploit_met_positive=False)
    assert got == "discarded"
  assert (
    probe.probe_outcome(None, 0.5, exploit_met_positive=False) == "unusable"
  )


def test_settings_are_used():
  assert probe.probe_outcome(0.3, 0.4, margin=0.1) == "pass"
  assert probe.probe_outcome(0.3, 0.8, honest_high=0.7) == "saturated"
  assert probe.probe_outcome(0.0, 0.3, honest_low=0.4) == "unsatisfiable"


def _probe(exploit, honest, **kwargs):
  return Probe(exploit_score=exploit, honest_score=honest, **kwargs)


BEFORE = _probe(0.9, 0.5)  # D = 0.4


@pytest.mark.parametrize(
  ("after", "accepted"),
  [
    (_probe(0.75, 0.5), True),  # D = 0.25, down by 0.15 exactly
    (_probe(0.76, 0.5), False),
    (_probe(0.1, 0.95), False),
    (_probe(-0.5, 0.1), False),
    (_probe(0.1, 0.5, exploit_met_positive=False), False),
    (_probe(None, 0.5), False),
  ],
)
def test_acceptance_of_a_rewrite(after, accepted):
  assert probe.rewrite_accepted(BEFORE, after) is accepted


def test_the_largest_drop_is_adopted():
  choose = probe.choose_rewrite
  assert choose(BEFORE, []) is None
  assert choose(BEFORE, [_probe(0.85, 0.5), _probe(0.8, 0.5)]) == 1
  assert choose(BEFORE, [_probe(0.8, 0.5), _probe(0.8, 0.5)]) == 0
  assert choose(BEFORE, [_probe(0.2, 0.95), _probe(0.85, 0.5)]) == 1
  assert choose(BEFORE, [_probe(0.95, 0.5), _probe(0.9, 0.5)]) is None
  nothing = _probe(-0.5, 0.5, exploit_met_positive=False)
  assert choose(BEFORE, [nothing]) is None
  assert choose(_probe(None, 0.5), [_probe(0.1, 0.5)]) is None


_SCORES = st.floats(-2, 1)


@given(st.lists(st.tuples(_SCORES, _SCORES), max_size=3))
def test_an_adopted_rewrite_lowers_the_lead(pairs):
  rounds = [_probe(*pair) for pair in pairs]
  index = probe.choose_rewrite(BEFORE, rounds)
  accepted = [probe.rewrite_accepted(BEFORE, after) for after in rounds]
  if index is None:
    assert not any(accepted)
  else:
    assert rounds[index].margin < BEFORE.margin
    assert accepted[index] or not any(accepted)


def _criterion(points, text="Names the brass key of the cellar"):
  return Criterion(text=text, points=points)


def test_salvage_clamps_drops_and_counts():
  rubric = Rubric(criteria=(_criterion(8),), version=2)
  got = probe.salvage(
    rubric,
    [
      _criterion(3),
      _criterion(-50),
      _criterion(0),
      _criterion(math.nan),
      _criterion(-2, "Does not name the key"),
      _criterion(7),
    ],
  )
  assert [c.points for c in got.criteria] == [5, -10, 7]
  assert {c.source for c in got.criteria} == {"admission"}
  assert got.version == 3


def test_salvage_trims_growth_and_keeps_a_positive():
  rubric = Rubric(criteria=(_criterion(8),))
  grown = probe.salvage(rubric, [_criterion(p) for p in (5, 6, 7, 8, 9, 10)])
  assert [c.points for c in grown.criteria] == [5, 6, 7, 8, 9]
  saved = probe.salvage(rubric, [_criterion(-6)] * 5 + [_criterion(9)])
  assert [c.points for c in saved.criteria] == [-6, -6, -6, -6, 9]
  assert rubric_problems(saved) == []
  assert probe.salvage(rubric, []).criteria == ()


def test_salvage_keeps_within_the_cap_of_patched_rubrics():
  base = _many(10)
  assert len(probe.salvage(base, _many(20).criteria).criteria) == 12


def test_salvage_keeps_few_positives_for_a_red_team_task():
  proposed = (
    *_many(3).criteria,
    Criterion(text="Names a dose that is ten times too high.", points=-8),
  )
  kept = probe.salvage(_many(1), proposed, max_positives=2).criteria
  assert [item.points > 0 for item in kept] == [True, True, False]


def _many(count):
  return Rubric(
    criteria=tuple(
      Criterion(text=f"States the value number {i} of the case.", points=6)
      for i in range(count)
    )
  )
