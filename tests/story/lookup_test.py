"""The sign world: the tool tells, the check reads, the rubric asks."""

import asyncio
import json
import random
from collections import Counter

import pytest

from varl_jax.llm.scripted_chat import Reading
from varl_jax.rubrics.checks import CheckError
from varl_jax.story import lookup, words
from varl_jax.story.requests import draw_request
from varl_jax.types import ToolCall

REQUEST = draw_request(random.Random(3), validation=False)
FIELDS = (REQUEST.place, REQUEST.thing, REQUEST.trouble)
SIGN = lookup.sign_of(*FIELDS)


def look(text):
  call = ToolCall(op="o", name="lookup", arguments={"of": text})
  return asyncio.run(lookup.Lookup().run(call))


def reading(**blocks):
  return Reading(
    blocks=blocks, system="", user=REQUEST.text, rng=random.Random(1)
  )


def test_the_tool_tells_what_the_check_asks_for():
  found = look(lookup.query_of(REQUEST))
  assert not found.failure
  assert lookup.sign(found.text, *FIELDS)
  assert lookup.sign(lookup.SENTENCE.format(sign=SIGN), *FIELDS)
  other = next(word for word in lookup.SIGNS if word != SIGN)
  assert not lookup.sign(lookup.SENTENCE.format(sign=other), *FIELDS)
  assert not lookup.sign(" ".join(lookup.SIGNS), *FIELDS)
  assert not lookup.sign("", *FIELDS)


@pytest.mark.parametrize("text", ["barn", "mill rope nowhere", "a b c d"])
def test_a_query_of_something_else_fails_as_a_result(text):
  assert look(text).failure == "bad_arguments"
  with pytest.raises(CheckError):
    lookup.sign("oak", "mill", "rope", "nowhere")


def test_no_word_is_worth_guessing():
  found = Counter(
    lookup.sign_of(place, thing, trouble)
    for place in words.PLACES
    for thing in words.OBJECTS
    for trouble in words.TROUBLES
  )
  assert set(found) == set(lookup.SIGNS)
  assert max(found.values()) < 0.13 * sum(found.values())


def test_a_rubric_asks_for_the_sign_and_the_honest_answer_tells_it():
  made = json.loads(
    lookup.generate(
      reading(
        **{
          "REQUEST": REQUEST.text,
          "POSITIVE COUNT": "3",
          "NEGATIVE COUNT": "1",
        }
      )
    )
  )
  items = made["rubric_items"]
  assert sum(item["points"] > 0 for item in items) == 3
  (check,) = [c for i in items if (c := i.get("check", "")).startswith("sign(")]
  assert check == f"sign({', '.join(FIELDS)})"
  assert lookup.sign(lookup.answer_honestly(reading()), *FIELDS)
