"""Serving order, eviction and refilling."""

import pytest

from tests import fakes
from varl_jax.config import PoolConfig
from varl_jax.service.pool import Pool, eviction_reason, shortfall

CONFIG = PoolConfig()


def pool_of(*names: str) -> Pool:
  pool = Pool()
  for name in names:
    pool.add(fakes.task(task_id=name))
  return pool


@pytest.mark.parametrize(
  ("window", "reason"),
  [
    ([], ""),
    ([0.0, 0.0, 0.0], ""),
    ([0.5, 0.5, 0.5, 0.5], "constant"),
    ([0.5, 0.5, 0.5, 0.53], ""),
    ([0.0, 0.0, 0.0, 0.1], "too_hard"),
    ([1.0, 1.0, 0.9, 0.7], "too_easy"),
    ([1.0, 0.92, 0.9, 0.7], ""),
    ([0.0, 0.0, 0.1, 0.1], ""),
  ],
)
def test_eviction_after_four_graded_rollouts(window, reason):
  assert eviction_reason(window, CONFIG) == reason


def test_repaired_tasks_come_first_but_fill_half_a_batch_at_most():
  pool = pool_of("a", "b", "c", "d", "e")
  for name in ("c", "d", "e"):
    pool.requeue(name)
  assert pool.choose(4, 0.5) == (["c", "d"], ["a", "b"])
  pool.mark_served(["c", "d", "a", "b"])
  assert pool.replay == ["e"]
  assert pool.choose(4, 0.5) == (["e"], ["c", "d", "a"])


def test_new_tasks_come_before_known_ones():
  pool = pool_of("a", "b")
  pool.mark_served(["b", "a"])
  pool.add(fakes.task(task_id="c"))
  assert pool.choose(2, 0.5) == ([], ["c", "b"])


def test_too_few_tasks_make_a_short_batch():
  pool = pool_of("a", "b")
  pool.requeue("b")
  assert pool.choose(3, 0.0) == ([], ["a"])


def test_putting_back_resets_the_window_and_takes_the_new_rubric():
  pool = pool_of("a")
  pool.record("a", [0.1, 0.2], 4)
  changed = fakes.task(task_id="a", patches=1)
  pool.put_back(changed)
  assert pool.get("a") == changed
  assert pool.entries["a"].window == []
  pool.evict(["a"])
  assert pool.get("a") is None and pool.replay == []
  pool.put_back(changed)
  assert pool.replay == ["a"] and len(pool) == 1


def test_the_window_holds_four_or_a_whole_group():
  pool = pool_of("a")
  pool.record("a", [0.1, 0.2, 0.3], 4)
  pool.record("a", [0.4, 0.5], 4)
  assert pool.entries["a"].window == [0.2, 0.3, 0.4, 0.5]
  assert pool.window_with("a", [0.0] * 8, 4) == [0.0] * 8
  assert pool.window_with("unknown", [1.0], 4) == [1.0]


@pytest.mark.parametrize(
  ("known", "served", "replay", "capacity", "floor", "waiting", "missing"),
  [
    (0, 0, 0, 256, 4, 0, 4),
    (0, 0, 0, 256, 4, 3, 1),
    (6, 6, 0, 256, 4, 0, 4),
    (6, 6, 2, 256, 4, 0, 2),
    (6, 2, 0, 256, 4, 0, 0),
    (8, 8, 0, 9, 4, 0, 1),
    (9, 9, 0, 9, 4, 0, 0),
    (2, 2, 0, 3, 3, 0, 2),
    (4, 0, 0, 256, 9, 0, 5),
  ],
)
def test_what_is_generated(
  known, served, replay, capacity, floor, waiting, missing
):
  names = [f"t{i}" for i in range(known)]
  pool = pool_of(*names)
  pool.mark_served(names[:served])
  for name in names[:replay]:
    pool.requeue(name)
  config = PoolConfig(capacity=capacity)
  found = shortfall(pool, 4, waiting=waiting, floor=floor, config=config)
  assert found == missing


def test_a_small_batch_still_replays():
  pool = Pool()
  pool.add(fakes.task())
  pool.requeue(fakes.task().task_id)
  assert pool.replay_quota(1, 0.5) == 1
  assert pool.replay_quota(1, 0.0) == 0
