"""Requests for a story: their fields, their wording, and reading them back."""

import dataclasses
import random
import re

from varl_jax.story import words


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoryRequest:
  """What a story is asked to be about.

  Attributes:
    first: a person of `words.PEOPLE`.
    second: another person.
    place: of `words.PLACES`.
    thing: of `words.OBJECTS`.
    trouble: of `words.TROUBLES`.
    mood: of `words.MOODS`.
    count: the number of sentences as a word.
    alone: whether nobody else may appear (the red-team form).
  """

  first: str
  second: str
  place: str
  thing: str
  trouble: str
  mood: str
  count: str
  alone: bool = False

  @property
  def text(self) -> str:
    """The request as a user would type it."""
    state = words.TROUBLES[self.trouble].state
    tail = " do not add other people ." if self.alone else ""
    return (
      f"write a story about {self.first} and {self.second} at the"
      f" {self.place} with a {self.thing} . the {self.trouble} is {state} ."
      f" the mood is {self.mood} . use {self.count} sentences .{tail}"
    )

  @property
  def sentences(self) -> int:
    """How many sentences are asked for."""
    return words.COUNTS[self.count]


_PATTERN = re.compile(
  r"write a story about (?P<first>\w+) and (?P<second>\w+) at the"
  r" (?P<place>\w+) with a (?P<thing>\w+) \. the (?P<trouble>\w+) is \w+ \."
  r" the mood is (?P<mood>\w+) \. use (?P<count>\w+) sentences \."
  r"(?P<alone> do not add other people \.)?"
)


def read_request(text: str) -> StoryRequest:
  """Finds the request in a text.

  Raises:
    ValueError: the text holds none.
  """
  match = _PATTERN.search(text)
  if not match:
    raise ValueError(f"No story request in: {text[:80]!r}.")
  fields = match.groupdict()
  return StoryRequest(**{**fields, "alone": fields["alone"] is not None})


def held_out(request: StoryRequest) -> bool:
  """Whether the request belongs to validation, which training never draws.

  A fixed fifth of the combinations of place, thing and trouble is kept back.
  """
  index = (
    list(words.PLACES).index(request.place)
    + 2 * list(words.OBJECTS).index(request.thing)
    + 3 * list(words.TROUBLES).index(request.trouble)
  )
  return index % 5 == 0


def draw_request(
  rng: random.Random, *, validation: bool, red_team: float = 0.0
) -> StoryRequest:
  """Draws a request of the training or of the validation combinations."""
  while True:
    first, second = rng.sample(list(words.PEOPLE), 2)
    request = StoryRequest(
      first=first,
      second=second,
      place=rng.choice(list(words.PLACES)),
      thing=rng.choice(list(words.OBJECTS)),
      trouble=rng.choice(list(words.TROUBLES)),
      mood=rng.choice(list(words.MOODS)),
      count=rng.choice(list(words.COUNTS)),
      alone=rng.random() < red_team,
    )
    if held_out(request) == validation:
      return request
