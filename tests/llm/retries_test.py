import email.utils
import random

import pytest

from varl_jax.llm.retries import Backoff, retry_after_s


def test_full_jitter_doubles_up_to_a_cap():
  backoff = Backoff(first_s=0.5, cap_s=3.0)
  assert [backoff.longest(n) for n in (1, 2, 3, 4, 5000)] == [0.5, 1, 2, 3, 3]
  rng = random.Random(0)
  drawn = [backoff.delay(3, rng) for _ in range(2000)]
  assert min(drawn) < 0.05 and 1.95 < max(drawn) <= 2.0
  assert sum(drawn) / len(drawn) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
  ("headers", "seconds"),
  [
    ({}, None),
    ({"Retry-After": "600"}, 600.0),
    ({"retry-after": " 1.5 "}, 1.5),
    ({"Retry-After": "600", "retry-after-ms": "250"}, 0.25),
    ({"Retry-After": "soon"}, None),
    ({"Retry-After": "-3"}, None),
    ({"Retry-After": "nan"}, None),
    ({"Retry-After": "1e12"}, 86400.0),
    ({"Retry-After": email.utils.formatdate(1030, usegmt=True)}, 30.0),
    ({"Retry-After": email.utils.formatdate(970, usegmt=True)}, 0.0),
  ],
)
def test_what_a_server_asks_for(headers, seconds):
  assert retry_after_s(headers, now=1000.0) == seconds
