import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax import types
from varl_jax.config import MemoConfig
from varl_jax.service import memo
from varl_jax.service.memo import MemoState, Observation

CONFIG = MemoConfig()


def _seen(margin, honest):
  return Observation(margin=margin, honest=honest)


def _measure(state, *pairs):
  for margin, honest in pairs:
    state = memo.observe(state, state.current, _seen(margin, honest), CONFIG)
  return state


def _first(margin=0.4, honest=0.5):
  state = _measure(MemoState(), (margin, honest), (margin, honest))
  state, decision = memo.decide(state, CONFIG)
  assert decision == "commit"
  return state


@pytest.mark.parametrize(
  ("margin", "honest", "expected"),
  [
    (0.4, 0.5, 0.4),
    (-0.3, 0.5, 0.0),
    (0.4, 0.52, 0.4),
    (0.4, 0.62, 0.6),  # 0.1 beyond the tolerance, twice
    (0.4, 0.1, 0.4),
  ],
)
def test_objective(margin, honest, expected):
  got = memo.memo_objective(margin, honest, 0.5)
  assert got == pytest.approx(expected)


def test_two_observations_before_a_decision():
  state = _measure(MemoState(), (0.4, 0.5))
  assert memo.decide(state, CONFIG) == (state, "wait")
  assert state.honest_baseline is None
  assert not memo.may_rewrite(state, CONFIG)
  state = _measure(state, (0.2, 0.7))
  assert state.honest_baseline == pytest.approx(0.6)
  assert memo.version_objective(state, 0, CONFIG) == pytest.approx(0.3)
  state, decision = memo.decide(state, CONFIG)
  assert decision == "commit"
  assert memo.decide(state, CONFIG) == (state, "settled")
  assert memo.may_rewrite(state, CONFIG)


def test_a_better_version_is_kept():
  state = memo.propose(_first(), "Ask for numbers.", CONFIG)
  assert state.text == "Ask for numbers."
  assert not memo.may_rewrite(state, CONFIG)
  state, decision = memo.decide(_measure(state, (0.1, 0.5), (0.2, 0.5)), CONFIG)
  assert (decision, state.current) == ("commit", 1)


def test_a_slightly_worse_version_is_kept_and_a_worse_one_rolled_back():
  state = memo.propose(_first(), "Version one.", CONFIG)
  within, decision = memo.decide(
    _measure(state, (0.42, 0.5), (0.42, 0.5)), CONFIG
  )
  assert (decision, within.current) == ("commit", 1)
  beyond, decision = memo.decide(
    _measure(state, (0.43, 0.5), (0.43, 0.5)), CONFIG
  )
  assert (decision, beyond.current) == ("rollback", 0)
  assert beyond.versions[1].status == "rolled_back"
  assert beyond.text == ""
  assert memo.may_rewrite(beyond, CONFIG)


def test_rollback_goes_to_the_best_version_not_the_last():
  state = memo.propose(_first(0.10), "One.", CONFIG)
  state, _ = memo.decide(_measure(state, (0.12, 0.5), (0.12, 0.5)), CONFIG)
  state = memo.propose(state, "Two.", CONFIG)
  state, decision = memo.decide(
    _measure(state, (0.13, 0.5), (0.13, 0.5)), CONFIG
  )
  # 0.13 is near the last version's 0.12 but beyond the best one's 0.10.
  assert (decision, state.current) == ("rollback", 0)
  state = memo.propose(state, "Three.", CONFIG)
  assert state.current == 3
  # The rolled-back version is never returned to.
  state, decision = memo.decide(_measure(state, (0.9, 0.5), (0.9, 0.5)), CONFIG)
  assert (decision, state.current) == ("rollback", 0)


def test_easier_rubrics_do_not_win_in_small_steps():
  state = _first(0.10, 0.50)
  for number in range(1, 6):
    state = memo.propose(state, f"Version {number}.", CONFIG)
    honest = 0.50 + 0.015 * number
    state, _ = memo.decide(
      _measure(state, (0.10, honest), (0.10, honest)), CONFIG
    )
    assert state.honest_baseline == 0.50
  # Each step is inside the tolerance; only those near the first stay.
  assert [v.status for v in state.versions] == [
    "kept", "kept", "kept", "rolled_back", "rolled_back", "rolled_back",
  ]  # fmt: skip


