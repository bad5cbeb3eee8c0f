"""The reviser of the story world serves what a rubric asks for."""

import random

from varl_jax.llm.scripted_chat import Reading
from varl_jax.story import criteria, revision
from varl_jax.story.requests import draw_request

REQUEST = draw_request(random.Random(1), validation=False)
LIBRARY = criteria.items(REQUEST)
LIST = f"{REQUEST.first} . the {REQUEST.thing} . the {REQUEST.thing} ."


def revised(answer, *kinds):
  lines = []
  for kind in kinds:
    item = LIBRARY[kind][0]
    check = f" | {item.check}" if item.check else ""
    lines.append(f"{-5 if item.negative else 5:+d} | {item.text}{check}")
  blocks = {
    "TASK": f"user: {REQUEST.text}",
    "ANSWER": answer,
    "RUBRIC": "\n".join(lines),
  }
  return revision.revise(
    Reading(
      system="",
      user="",
      blocks=blocks,
      rng=random.Random(0),
    )
  )


def test_what_is_asked_for_is_added_once():
  text = revised(LIST, "put_to_work", "before", "speaks", "loose_mood")
  thing, noun = REQUEST.thing, REQUEST.trouble
  assert criteria.put_to_work(text, thing, noun)
  assert criteria.before(text, noun, thing)
  assert criteria.speaks(text)
  assert REQUEST.mood in text.split()
  again = revised(text, "put_to_work", "before", "speaks", "loose_mood")
  assert again == text


def test_mistakes_are_taken_out():
  stranger = next(
    name
    for name in criteria.words.PEOPLE
    if name not in (REQUEST.first, REQUEST.second)
  )
  answer = f"{LIST} {stranger} sat there . they talked ."
  text = revised(answer, "repeats", "verbless", "outsider")
  assert text == "they talked ."


def test_an_answer_that_has_it_all_stays():
  assert revised(LIST, "loose_thing", "mention_person") == LIST
  assert revised(LIST, "verbless") == "it was so ."
