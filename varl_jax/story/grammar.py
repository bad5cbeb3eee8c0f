"""The grammar of stories and the four kinds of text the policy starts from.

A good story is a sequence of beats (opening, trouble, setback, find, talk,
use, mending, ending). The other kinds are what a weak writer falls back on: a
thin story that only reports, a keyword list, and rambling.
"""

import random
import re
from collections.abc import Sequence
from typing import Final, Literal

from varl_jax.story import words
from varl_jax.story.requests import StoryRequest

Kind = Literal["good", "thin", "list", "ramble"]

BEATS: Final = {
  "opening": (
    "{a} and {b} came to the {place} .",
    "one day {a} met {b} at the {place} .",
    "{a} and {b} walked by the {place_other} .",
    "two friends walked by the {place_other} .",
    "{a} sat at the {place} with a friend .",
  ),
  "trouble": (
    "something there {broken} .",
    "the {noun} {broken} .",
    "soon {a} saw that the {noun} {broken} .",
    "they saw that the {noun} was {state} .",
  ),
  "setback": (
    "{a} pulled hard but nothing moved .",
    "{a} tried once but nothing changed .",
    "they waited a long time but no help came .",
  ),
  "find": (
    "then {b} found a {thing} in the grass .",
    "then {he_b} saw a {thing_other} on the wall .",
    "{b} ran home and brought the {thing} .",
  ),
  "talk": (
    "we can do this , said {b} .",
    "{he_a} said , let me try .",
  ),
  "use": (
    "{he_b} {verb} the {thing} {preposition} the {noun} .",
    "{b} {verb} the {thing} {preposition} the {noun} .",
    "{b} {verb} the {thing_other} {preposition} it .",
    "with care {b} {verb} the {thing} {preposition} the {noun} .",
  ),
  "mending": (
    "at last the {noun} {fixed} .",
    "slowly it {fixed} .",
    "at last it {fixed} .",
  ),
  "ending": (
    "they {feeling} .",
    "{a} and {b} {feeling} .",
    "that night they {feeling} .",
  ),
}

OPTIONAL: Final = ("setback", "find", "talk")

THIN: Final = (
  (
    "{a} and {b} were at the {place} .",
    "{a} and {b} were there .",
    "{a} and {b} had a {thing} .",
  ),
  (
    "the {noun} was {state} .",
    "{a} saw the {noun} .",
    "it was {state} .",
  ),
  (
    "then {a} used the {thing} .",
    "{b} used the {thing} .",
    "{a} fixed it with the {thing} .",
    "{b} fixed it .",
  ),
  (
    "it was {mood} .",
    "all was well .",
    "at last it was the end .",
  ),
)

RAMBLE: Final = (
  "the sun was high .",
  "birds sang in the trees .",
  "it was a long day .",
  "soon it was night .",
  "then an old man walked by .",
  "{x} liked to eat soup .",
  "{x} talked about the rain .",
  "the wind was cold .",
  "they talked and talked .",
  "the sky was blue .",
  "some people like rain .",
  "at last it was the end .",
)

LIST: Final = (
  ("{a} and {b} .", "{a} , {b} , the {place} .", "story about {a} and {b} ."),
  ("the {place} .", "{place} and {thing} .", "at the {place} ."),
  ("a {thing} and a {noun} .", "a {thing} .", "the {thing} , the {noun} ."),
  ("the {noun} , {state} .", "{noun} {state} .", "a {state} {noun} ."),
  ("{mood} .", "{mood} , {mood} .", "a {mood} mood ."),
)


def fill(template: str, request: StoryRequest, rng: random.Random) -> str:
  """Fills a template's slots from a request; `{x}` is somebody unlisted."""
  thing = words.OBJECTS[request.thing]
  trouble = words.TROUBLES[request.trouble]
  others = [
    person
    for person in words.PEOPLE
    if person not in (request.first, request.second)
  ]
  return template.format(
    a=request.first,
    b=request.second,
    he_a=words.PEOPLE[request.first],
    he_b=words.PEOPLE[request.second],
    place=request.place,
    place_other=words.PLACES[request.place],
    thing=request.thing,
    thing_other=thing.other,
    verb=thing.verb,
    preposition=thing.preposition,
    noun=request.trouble,
    state=trouble.state,
    broken=trouble.broken,
    fixed=trouble.fixed,
    mood=request.mood,
    feeling=words.MOODS[request.mood],
    x=rng.choice(others),
  )


def _beats(request: StoryRequest, rng: random.Random) -> list[str]:
  """The beats of one story: about as many as asked, now and then one short."""
  kept = {5: 1, 6: rng.choice((1, 2)), 7: 2}[request.sentences]
  chosen = rng.sample(OPTIONAL, kept)
  beats = [b for b in BEATS if b not in OPTIONAL or b in chosen]
  if rng.random() < 0.25:
    beats.remove(rng.choice(beats))
  return beats


def write(kind: Kind, request: StoryRequest, rng: random.Random) -> str:
  """Writes a text of one kind for a request."""

  def one(choices: Sequence[str]) -> str:
    return fill(rng.choice(choices), request, rng)

  if kind == "good":
    return " ".join(one(BEATS[beat]) for beat in _beats(request, rng))
  if kind == "thin":
    return " ".join(one(part) for part in THIN)
  if kind == "list":
    parts = [one(part) for part in rng.sample(LIST, rng.randint(4, 5))]
    if rng.random() < 0.5:
      parts.append(one(rng.choice(LIST)))
    return " ".join(parts)
  count = rng.randint(4, 8)
  lines = [one(RAMBLE) for _ in range(count)]
  if rng.random() < 0.5:
    lines.append(rng.choice(lines))
  return " ".join(lines)


def _pattern(template: str) -> str:
  def options(choices: Sequence[str]) -> str:
    return "(?:" + "|".join(map(re.escape, choices)) + ")"

  slots = {
    "a": options(list(words.PEOPLE)),
    "b": options(list(words.PEOPLE)),
    "x": options(list(words.PEOPLE)),
    "he_a": "(?:he|she)",
    "he_b": "(?:he|she)",
    "place": options(list(words.PLACES)),
    "place_other": options(list(words.PLACES.values())),
    "thing": options(list(words.OBJECTS)),
    "thing_other": options([t.other for t in words.OBJECTS.values()]),
    "verb": options([t.verb for t in words.OBJECTS.values()]),
    "preposition": options([t.preposition for t in words.OBJECTS.values()]),
    "noun": options(list(words.TROUBLES)),
    "state": options([t.state for t in words.TROUBLES.values()]),
    "broken": options([t.broken for t in words.TROUBLES.values()]),
    "fixed": options([t.fixed for t in words.TROUBLES.values()]),
    "mood": options(list(words.MOODS)),
    "feeling": options(list(words.MOODS.values())),
  }
  parts = re.split(r"\{(\w+)\}", template.removesuffix(" ."))
  return "".join(
    slots[part] if index % 2 else re.escape(part)
    for index, part in enumerate(parts)
  )


def sentence_pattern() -> re.Pattern[str]:
  """A pattern that one grammatical sentence (without its stop) matches whole.

  Lists are left out: their pieces are no sentences.
  """
  templates = [t for beat in BEATS.values() for t in beat]
  templates += [t for part in THIN for t in part]
  templates += RAMBLE
  return re.compile("|".join(f"(?:{_pattern(t)})" for t in templates))