def test_over_restricting_is_flagged_and_not_tightened():
  state = memo.propose(_first(), "Only exact doses.", CONFIG)
  state, decision = memo.decide(_measure(state, (0.0, 0.2), (0.0, 0.2)), CONFIG)
  assert decision == "commit"
  assert memo.over_restricting(state.versions[1], CONFIG)
  assert not memo.may_rewrite(state, CONFIG)
  # Later measurements can lift the flag.
  state = memo.observe(state, 1, _seen(0.0, 0.6), CONFIG)
  assert memo.may_rewrite(state, CONFIG)
  edge = _measure(MemoState(), (0.1, 0.25), (0.1, 0.25))
  assert not memo.over_restricting(edge.versions[0], CONFIG)


def test_late_observations_of_an_earlier_version_reach_it():
  state = memo.propose(_first(), "One.", CONFIG)
  state = memo.observe(state, 0, _seen(0.1, 0.9), CONFIG)
  assert len(state.versions[0].observations) == 3
  assert state.versions[1].observations == ()
  assert state.honest_baseline == 0.5


def test_proposals():
  state = _first()
  assert memo.propose(state, "", CONFIG) is state
  memo.propose(state, "x" * 2400, CONFIG)
  with pytest.raises(ValueError, match="2400"):
    memo.propose(state, "x" * 2401, CONFIG)


def test_bad_observations_are_refused():
  with pytest.raises(ValueError):
    memo.observe(MemoState(), 0, _seen(float("nan"), 0.5), CONFIG)


def test_history_and_state_are_plain_values():
  state = memo.propose(_first(), "One.", CONFIG)
  rows = memo.memo_history(state, CONFIG)
  assert [row["version"] for row in rows] == [0]
  assert rows[0]["objective"] == pytest.approx(0.4)
  json.dumps(rows, allow_nan=False)
  text = json.dumps(types.to_json(state), allow_nan=False)
  assert types.from_json(MemoState, json.loads(text)) == state


_MEANS = st.tuples(st.floats(-1, 1), st.floats(0, 1))


@given(st.lists(st.tuples(_MEANS, _MEANS), min_size=1, max_size=6))
def test_what_stays_in_use_is_never_much_worse_than_the_best(measurements):
  state = MemoState()
  for number, pairs in enumerate(measurements):
    state = memo.propose(state, f"{number}", CONFIG)
    state, _ = memo.decide(_measure(state, *pairs), CONFIG)
    kept = [
      memo.version_objective(state, v.number, CONFIG)
      for v in state.versions
      if v.status == "kept"
    ]
    current = memo.version_objective(state, state.current, CONFIG)
    assert current <= min(kept) + CONFIG.tolerance + 1e-6


def test_a_text_that_was_rolled_back_is_not_tried_again():
  state = memo.propose(memo.MemoState(), "Ask for numbers.", CONFIG)
  versions = (
    dataclasses.replace(state.versions[0], status="kept"),
    dataclasses.replace(state.versions[1], status="rolled_back"),
  )
  back = dataclasses.replace(state, versions=versions, current=0)
  assert memo.propose(back, "Ask for numbers.", CONFIG) == back
  assert memo.propose(back, "Ask for units.", CONFIG).current == 2


def test_a_number_that_orders_name_is_never_given_to_another_text():
  lost = {0: "", 1: "Lost one.", 2: "Lost two."}
  state = memo.propose(_first(), "New.", CONFIG, ordered=lost)
  assert [(v.number, v.text, v.status) for v in state.versions[1:]] == [
    (1, "Lost one.", "rewound"),
    (2, "Lost two.", "rewound"),
    (3, "New.", "open"),
  ]
  assert state.current == 3
  # A lost version has no part in any decision.
  measured, decision = memo.decide(
    _measure(state, (0.3, 0.5), (0.3, 0.5)), CONFIG
  )
  assert decision in ("commit", "rollback")
  assert measured.current in (0, 3)
  text = json.dumps(types.to_json(state), allow_nan=False)
  assert types.from_json(MemoState, json.loads(text)) == state


def test_the_same_text_gets_its_lost_number_back():
  lost = {1: "Lost one.", 2: "Lost two."}
  state = memo.propose(_first(), "Lost one.", CONFIG, ordered=lost)
  assert (state.current, state.versions[1].status) == (1, "open")
  skipped = memo.propose(_first(), "New.", CONFIG, ordered=lost)
  again = memo.propose(skipped, "Lost two.", CONFIG, ordered=lost)
  assert (again.current, again.versions[2].status) == (2, "open")
  assert len(again.versions) == 4
  # What is known and not lost is still not tried again.
  assert memo.propose(again, "New.", CONFIG, ordered=lost) is again
