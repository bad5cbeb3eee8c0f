"""The queue between sampling and training under every order of events."""

import concurrent.futures
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
  RuleBasedStateMachine,
  initialize,
  invariant,
  precondition,
  rule,
)

from varl_jax.group_queue import GroupQueue, QueueClosed, QueueError

PATIENCE_S = 60.0  # a test that waits this long has found a deadlock


class Queue(RuleBasedStateMachine):
  """Any order of offers, grades, failures and takes, against a plain model."""

  @initialize(depth=st.integers(1, 4), staleness=st.integers(0, 3))
  def begin(self, depth, staleness):
    self.queue = GroupQueue(depth=depth, staleness=staleness)
    self.depth, self.staleness = depth, staleness
    self.inside = {}
    self.entered, self.left = [], []
    self.version = 0

  @rule(
    behind=st.lists(
      st.lists(st.integers(-2, 5), min_size=1, max_size=3), max_size=3
    )
  )
  def offer(self, behind):
    step = len(self.entered) + 1
    versions = [[self.version - age for age in group] for group in behind]
    groups = [f"{step}/{index}" for index in range(len(behind))]
    took = self.queue.offer(step, groups, versions)
    assert took == (len(self.inside) < self.depth)
    if took:
      self.entered.append(groups)
      self.inside[step] = {"groups": groups, "versions": versions}

  def ungraded(self):
    return [s for s, lot in self.inside.items() if "end" not in lot]

  @precondition(lambda self: self.ungraded())
  @rule(data=st.data(), fails=st.booleans())
  def grade(self, data, fails):
    step = data.draw(st.sampled_from(self.ungraded()))
    lot = self.inside[step]
    if fails:
      lot["end"] = OSError(f"step {step}")
      self.queue.fail(step, lot["end"])
    else:
      lot["end"] = [group + "!" for group in lot["groups"]]
      self.queue.grade(step, lot["end"])
    with pytest.raises(QueueError):
      self.queue.grade(step, lot["groups"])

  @rule()
  def update(self):
    self.version += 1

  @rule()
  def take(self):
    oldest = min(self.inside, default=None)
    if oldest is None or "end" not in self.inside[oldest]:
      with pytest.raises(TimeoutError):
        self.queue.take(version=self.version, timeout=0)
      return
    lot = self.inside.pop(oldest)
    self.left.append(lot["groups"])
    if isinstance(lot["end"], OSError):
      with pytest.raises(OSError, match=f"step {oldest}"):
        self.queue.take(version=self.version, timeout=0)
      return
    taken = self.queue.take(version=self.version, timeout=0)
    assert taken.step == oldest
    assert list(taken.groups) == lot["groups"]
    assert list(taken.grades) == lot["end"]
    for versions, fresh in zip(lot["versions"], taken.fresh, strict=True):
      for drawn, usable in zip(versions, fresh, strict=True):
        # Neither too old nor from the future.
        assert usable == (drawn <= self.version <= drawn + self.staleness)

  @invariant()
  def bounded(self):
    assert len(self.queue) == len(self.inside) <= self.depth

  def teardown(self):
    rest = self.queue.close()
    assert rest == [
      g for s in sorted(self.inside) for g in self.inside[s]["groups"]
    ]
    used = [group for groups in self.left for group in groups] + rest
    # Each group came out once, by a take or at the end.
    assert used == [group for groups in self.entered for group in groups]
    with pytest.raises(QueueClosed):
      self.queue.take(version=self.version)


Queue.TestCase.settings = settings(
  max_examples=60, stateful_step_count=30, deadline=None
)
TestQueue = Queue.TestCase


@settings(max_examples=25, deadline=None)
@given(
  ahead=st.integers(0, 3), steps=st.integers(1, 9), seed=st.integers(0, 99)
)
def test_a_loop_of_threads_neither_blocks_nor_loses(ahead, steps, seed):
  """The loop's own order, with judges that finish in any order."""
  queue = GroupQueue(depth=ahead + 1, staleness=ahead)
  turns = random.Random(seed)
  held, lock = [], threading.Lock()
  trained, depths = [], []

  def judge(step):
    """Grades a random one of the lots that wait."""
    with lock:
      held.append(step)
      chosen = held.pop(turns.randrange(len(held)))
    queue.grade(chosen, [chosen])

  def loop():
    with concurrent.futures.ThreadPoolExecutor(ahead + 1) as judges:
      sampled = 0
      for version in range(steps):
        while sampled < min(steps, version + 1 + ahead):
          sampled += 1
          assert queue.offer(sampled, [sampled], [[version]])
          judges.submit(judge, sampled)
        depths.append(len(queue))
        lot = queue.take(version=version)
        assert lot.step == version + 1
        assert lot.staleness[0][0] <= ahead
        assert lot.fresh == ((True,),)
        trained.extend(lot.groups)

  runner = threading.Thread(target=loop, daemon=True)
  runner.start()
  runner.join(PATIENCE_S)
  assert not runner.is_alive()
  assert trained == list(range(1, steps + 1))
  assert max(depths) <= ahead + 1
  assert queue.close() == []


def test_closing_wakes_who_waits():
  queue = GroupQueue(depth=1, staleness=0)
  queue.offer(1, ["a"], [[0]])
  woken = []

  def wait():
    with pytest.raises(QueueClosed):
      queue.take(version=0)
    woken.append(True)

  waiter = threading.Thread(target=wait, daemon=True)
  waiter.start()
  assert queue.close() == ["a"]
  waiter.join(PATIENCE_S)
  assert woken
  queue.grade(1, ["late"])  # a judge that comes too late disturbs nobody
  queue.fail(1, OSError("late"))


def test_what_cannot_be_right_is_refused():
  queue = GroupQueue(depth=2, staleness=1, first=5)
  with pytest.raises(QueueError, match="Step 4 enters, but 5 is next"):
    queue.offer(4, [], [])
  with pytest.raises(QueueError, match="2 versions for 1 groups"):
    queue.offer(5, ["a"], [[0], [0]])
  assert queue.offer(5, ["a"], [[4]])
  with pytest.raises(QueueError, match="2 grades for the 1 groups of step 5"):
    queue.grade(5, ["x", "y"])
  with pytest.raises(QueueError, match="No lot of step 6"):
    queue.grade(6, [])
