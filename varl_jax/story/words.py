"""The small lexicon of the story world: people, places, things, troubles.

Every story is lower-case words and punctuation with single spaces between, so
that a word is a token. Each thing has a name and a roundabout way to say it:
good stories use both, keyword lists only the names.
"""

import dataclasses
import functools
import re
from typing import Final

PEOPLE: Final = {
  "mia": "she",
  "tom": "he",
  "ana": "she",
  "ben": "he",
  "ivy": "she",
  "leo": "he",
  "zoe": "she",
  "max": "he",
  "eva": "she",
  "sam": "he",
  "lil": "she",
  "gus": "he",
}

PLACES: Final = {
  "barn": "old shed",
  "harbor": "edge of the sea",
  "market": "row of stalls",
  "forest": "tall trees",
  "school": "red brick house",
  "garden": "flower beds",
  "mill": "stone house",
  "castle": "high walls",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing:
  """An object: its roundabout name, and the words around it in use."""

  other: str
  verb: str
  preposition: str


OBJECTS: Final = {
  "rope": Thing(other="long cord", verb="tied", preposition="to"),
  "key": Thing(other="bit of metal", verb="turned", preposition="in"),
  "lamp": Thing(other="small light", verb="held", preposition="over"),
  "hammer": Thing(other="heavy tool", verb="swung", preposition="at"),
  "ladder": Thing(other="wooden steps", verb="leaned", preposition="on"),
  "map": Thing(other="paper chart", verb="spread", preposition="by"),
  "whistle": Thing(other="tin pipe", verb="blew", preposition="near"),
  "blanket": Thing(other="wool cover", verb="threw", preposition="across"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trouble:
  """What is wrong with a noun: its state, the same shown, and its mending."""

  state: str
  broken: str
  fixed: str


TROUBLES: Final = {
  "gate": Trouble(state="locked", broken="would not open", fixed="opened wide"),
  "bell": Trouble(state="stuck", broken="made no sound", fixed="rang again"),
  "boat": Trouble(
    state="adrift", broken="had floated away", fixed="came back to shore"
  ),
  "dog": Trouble(
    state="lost", broken="was nowhere to be seen", fixed="came running home"
  ),
  "bridge": Trouble(
    state="damaged", broken="had a gap in it", fixed="stood firm"
  ),
  "wheel": Trouble(
    state="jammed", broken="would not move", fixed="spun freely"
  ),
  "stove": Trouble(state="cold", broken="gave no heat", fixed="glowed warm"),
  "well": Trouble(
    state="dry", broken="gave no water", fixed="filled to the top"
  ),
}

MOODS: Final = {
  "calm": "felt at peace",
  "happy": "laughed out loud",
  "proud": "held their heads high",
  "brave": "were no longer afraid",
  "tender": "held hands",
  "hopeful": "looked to the morning",
}

COUNTS: Final = {"five": 5, "six": 6, "seven": 7}

VERBS: Final = frozenset(
  "came met walked was were saw pulled tried waited found ran brought said"
  " used fixed had made gave felt laughed held looked turned tied swung"
  " leaned spread blew threw opened rang stood spun glowed filled sang"
  " talked liked like moved changed would sat".split()
)

TIME_WORDS: Final = ("soon", "then", "at last", "slowly", "that night")


@functools.lru_cache(maxsize=4096)
def plain(text: str) -> str:
  """Lower case, punctuation set apart; the policy's own texts stay as they are.

  Lets the checks read what a model with capital letters and commas writes.
  """
  spaced = re.sub(r"([.,!?;:\"])", r" \1 ", text.lower())
  return " ".join(re.sub(r"[!?;]", ".", spaced).split())


def sentences(text: str) -> list[list[str]]:
  """Splits a story into its sentences' words, full stops removed.

  The piece after the last full stop, if any, is a sentence too.
  """
  pieces = [piece.split() for piece in f" {plain(text)} ".split(" . ")]
  return [piece for piece in pieces if piece]
