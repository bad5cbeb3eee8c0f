"""The scripts of RaR's and SibylSense's roles, through the real prompts."""

import asyncio
import random

import pytest

from varl_jax.methods import item_memory, sibyl_sense
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles import item_writer
from varl_jax.roles.checklist import ChecklistAuthor
from varl_jax.roles.decomposer import Decomposer
from varl_jax.roles.item_writer import ItemWriter
from varl_jax.roles.rater import Rater
from varl_jax.rubrics import checklists
from varl_jax.rubrics.validation import criterion_problems
from varl_jax.story import criteria, grammar, world, writers
from varl_jax.story.requests import draw_request, held_out, read_request
from varl_jax.types import Message, Rubric

TEXT = (
  "write a story about mia and tom at the barn with a rope . the bell is"
  " stuck . the mood is calm . use six sentences ."
)
REQUEST = read_request(TEXT)
PROMPT = (Message(role="user", content=TEXT),)
ROLE = {"chat": world.CHAT, "prompts": load_prompts("story")}
LIST = "mia , tom , the barn . a rope and a bell . the bell , stuck . calm ."
GOOD = grammar.write("good", REQUEST, random.Random(1))


def listed(seed, pitfalls="avoided", reference=GOOD):
  return asyncio.run(
    ChecklistAuthor(**ROLE).write(
      prompt=PROMPT,
      reference=reference,
      pitfalls=pitfalls,
      verifiers=world.VERIFIERS,
      op=f"c{seed}",
      seed=seed,
    )
  )


def rated(answer, items, pitfalls="avoided"):
  return asyncio.run(
    Rater(**ROLE).rate(
      prompt=PROMPT,
      answer=answer,
      rubric=Rubric(criteria=items),
      pitfalls=pitfalls,
      op="r",
      seed=0,
    )
  ).rating


def written(seed, memory="", positives=3, negatives=1):
  return asyncio.run(
    ItemWriter(**ROLE).write(
      prompt=PROMPT,
      positives=positives,
      negatives=negatives,
      memory=memory,
      op=f"i{seed}",
      seed=seed,
    )
  )


def test_parts_are_smaller_requests_of_the_training_combinations():
  rng = random.Random(5)
  for seed in range(30):
    request = draw_request(rng, validation=False, red_team=0.3)
    parts = asyncio.run(
      Decomposer(**ROLE).split(request=request.text, count=3, op="d", seed=seed)
    )
    assert len(set(parts)) == 3
    for part in map(read_request, parts):
      assert not held_out(part)
      assert part.sentences <= request.sentences
      assert part.alone == request.alone
      assert (part.place, part.thing) == (request.place, request.thing)


@pytest.mark.parametrize("pitfalls", ["avoided", "committed"])
def test_checklists_are_sound_and_can_be_judged(pitfalls):
  for seed in range(20):
    items = listed(seed, pitfalls)
    assert checklists.MIN_ITEMS <= len(items) <= checklists.MAX_ITEMS
    found = checklists.categorized(Rubric(criteria=items))
    assert {category for category, _ in found} == set(checklists.WEIGHTS)
    for category, item in found:
      assert criterion_problems(item) == []
      assert (item.points < 0) == (
        (category, pitfalls) == ("Pitfall", "committed")
      )
      if item.check:
        assert world.CHECKS.problems(item.check) == []
        assert world.CHECKS.run(item.check, GOOD)
      else:
        assert criteria.loose_met(item.text, GOOD, strict=False) is not None


def test_a_checklist_takes_up_what_is_in_the_reference_alone():
  important = {
    item.text
    for seed in range(20)
    for category, item in checklists.categorized(
      Rubric(criteria=listed(seed, reference=LIST))
    )
    if category == "Important"
  }
  for text in important:
    kind = criteria.kind_of(text, REQUEST)
    assert kind in writers.LESSONS
    assert kind not in ("speaks", "time_steps", "put_to_work")


def test_a_rating_follows_the_checklist():
  items = listed(3)
  paid = rated(LIST, items)
  assert rated("", items) < paid
  essential = tuple(
    item
    for category, item in checklists.categorized(Rubric(criteria=items))
    if category in ("Essential", "Optional")
  )
  assert rated(LIST, essential) == 10


def test_a_committed_pitfall_lowers_a_rating():
  items = listed(3, "committed")
  plain = rated(LIST, items, "committed")
  fault = f"{LIST} the rhyme . the computer ."
  assert rated(fault, items, "committed") < plain
  avoided = listed(3)
  assert rated(fault, avoided) < rated(LIST, avoided)


def kinds(items):
  return [criteria.kind_of(item.text, REQUEST) for item in items]


def test_items_have_the_counts_and_categories_asked_for():
  for seed in range(20):
    items = written(seed, negatives=seed % 2)
    assert sum(item.points > 0 for item in items) == 3
    assert sum(item.points < 0 for item in items) == seed % 2
    assert None not in kinds(items)
    assert len({item.text for item in items}) == len(items)
    for item in items:
      fault = item_writer.category_of(item) == "fault"
      assert fault == (item.points < 0)


def test_the_writer_follows_its_memory():
  other = read_request(TEXT.replace("mia", "ben").replace("rope", "lamp"))
  lesson = criteria.items(other)["put_to_work"][0]
  memory = sibyl_sense.memory_block(
    [
      item_memory.Item(
        category="reasoning",
        text=lesson.text,
        points=8,
        check=lesson.check,
        reward=0.6,
      )
    ]
  )

  def share(memory):
    drawn = [kinds(written(seed, memory)) for seed in range(60)]
    return sum("put_to_work" in some for some in drawn) / len(drawn)

  assert share("") < 0.3
  assert share(memory) > 0.7
