"""Rubric sets as values: an answer's score under one, what a set has earned.

Which answer is revised and which sets judge the revision is decided here, too
(`methods.co_grading` says why).
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from varl_jax.methods import rubric_rewards
from varl_jax.types import Criterion, Verdict

Criteria = tuple[Criterion, ...]
# The verdict on an item by its text and check, which is all a judge is shown.
Known = Mapping[tuple[str, str | None], Verdict]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """What a set that parsed earns, before the mean; None was not measured."""

  discrimination: float | None
  diversity: float | None
  reflect: float | None
  reference: float | None

  @property
  def reward(self) -> float | None:
    """Their mean, None where nothing could be measured."""
    known = dataclasses.asdict(self)
    if all(value is None for value in known.values()):
      return None
    return rubric_rewards.generator_reward(parsed=True, **known)


def set_score(criteria: Criteria | None, known: Known | None) -> float | None:
  """An answer's score under a set, in [0, 1].

  Args:
    criteria: of the set, None for one that did not parse.
    known: verdicts on the answer, None where it was not judged.

  Returns:
    The score, None where there is none: an undetermined verdict is neither.
  """
  if criteria is None or known is None:
    return None
  met = [known[key_of(item)].met for item in criteria]
  if any(value is None for value in met):
    return None
  return rubric_rewards.set_score(
    [item.points for item in criteria], [value is True for value in met]
  )


def distinct(sets: Iterable[Criteria | None]) -> Criteria:
  """The items of all sets, each once, with the mean of its points."""
  points: dict[tuple[str, str | None], list[float]] = {}
  first: dict[tuple[str, str | None], Criterion] = {}
  for criteria in sets:
    for item in criteria or ():
      first.setdefault(key_of(item), item)
      points.setdefault(key_of(item), []).append(item.points)
  return tuple(
    dataclasses.replace(item, points=statistics.fmean(points[key]))
    for key, item in first.items()
  )


def praising(sets: Sequence[Criteria | None], index: int) -> list[int]:
  """The sets under which a set's revision counts: the others, if there are."""
  valid = [i for i, criteria in enumerate(sets) if criteria is not None]
  return [i for i in valid if i != index] or [index]


def middle_answer(scores: Sequence[Sequence[float | None]]) -> int | None:
  """The answer whose mean score is the median; of two the lower one.

  Returns:
    Its index, None where none has a score.
  """
  means = [rubric_rewards.policy_reward(row) for row in scores]
  order = sorted(
    (mean, index) for index, mean in enumerate(means) if mean is not None
  )
  return order[(len(order) - 1) // 2][1] if order else None


def key_of(item: Criterion) -> tuple[str, str | None]:
  """What makes two items the same to a judge."""
  return item.text, item.check


def text_of(criteria: Iterable[Criterion]) -> str:
  """The texts of a set, a line each."""
  return "\n".join(item.text for item in criteria)


def mean_of_known(values: Iterable[float | None]) -> float | None:
  """The mean of the values there are, None of nothing."""
  known = [value for value in values if value is not None]
  return statistics.fmean(known) if known else None
