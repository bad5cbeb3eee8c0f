"""Rubrics in the story world's own words, for a policy that knows no others.

A set is one to six items; an item is its points, `not` before a mistake, what
it asks for, and a full stop:

    seven mia used the rope . five about tom . six not over and over .

Every word of it is one of requests or stories, so that the story policy's
vocabulary writes it. `WORDS` has the forms; what an item means is the criterion
of that kind in `criteria.items`, whoever and whatever it names.
"""

import dataclasses
import re
from typing import Final

from varl_jax.rubrics.validation import MAX_CRITERIA
from varl_jax.story import criteria, words
from varl_jax.story.requests import StoryRequest, read_request
from varl_jax.types import Criterion, Message

SOURCE: Final = "rubric_author"
POINTS: Final = {"one": 1, "two": 2, "five": 5, "six": 6, "seven": 7}

# How an item of each kind is written, with fields of `StoryRequest`.
WORDS: Final = {
  "mention_person": "about {first}",
  "loose_thing": "with a {thing}",
  "loose_place": "at the {place}",
  "loose_trouble": "the {trouble} is {state}",
  "loose_mood": "the mood is {mood}",
  "uses": "{first} used the {thing}",
  "fetched": "found the {thing}",
  "put_to_work": "used the {thing} on the {trouble}",
  "before": "the {trouble} then the {thing}",
  "speaks": "said something",
  "acts_apart": "{first} moved and {second} moved",
  "time_steps": "soon then at last",
  "poem": "not sang",
  "machine": "not a metal man",
  "repeats": "not again and again",
  "outsider": "not other people to {first} and {second}",
  "verbless": "not nothing moved",
  "stuffed": "not over and over",
}

_KNOWN: Final = {
  "first": words.PEOPLE,
  "second": words.PEOPLE,
  "place": words.PLACES,
  "thing": words.OBJECTS,
  "trouble": words.TROUBLES,
  "mood": words.MOODS,
}


def _pattern(form: str) -> re.Pattern[str]:
  def field(match: re.Match[str]) -> str:
    name = match[1]
    known = [t.state for t in words.TROUBLES.values()]
    choices = known if name == "state" else _KNOWN[name]
    return f"(?P<{name}>{'|'.join(choices)})"

  return re.compile(re.sub(r"\{(\w+)\}", field, form))


_PATTERNS: Final = {kind: _pattern(form) for kind, form in WORDS.items()}


def item_text(
  kind: str, request: StoryRequest, points: str, *, second: bool = False
) -> str:
  """An item of a set.

  Args:
    kind: a key of `WORDS`.
    request: what it names things of.
    points: a key of `POINTS`.
    second: whether it is about the second person where it is about one.
  """
  fields = {name: getattr(request, name) for name in _KNOWN}
  if second:
    fields |= {"first": request.second, "second": request.first}
  state = words.TROUBLES[request.trouble].state
  return f"{points} {WORDS[kind].format(state=state, **fields)} ."


class RubricWords:
  """The language as `roles.rubric_author.RubricLanguage` wants it."""

  def conversation(self, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """What the generator is asked: the request itself."""
    return prompt

  def read(
    self, reply: str, prompt: tuple[Message, ...]
  ) -> tuple[Criterion, ...]:
    """The criteria of a set.

    Raises:
      ValueError: it is none: an item cannot be read or stands twice, or there
        are none or too many.
    """
    request = read_request(prompt[-1].content)
    if not reply.endswith(" ."):
      raise ValueError("The set ends within an item.")
    items = reply.removesuffix(" .").split(" . ")
    found = tuple(_criterion(item, request) for item in items)
    if len({criterion.text for criterion in found}) < len(found):
      raise ValueError("An item stands twice.")
    if len(found) > MAX_CRITERIA:
      raise ValueError(f"A set has at most {MAX_CRITERIA} items.")
    return found


def _criterion(item: str, request: StoryRequest) -> Criterion:
  points, _, said = item.partition(" ")
  if points not in POINTS:
    raise ValueError(f"An item begins with its points, not with {points!r}.")
  for kind, pattern in _PATTERNS.items():
    match = pattern.fullmatch(said)
    if match is None:
      continue
    named = match.groupdict()
    state = named.pop("state", None)
    if state and state != words.TROUBLES[named["trouble"]].state:
      break
    # Of two people that a kind has an item for, the named one is the first.
    asked = dataclasses.replace(request, **named)
    made = criteria.items(asked)[kind][0]
    worth = -POINTS[points] if made.negative else POINTS[points]
    return Criterion(
      text=made.text, points=worth, check=made.check, source=SOURCE
    )
  raise ValueError(f"No item reads {said[:60]!r}.")


LANGUAGE: Final = RubricWords()
