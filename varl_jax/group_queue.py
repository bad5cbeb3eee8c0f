"""Groups between sampling and training: bounded, in order, each used once.

A lot is the groups of one step. It enters when it is sampled, is given its
grades by whoever has them, and leaves in the order of the steps. Whether a
sample may be trained on is decided when it leaves: its staleness is the number
of updates between the weights that drew it and those that are trained, and has
to lie between 0 and the bound. Weights from the future cannot have drawn it,
so such a sample belongs to a run that was rewound and is refused as well.

A refused sample counts as unscorable: out of its group's baseline, without an
advantage. A group that keeps too few for a baseline is then requeued by the
service, as after a failed judgement (spec section 3); so each group is either
trained once or returned once.
"""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

Group = TypeVar("Group")
Grade = TypeVar("Grade")


class QueueError(RuntimeError):
  """A lot that cannot enter, or grades that belong to no lot."""


class QueueClosed(RuntimeError):
  """Nothing enters or leaves any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lot(Generic[Group, Grade]):
  """What leaves for one update.

  Attributes:
    step: the step that it was served for.
    groups: as they were sampled.
    grades: one a group, in order.
    staleness: updates a sample is behind, one tuple a group.
    fresh: whether the sample may be trained on, likewise.
  """

  step: int
  groups: tuple[Group, ...]
  grades: tuple[Grade, ...]
  staleness: tuple[tuple[int, ...], ...]
  fresh: tuple[tuple[bool, ...], ...]


@dataclasses.dataclass(kw_only=True)
class _Waiting:
  groups: tuple
  versions: tuple[tuple[int, ...], ...]
  grades: tuple | None = None
  error: BaseException | None = None


class GroupQueue(Generic[Group, Grade]):
  """The lots that are sampled and not yet trained.

  Any thread may call any method. Only `take` waits.

  Args:
    depth: most lots inside, graded or not.
    staleness: most updates a sample may be behind.
    first: step of the first lot.
  """

  def __init__(self, *, depth: int, staleness: int, first: int = 1):
    self._depth = depth
    self._staleness = staleness
    self._enters = self._leaves = first
    self._lots: dict[int, _Waiting] = {}
    self._closed = False
    self._changed = threading.Condition()

  def __len__(self) -> int:
    return len(self._lots)

  def offer(
    self,
    step: int,
    groups: Sequence[Group],
    versions: Sequence[Sequence[int]],
  ) -> bool:
    """Takes a sampled lot in.

    Args:
      step: the one after the last that entered.
      groups: of the step; may be none.
      versions: of the weights that drew each sample, one sequence a group.

    Returns:
      False when `depth` lots are inside; nothing has happened then.

    Raises:
      QueueError: another step's turn, or not one sequence a group.
      QueueClosed: the queue is closed.
    """
    if len(groups) != len(versions):
      raise QueueError(f"{len(versions)} versions for {len(groups)} groups.")
    with self._changed:
      self._check_open()
      if step != self._enters:
        raise QueueError(f"Step {step} enters, but {self._enters} is next.")
      if len(self._lots) >= self._depth:
        return False
      self._lots[step] = _Waiting(
        groups=tuple(groups), versions=tuple(tuple(v) for v in versions)
      )
      self._enters += 1
    return True

  def grade(self, step: int, grades: Sequence[Grade]) -> None:
    """Gives a lot its grades, one a group.

    Raises:
      QueueError: the lot is not inside, has grades, or has other groups.
    """
    with self._changed:
      if self._closed:
        return  # nobody will train on it
      lot = self._ungraded(step)
      if len(grades) != len(lot.groups):
        raise QueueError(
          f"{len(grades)} grades for the {len(lot.groups)} groups of step"
          f" {step}."
        )
      lot.grades = tuple(grades)
      self._changed.notify_all()

  def fail(self, step: int, error: BaseException) -> None:
    """Lets `take` raise `error` when the lot's turn comes."""
    with self._changed:
      if self._closed:
        return
      self._ungraded(step).error = error
      self._changed.notify_all()

  def take(
    self, *, version: int, timeout: float | None = None
  ) -> Lot[Group, Grade]:
    """Waits for the oldest lot and takes it out, to be trained or returned.

    Args:
      version: of the weights that will be trained: updates so far.
      timeout: seconds, None for as long as it takes.

    Raises:
      QueueClosed: the queue is closed.
      TimeoutError: the lot is still ungraded, and still inside.
      BaseException: what `fail` was given.
    """
    with self._changed:
      if not self._changed.wait_for(self._settled, timeout):
        raise TimeoutError(f"Step {self._leaves} is not graded yet.")
      self._check_open()
      lot = self._lots.pop(self._leaves)
      step = self._leaves
      self._leaves += 1
    if lot.error is not None:
      raise lot.error
    staleness = tuple(
      tuple(version - drawn for drawn in group) for group in lot.versions
    )
    return Lot(
      step=step,
      groups=lot.groups,
      grades=lot.grades or (),
      staleness=staleness,
      fresh=tuple(
        tuple(0 <= behind <= self._staleness for behind in group)
        for group in staleness
      ),
    )

  def close(self) -> list[Group]:
    """Ends it; returns the groups that nobody took, the oldest first."""
    with self._changed:
      self._closed = True
      left = [g for step in sorted(self._lots) for g in self._lots[step].groups]
      self._lots.clear()
      self._changed.notify_all()
    return left

  def _settled(self) -> bool:
    lot = self._lots.get(self._leaves)
    done = lot is not None and (lot.grades is not None or lot.error is not None)
    return self._closed or done

  def _ungraded(self, step: int) -> _Waiting:
    lot = self._lots.get(step)
    if lot is None or lot.grades is not None or lot.error is not None:
      raise QueueError(f"No lot of step {step} waits for grades.")
    return lot

  def _check_open(self) -> None:
    if self._closed:
      raise QueueClosed("The queue is closed.")
