import collections
import dataclasses
import json
import random
import statistics

import pytest

from varl_jax import types
from varl_jax.rubrics import shape


def _run(tasks, deliver, *, seed=0, red_team=False):
  rng = random.Random(seed)
  state = shape.ShapeState()
  log = []
  for _ in range(tasks):
    asked = shape.request_shape(state, rng, red_team=red_team)
    got = deliver(asked, rng)
    state = shape.record_shape(state, asked, got, red_team=red_team)
    log.append((asked, got))
  return state, log


def test_an_obedient_generator_gets_the_stated_shares():
  _, log = _run(8000, lambda asked, rng: asked)
  counts = collections.Counter(asked.positives for asked, _ in log)
  for count, share in ((2, 0.15), (3, 0.70), (4, 0.15)):
    assert counts[count] / len(log) == pytest.approx(share, abs=0.02)
  negatives = sum(asked.negatives for asked, _ in log) / len(log)
  assert negatives == pytest.approx(0.75, abs=0.02)


def test_negatives_that_get_lost_are_asked_for_more_often():
  def forgetful(asked, rng):
    kept = asked.negatives and rng.random() < 0.8
    return shape.Shape(positives=asked.positives, negatives=int(kept))

  _, log = _run(3000, forgetful)
  tail = log[1000:]
  delivered = sum(got.negatives for _, got in tail) / len(tail)
  assert delivered == pytest.approx(0.75, abs=0.03)
  assert sum(a.negatives for a, _ in tail) / len(tail) > 0.9


def test_surplus_positives_are_asked_for_less():
  def eager(asked, rng):
    extra = int(rng.random() < 0.5)
    return shape.Shape(positives=asked.positives + extra, negatives=0)

  _, log = _run(3000, eager)
  tail = log[1000:]
  delivered = sum(got.positives for _, got in tail) / len(tail)
  assert delivered == pytest.approx(3.0, abs=0.06)
  assert {a.positives for a, _ in log} <= {2, 3, 4}


def test_red_team_tasks_ask_for_one_or_two():
  state, log = _run(400, lambda asked, rng: asked, red_team=True)
  assert {a.positives for a, _ in log} == {1, 2}
  assert {a.negatives for a, _ in log} == {1}
  assert state.positives == () and len(state.negatives) == 400


@pytest.mark.parametrize("kept", [1.0, 0.9])
def test_traps_leave_the_share_of_negatives_over_all_tasks(kept):
  """One task in five is a trap and has its negative, obedient or not."""
  rng = random.Random(0)
  state, delivered, others = shape.ShapeState(), [], []
  for number in range(6000):
    trap = number % 5 == 0
    asked = shape.request_shape(state, rng, red_team=trap)
    got = dataclasses.replace(
      asked, negatives=int(asked.negatives and rng.random() < kept)
    )
    state = shape.record_shape(state, asked, got, red_team=trap)
    if number >= 1000:
      delivered.append(got.negatives)
      others += [] if trap else [got.negatives]
  assert statistics.fmean(delivered) == pytest.approx(0.75, abs=0.02)
  rest = (0.75 - 0.2 * kept) / 0.8
  assert statistics.fmean(others) == pytest.approx(rest, abs=0.025)


def test_the_window_forgets_and_rates_stay_in_range():
  control = shape.Controller(target=0.75, low=0.0, high=1.0, window=3, prior=0)
  assert control.requested(()) == 0.75
  assert control.requested(((1.0, 0.0),) * 3) == 1.0
  assert control.requested(((0.0, 1.0),) * 3) == 0.0
  history = ()
  for got in (0, 1, 1, 1):
    history = control.remember(history, 1, got)
  assert history == ((1.0, 1.0),) * 3
  assert control.requested(history) == 0.75


def test_same_seed_same_requests_and_state_survives_json():
  first, log = _run(50, lambda asked, rng: asked, seed=3)
  second, again = _run(50, lambda asked, rng: asked, seed=3)
  assert log == again
  text = json.dumps(types.to_json(first))
  assert types.from_json(shape.ShapeState, json.loads(text)) == second


@pytest.mark.parametrize(
  ("positives", "negatives"), [(2.0, 0.0), (4.0, 1 / 3), (2.5, 0.75)]
)
def test_ablations_move_what_is_steered_for(positives, negatives):
  targets = shape.Targets(positives=positives, negatives=negatives)
  state, rng = shape.ShapeState(), random.Random(3)
  made = []
  for _ in range(2000):
    drawn = shape.request_shape(state, rng, targets=targets)
    state = shape.record_shape(state, drawn, drawn, targets=targets)
    made.append(drawn)
  mean = sum(s.positives for s in made) / len(made)
  share = sum(s.negatives for s in made) / len(made)
  assert mean == pytest.approx(positives, abs=0.05)
  assert share == pytest.approx(negatives, abs=0.03)
