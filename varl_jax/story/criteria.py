"""What rubrics of the story world can ask: verifiers and loosely worded items.

The verifiers (`REGISTRY`) are what a generator, a repairer or a patcher may
attach to a criterion. The loose items have no verifier: the scripted judge
reads their text (`loose_met`) the generous way a grader reads "in some way".
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from varl_jax.rubrics.checks import CheckError
from varl_jax.story import words
from varl_jax.story.requests import StoryRequest


def mentions(answer: str, word: str) -> bool:
  """The word stands anywhere in the answer."""
  return word in words.plain(answer).split()


def _in_order(sentence: list[str], *wanted: str | frozenset[str]) -> bool:
  position = 0
  for want in wanted:
    choices = want if isinstance(want, frozenset) else frozenset((want,))
    while position < len(sentence) and sentence[position] not in choices:
      position += 1
    if position == len(sentence):
      return False
    position += 1
  return True


def uses(answer: str, person: str, thing: str) -> bool:
  """One sentence has the person, then a verb, then the thing."""
  return any(
    _in_order(sentence, person, words.VERBS, thing)
    for sentence in words.sentences(answer)
  )


def fetched(answer: str, thing: str) -> bool:
  """The thing, under any name, is found, seen or brought."""
  known = _known(thing)
  return any(
    _in_order(sentence, frozenset(("found", "saw", "brought")), last)
    for sentence in words.sentences(answer)
    for last in (thing, known.other.split()[-1])
  )


def _known(thing: str) -> words.Thing:
  if thing not in words.OBJECTS:
    raise CheckError(f"No thing of the story world is called {thing!r}.")
  return words.OBJECTS[thing]


def put_to_work(answer: str, thing: str, noun: str) -> bool:
  """One sentence has the thing's own verb, then the thing, then the noun."""
  verb = _known(thing).verb
  return any(
    _in_order(sentence, verb, thing, noun)
    for sentence in words.sentences(answer)
  )


def before(answer: str, early: str, late: str) -> bool:
  """The first sentence with `early` comes before the first with `late`."""

  def first(word: str) -> int | None:
    found = [
      index
      for index, sentence in enumerate(words.sentences(answer))
      if word in sentence
    ]
    return found[0] if found else None

  one, two = first(early), first(late)
  return one is not None and two is not None and one < two


def speaks(answer: str) -> bool:
  """Somebody says something of at least three words."""
  return any(
    "said" in sentence and "," in sentence and len(sentence) >= 6
    for sentence in words.sentences(answer)
  )


def acts_apart(answer: str, one: str, two: str) -> bool:
  """Each person starts a verb in a sentence without the other's name."""
  told = words.sentences(answer)

  def alone(person: str, other: str) -> bool:
    return any(
      _in_order(sentence, person, words.VERBS) and other not in sentence
      for sentence in told
    )

  return alone(one, two) and alone(two, one)


def time_steps(answer: str) -> bool:
  """At least two different time words lead on."""
  padded = f" {words.plain(answer)} "
  return sum(f" {word} " in padded for word in words.TIME_WORDS) >= 2


def repeats(answer: str) -> bool:
  """A sentence stands twice."""
  told = [tuple(sentence) for sentence in words.sentences(answer)]
  return len(set(told)) < len(told)


def outsider(answer: str, one: str, two: str) -> bool:
  """A name other than the two is used."""
  return bool(
    (set(words.plain(answer).split()) & set(words.PEOPLE)) - {one, two}
  )


def verbless(answer: str) -> bool:
  """A piece between full stops has no verb."""
  return any(
    not words.VERBS.intersection(sentence)
    for sentence in words.sentences(answer)
  )


def stuffed(answer: str) -> bool:
  """A name or a thing stands four times or more."""
  counts = Counter(words.plain(answer).split())
  nouns = (*words.PEOPLE, *words.OBJECTS, *words.TROUBLES, *words.PLACES)
  return any(counts[noun] >= 4 for noun in nouns)


REGISTRY: Final[Mapping[str, Callable[..., bool]]] = {
  "mentions": mentions,
  "uses": uses,
  "fetched": fetched,
  "put_to_work": put_to_work,
  "before": before,
  "speaks": speaks,
  "acts_apart": acts_apart,
  "time_steps": time_steps,
  "repeats": repeats,
  "outsider": outsider,
  "verbless": verbless,
  "stuffed": stuffed,
}

