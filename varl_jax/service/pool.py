"""The tasks that may be served, and the buffer of repaired ones.

Serving (spec section 5): repaired tasks first, but at most `replay_share` of a
batch; the rest are the tasks served least often, then least recently, then the
oldest. So new tasks come before known ones while there is room to generate, and
`capacity` decides how much a run reuses: at capacity nothing is generated until
a task is evicted. Those two orders and the cap are ours; the paper names only
replay first and the eviction rule.

The pool is a mirror of the event log: it changes only when an event is applied.
"""

import dataclasses
import statistics
from collections.abc import Collection, Sequence

from varl_jax.config import PoolConfig
from varl_jax.types import Task


@dataclasses.dataclass(kw_only=True)
class Entry:
  """A task in the pool.

  Attributes:
    task: with its current rubric.
    window: scores of the latest graded rollouts since the last reset.
    served: how often it was served.
    last: running number of its latest serving, 0 before it.
  """

  task: Task
  window: list[float] = dataclasses.field(default_factory=list)
  served: int = 0
  last: int = 0


def eviction_reason(window: Sequence[float], config: PoolConfig) -> str:
  """Why a task with these scores leaves the pool, "" while it stays.

  A task stays until `config.window` rollouts are graded. Then it leaves when
  its scores hardly differ (population variance below the floor) or their mean
  is outside the band.
  """
  if len(window) < config.window:
    return ""
  if statistics.pvariance(window) < config.variance_floor:
    return "constant"
  mean = statistics.fmean(window)
  if mean < config.mean_low:
    return "too_hard"
  return "too_easy" if mean > config.mean_high else ""


class Pool:
  """Tasks by id, in order of arrival, and the replay queue."""

  def __init__(self) -> None:
    self.entries: dict[str, Entry] = {}
    self.replay: list[str] = []
    self._servings = 0

  def __len__(self) -> int:
    return len(self.entries)

  def get(self, task_id: str) -> Task | None:
    """The task with its current rubric, None once it left."""
    entry = self.entries.get(task_id)
    return entry.task if entry else None

  def add(self, task: Task) -> None:
    """Takes in a new task."""
    self.entries[task.task_id] = Entry(task=task)

  def put_back(self, task: Task) -> None:
    """Takes a task into the replay queue with an empty window."""
    entry = self.entries.setdefault(task.task_id, Entry(task=task))
    entry.task = task
    entry.window = []
    self.requeue(task.task_id)

  def requeue(self, task_id: str) -> None:
    """Puts a known task into the replay queue, its window untouched."""
    if task_id in self.entries and task_id not in self.replay:
      self.replay.append(task_id)

  def evict(self, task_ids: Collection[str]) -> None:
    """Drops tasks; unknown ones are left alone."""
    for task_id in task_ids:
      self.entries.pop(task_id, None)
    self.replay = [name for name in self.replay if name in self.entries]

  def window_with(
    self, task_id: str, scores: Sequence[float], keep: int
  ) -> list[float]:
    """A task's window after these scores: the latest `keep`, or all of these.

    A group larger than the window counts whole: cutting it to its last few
    answers would only add noise.
    """
    entry = self.entries.get(task_id)
    before = entry.window if entry else []
    return [*before, *scores][-max(keep, len(scores)) :]

  def record(self, task_id: str, scores: Sequence[float], keep: int) -> None:
    """Adds scores to the window of a known task."""
    entry = self.entries.get(task_id)
    if entry is not None:
      entry.window = self.window_with(task_id, scores, keep)

  def choose(self, count: int, share: float) -> tuple[list[str], list[str]]:
    """Picks a batch without changing anything.

    Returns:
      Task ids from the replay queue (at most `int(share * count)`) and from
      the rest of the pool; together fewer than `count` when it runs short.
    """
    repaired = self.replay[: self.replay_quota(count, share)]
    queued = set(self.replay)
    rest = [name for name in self.entries if name not in queued]
    # `sorted` is stable, so equals stay in order of arrival.
    rest.sort(key=lambda n: (self.entries[n].served, self.entries[n].last))
    return repaired, rest[: count - len(repaired)]

  def replay_quota(self, count: int, share: float) -> int:
    """How many of a batch of `count` the replay queue fills now."""
    return min(len(self.replay), max(int(share * count), share > 0))

  def mark_served(self, task_ids: Sequence[str]) -> None:
    """Takes tasks off the replay queue and counts the serving."""
    taken = set(task_ids)
    self.replay = [name for name in self.replay if name not in taken]
    for task_id in task_ids:
      self._servings += 1
      entry = self.entries.get(task_id)
      if entry is not None:
        entry.served += 1
        entry.last = self._servings


def shortfall(
  pool: Pool, count: int, *, waiting: int, floor: int, config: PoolConfig
) -> int:
  """How many tasks to generate for a batch of `count`.

  Enough to fill the batch with tasks that were never served, as far as
  `capacity` has room; never so few that the batch or the floor is missed.

  Args:
    pool: the pool now.
    count: tasks of the batch.
    waiting: tasks already being generated or probed.
    floor: least number of tasks the pool may hold.
    config: capacity and replay share.
  """
  from_pool = count - pool.replay_quota(count, config.replay_share)
  fresh = sum(
    entry.served == 0
    for name, entry in pool.entries.items()
    if name not in pool.replay
  )
  available = len(pool) - len(pool.replay)
  wanted = min(from_pool - fresh, config.capacity - len(pool))
  needed = max(from_pool - available, floor - len(pool))
  return max(0, max(wanted, needed) - waiting)
