"""Rubrics as Rewards: from a weighted checklist to a reward.

A checklist has items of four categories (arXiv 2507.17746). With the weight w
of an item's category and c = 1 where it is satisfied:

    explicit  sum w c / sum w
    implicit  one rating of the whole answer, 1 to 10, moved onto [0, 1]

The published text is ambiguous about pitfalls: as the formula stands, one that
is satisfied adds credit, so it has to be worded as a fault that was avoided.
`committed` is the other reading: the item names the fault, and committing it
costs its weight, as negative points do elsewhere here. `avoided` is the
formula's.

The numbers that the checklist's author writes beside the items (5, 3 to 4, ...)
decide nothing in either aggregation; the category does.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from varl_jax.types import Criterion, Rubric

Category = Literal["Essential", "Important", "Optional", "Pitfall"]
Pitfalls = Literal["avoided", "committed"]

WEIGHTS: Final[Mapping[Category, float]] = {
  "Essential": 1.0,
  "Important": 0.7,
  "Optional": 0.3,
  "Pitfall": 0.9,
}
MIN_ITEMS: Final = 7
MAX_ITEMS: Final = 20
LOWEST: Final = 1
HIGHEST: Final = 10
# Points of a criterion whose weight is 1; a score does not depend on it.
POINTS: Final = 10


def explicit_score(
  categories: Sequence[Category], satisfied: Sequence[bool]
) -> float:
  """The weighted share of satisfied items, in [0, 1].

  Raises:
    ValueError: no items, or unequal lengths.
  """
  if not categories:
    raise ValueError("A checklist without items has no score.")
  earned = math.fsum(
    WEIGHTS[category]
    for category, met in zip(categories, satisfied, strict=True)
    if met
  )
  return earned / math.fsum(WEIGHTS[category] for category in categories)


def implicit_score(rating: int) -> float:
  """A rating of 1 to 10 on [0, 1]; the worst is 0.

  Raises:
    ValueError: the rating is outside its scale.
  """
  if not LOWEST <= rating <= HIGHEST:
    raise ValueError(f"A rating is {LOWEST} to {HIGHEST}, got {rating}.")
  return (rating - LOWEST) / (HIGHEST - LOWEST)


def points_of(category: Category, pitfalls: Pitfalls) -> float:
  """Points that make a criterion of an item.

  `rubrics.scoring.rubric_score` of such criteria is `explicit_score` where
  pitfalls are avoided.
  """
  points = POINTS * WEIGHTS[category]
  return -points if (category, pitfalls) == ("Pitfall", "committed") else points


def category_of(points: float) -> Category:
  """The category whose criteria have these points, of either polarity.

  Raises:
    ValueError: none has.
  """
  for category, weight in WEIGHTS.items():
    if math.isclose(abs(points), POINTS * weight):
      return category
  raise ValueError(f"No category of a checklist has {points:g} points.")


def categorized(rubric: Rubric) -> list[tuple[Category, Criterion]]:
  """Every criterion of a checklist with its category."""
  return [(category_of(item.points), item) for item in rubric.criteria]