# What a prompt tells a writer of rubrics about the verifiers at hand.
VERIFIERS: Final = """\
mentions(word): the word stands in the story
uses(person, thing): one sentence has the person do something with the thing
fetched(thing): the thing is found, seen or brought
put_to_work(thing, noun): the thing is applied to the noun in one sentence
before(early, late): one word comes up a sentence earlier than another
speaks(): somebody says something
acts_apart(one, two): each person does something in a sentence of their own
time_steps(): at least two time words lead on
repeats(): a sentence stands twice (a mistake)
outsider(one, two): a name other than the two is used (a mistake)
verbless(): a piece between full stops has no verb (a mistake)
stuffed(): a name or thing stands four times or more (a mistake)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """A criterion in the making; `check` is None when a judge must read it."""

  kind: str
  text: str
  check: str | None
  negative: bool = False


def items(request: StoryRequest) -> dict[str, list[Item]]:
  """Every criterion that can be written for a request, by kind."""
  a, b = request.first, request.second
  thing, noun, place = request.thing, request.trouble, request.place

  def make(kind: str, text: str, check: str | None, negative: bool = False):
    return Item(kind=kind, text=text, check=check, negative=negative)

  made = [
    *(
      make(
        "mention_person",
        f"The word {person} stands somewhere in the story.",
        f"mentions({person})",
      )
      for person in (a, b)
    ),
    make("loose_thing", f"The story brings in the {thing} in some way.", None),
    make("loose_place", f"The {place} plays a part in the story.", None),
    make(
      "loose_trouble",
      f"The story touches on the {noun} and its state in some way.",
      None,
    ),
    make(
      "loose_mood",
      f"The story has a feeling that can be called {request.mood}.",
      None,
    ),
    *(
      make(
        "uses",
        f"One sentence tells that {person} does something with the {thing}.",
        f"uses({person}, {thing})",
      )
      for person in (a, b)
    ),
    make(
      "fetched",
      f"Somebody finds, sees or brings the {thing}, whatever it is called.",
      f"fetched({thing})",
    ),
    make(
      "put_to_work",
      f"The {thing} is put to work on the {noun} itself within one sentence.",
      f"put_to_work({thing}, {noun})",
    ),
    make(
      "before",
      f"The trouble with the {noun} is told a sentence before the {thing}"
      " first comes up.",
      f"before({noun}, {thing})",
    ),
    make(
      "speaks",
      "Somebody says something aloud, given in spoken words of their own.",
      "speaks()",
    ),
    make(
      "acts_apart",
      f"{a} and {b} each do something in a sentence of their own.",
      f"acts_apart({a}, {b})",
    ),
    make(
      "time_steps",
      "Words of time, such as then or at last, lead from one event to the"
      " next.",
      "time_steps()",
    ),
    make(
      "poem", "The text is laid out as a poem with rhyming lines.", None, True
    ),
    make(
      "machine", "A computer or another machine of today comes up.", None, True
    ),
    make(
      "repeats",
      "One and the same sentence is told twice in the story.",
      "repeats()",
      True,
    ),
    make(
      "outsider",
      f"A person other than {a} and {b} is called by a name.",
      f"outsider({a}, {b})",
      True,
    ),
    make(
      "verbless",
      "A piece between two full stops is a bare list of words with no verb.",
      "verbless()",
      True,
    ),
    make(
      "stuffed",
      "One name or thing is said over and over, four times or more.",
      "stuffed()",
      True,
    ),
  ]
  kinds: dict[str, list[Item]] = {}
  for item in made:
    kinds.setdefault(item.kind, []).append(item)
  return kinds


_LOOSE: Final = (
  re.compile(r"^The story brings in the (?P<word>\w+) in some way\.$"),
  re.compile(r"^The (?P<word>\w+) plays a part in the story\.$"),
  re.compile(r"^The story touches on the (?P<word>\w+) and its state"),
  re.compile(r"^The story has a feeling that can be called (?P<word>\w+)\.$"),
)


# Faults of a checklist, worded as avoided, with the word that gives them away.
FREE_OF: Final[Mapping[str, str]] = {
  "Plain prose is used throughout, and nothing rhymes.": "rhyme",
  "Everything in it is of old times, and no computer comes up.": "computer",
}


def loose_met(text: str, answer: str, *, strict: bool) -> bool | None:
  """How the scripted judge reads a loosely worded criterion.

  The plain reading credits the bare word; the strict one wants it inside a
  piece of at least three words, so that a lone word earns nothing.

  Args:
    text: the criterion.
    answer: the story.
    strict: whether the strict note was appended.

  Returns:
    The verdict, or None when the criterion is not one this judge knows.
  """
  if text in FREE_OF:
    return FREE_OF[text] not in answer
  if text.startswith("The text is laid out as a poem"):
    return "rhyme" in answer
  if text.startswith("A computer or another machine"):
    return "computer" in answer
  for pattern in _LOOSE:
    if match := pattern.match(text):
      word = match["word"]
      if not strict:
        return word in words.plain(answer).split()
      return any(
        word in sentence and len(sentence) >= 3
        for sentence in words.sentences(answer)
      )
  return None


def kind_of(text: str, request: StoryRequest) -> str | None:
  """The kind of a criterion of this world, None for any other text."""
  for kind, made in items(request).items():
    if any(item.text == text for item in made):
      return kind
  return None
