"""SibylSense: a memory of rubric items that proved themselves.

An item earns by how much more it credits a reference answer than the candidate
answers (arXiv 2602.20751); those of each category that earn most are shown to
the frozen generator of the next rubrics. The published text leaves the details
open; ours:

    reward  sign(points) * (met(reference) - mean met(candidates))
    kept    where the reward is positive
    known   an item of the category whose trigrams overlap by `OVERLAP`; it is
            scored again and keeps the mean of its rewards, and is forgotten
            when that mean is no longer positive
    shown   the `TOP` of each category by that mean; equals by age

The memory is a text, one JSON object a line, because that is how guidance
travels: it is versioned, stored, rewound and shown in the report as guidance
is (`methods.sibyl_sense`).
"""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from varl_jax.rubrics.similarity import trigram_overlap

TOP: Final = 5
OVERLAP: Final = 0.6
# Items of a category that are remembered at most; the worst are forgotten.
CAPACITY: Final = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """An item of the memory.

  Attributes:
    category: of the closed list of the role that writes items.
    text: the criterion.
    points: as in `types.Criterion`.
    check: likewise.
    reward: the mean of its rewards, in [-1, 1].
    seen: how many rewards that mean is of.
  """

  category: str
  text: str
  points: float
  check: str | None
  reward: float
  seen: int = 1


def item_reward(
  points: float, on_reference: bool, on_candidates: Sequence[bool]
) -> float:
  """What an item earns, in [-1, 1].

  Args:
    points: of the item, not 0.
    on_reference: whether the reference answer meets it.
    on_candidates: whether each candidate does.

  Raises:
    ValueError: no candidates, or no points.
  """
  if not on_candidates or not points:
    raise ValueError("An item is rewarded by its points and candidates.")
  gap = float(on_reference) - statistics.fmean(map(float, on_candidates))
  return gap if points > 0 else -gap


def remember(memory: Sequence[Item], scored: Iterable[Item]) -> list[Item]:
  """The memory after more items were scored, in order of age.

  Args:
    memory: so far.
    scored: items with one reward each (`seen` 1), kept or not.
  """
  kept = list(memory)
  for item in scored:
    known = _known(kept, item)
    if known is None:
      if item.reward > 0:
        kept.append(item)
      continue
    old = kept[known]
    seen = old.seen + 1
    mean = old.reward + (item.reward - old.reward) / seen
    kept[known] = dataclasses.replace(old, reward=mean, seen=seen)
  kept = [item for item in kept if item.reward > 0]
  best = {
    id(item)
    for category in {item.category for item in kept}
    for item in top_items(kept, category, CAPACITY)
  }
  return [item for item in kept if id(item) in best]


def top_items(memory: Sequence[Item], category: str, count: int) -> list[Item]:
  """The items of a category that earn most, the best first."""
  own = [item for item in memory if item.category == category]
  return sorted(own, key=lambda item: -item.reward)[:count]


def write_memory(memory: Sequence[Item]) -> str:
  """The memory as text, one line an item."""
  return "\n".join(
    json.dumps(dataclasses.asdict(item), sort_keys=True) for item in memory
  )


def read_memory(text: str) -> list[Item]:
  """Reads what `write_memory` wrote; "" is an empty memory.

  Raises:
    ValueError: the text is no memory.
  """
  try:
    return [Item(**json.loads(line)) for line in text.splitlines()]
  except (json.JSONDecodeError, TypeError) as error:
    raise ValueError(f"The text is no memory of items: {error}.") from error


def _known(memory: Sequence[Item], item: Item) -> int | None:
  """Where the item of this category stands that is most like it."""
  likeness = [
    trigram_overlap(old.text, item.text)
    if (old.category, old.points > 0) == (item.category, item.points > 0)
    else 0.0
    for old in memory
  ]
  nearest = max(range(len(memory)), key=likeness.__getitem__, default=None)
  if nearest is None or likeness[nearest] < OVERLAP:
    return None
  return nearest
