"""Trust in the referee, worked out by hand."""

import pytest

from varl_jax.service.referee_stats import Ranked, referee_metrics
from varl_jax.service.step_metrics import exploit_metrics


def test_a_worked_example():
  ranked = Ranked(
    scores=(0.9, 0.5, None, 0.5),
    lengths=(10, 20, 5, 10),
    tiers=((1,), (0, 3), (2,)),
    order=(3, 1, 0, 2),
    reversed_tiers=((1,), (0,), (3,), (2,)),
  )
  found = referee_metrics([ranked], refereed=2, failures=1)
  # Pairs in different tiers: 1>0, 1>3, 1>2, 0>2, 3>2; only 1>0 is decisive,
  # since 1 and 3 score alike and 2 has no score.
  assert found["referee/decisive_pairs"] == 1
  assert found["referee/concordance"] == 0.0
  assert found["referee/discordance"] == 1.0
  # Shown order 3, 1, 0, 2: all but 1>3 have the better one first.
  assert found["referee/first_preferred"] == pytest.approx(4 / 5)
  # Longer preferred: 1>0, 1>3, 1>2, 0>2, 3>2.
  assert found["referee/longer_preferred"] == 1.0
  # Reversed, only the pair (0, 3) changed its relation, of six.
  assert found["referee/unstable_pairs"] == pytest.approx(1 / 6)
  assert found["referee/usable"] == 0.5
  assert found["referee/failures"] == 1
  assert found["referee/abstentions"] == 0.0


def test_nothing_measured_is_left_out():
  assert referee_metrics([], refereed=0, failures=0) == {
    "referee/groups": 0,
    "referee/failures": 0,
    "referee/decisive_pairs": 0,
  }


def test_skipped_groups_are_told_where_groups_may_be_skipped():
  for skipped in (0, 3):
    found = referee_metrics([], refereed=1, failures=0, skipped=skipped)
    assert found["referee/skipped"] == skipped


def test_the_rate_of_cases_says_what_it_is_a_share_of():
  whole = exploit_metrics([], refereed=4, queued=0)
  assert whole["exploit/rate"] == 0
  part = exploit_metrics([], refereed=4, queued=0, skipped=12)
  assert part["exploit/rate_of_refereed"] == 0
  assert "exploit/rate" not in part


def test_one_tier_is_an_abstention():
  ranked = Ranked(
    scores=(0.9, 0.5), lengths=(1, 2), tiers=((0, 1),), order=(1, 0)
  )
  found = referee_metrics([ranked], refereed=1, failures=0)
  assert found["referee/abstentions"] == 1.0
  assert "referee/concordance" not in found
