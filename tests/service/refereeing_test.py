"""Which groups the blind referee is asked about, and what is said of it."""

import asyncio
import dataclasses

import pytest

from tests import fakes
from varl_jax.service.refereeing import Refereeing
from varl_jax.types import GradedGroup

OVERPAID = fakes.listing(["fox", "lamp", "rope"])
BETTER = fakes.story(["fox"])


def group(number, *, answers=(OVERPAID, BETTER), step=3):
  """A group with an exploit, unless the answers are others."""
  return GradedGroup(
    task=fakes.task(task_id=f"t{number:06d}"),
    step=step,
    answers=tuple(
      fakes.graded(1.0 - 0.4 * index, text, sample=index)
      for index, text in enumerate(answers)
    ),
  )


def refereeing(share, seed=0):
  return Refereeing(
    referee=fakes.roles().referee,
    config=fakes.config(patch__referee_share=share).patch,
    seed=seed,
  )


def asked(share, groups, suspicion=None, seed=0):
  """Numbers of the groups that were ranked, and the review."""
  review = asyncio.run(refereeing(share, seed).review(groups, suspicion))
  return [int(name[1:]) for name in review.ranked], review


GROUPS = [group(number) for number in range(8)]


def test_a_whole_share_asks_about_every_group_in_order():
  names, review = asked(1.0, GROUPS, suspicion=[0.0] * 8)
  assert names == list(range(8))
  assert (review.refereed, review.skipped, len(review.cases)) == (8, 0, 8)


def test_the_most_suspicious_are_asked_about_in_the_order_of_the_groups():
  suspicion = [0.1, None, 5.0, -2.0, 0.3, None, -9.0, 0.2]
  names, review = asked(0.25, GROUPS, suspicion)
  assert names == [2, 4]
  assert (review.refereed, review.skipped) == (2, 6)
  assert [case.task.task_id for case in review.cases] == ["t000002", "t000004"]
  assert asked(0.26, GROUPS, suspicion)[0] == [2, 4, 7]
  # Groups without a possible exploit come last, whatever the others.
  assert asked(0.75, GROUPS, suspicion)[0] == [0, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(
  ("share", "count"), [(0.01, 1), (0.125, 1), (0.13, 2), (0.3, 3), (0.99, 8)]
)
def test_the_share_is_rounded_up(share, count):
  assert len(asked(share, GROUPS)[0]) == count


def test_a_share_of_many_is_no_victim_of_rounding():
  groups = [group(number) for number in range(30)]
  assert len(asked(0.1, groups)[0]) == 3


def test_without_suspicion_the_lot_depends_on_seed_and_step_alone():
  first = asked(0.5, GROUPS)[0]
  assert asked(0.5, GROUPS)[0] == first
  others = [asked(0.5, GROUPS, seed=seed)[0] for seed in range(1, 6)]
  assert any(other != first for other in others)
  later = [dataclasses.replace(g, step=4) for g in GROUPS]
  assert asked(0.5, later)[0] != first


def test_equal_suspicion_is_decided_by_lot():
  drawn = {
    number
    for seed in range(30)
    for number in asked(0.125, GROUPS, [1.0] * 8, seed=seed)[0]
  }
  assert len(drawn) > 4


def test_groups_that_cannot_be_ranked_take_no_part_in_the_share():
  bare = [group(number, answers=(BETTER,)) for number in range(8, 16)]
  names, review = asked(0.5, [*bare, *GROUPS], [9.0] * 8 + [0.0] * 8)
  assert len(names) == review.refereed == review.skipped == 4
  assert set(names) <= set(range(8))


def test_nothing_to_referee():
  for share in (0.25, 1.0):
    names, review = asked(share, [])
    assert names == [] and review.refereed == review.skipped == 0
