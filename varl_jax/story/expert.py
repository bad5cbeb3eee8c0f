"""The hidden expert rubric: what a careful reader would look for.

Used for validation alone. Nothing that writes, judges or repairs rubrics, and
nothing that trains, may import this module; `tests/story/expert_test.py` reads
the imports and runs the loop with the module removed. Its ten checks share no
predicate with `criteria.REGISTRY` nor with the referee's features.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Final

from varl_jax.rubrics.scoring import rubric_score
from varl_jax.story import grammar, words
from varl_jax.story.requests import StoryRequest


@functools.cache
def _sentence() -> re.Pattern[str]:
  return grammar.sentence_pattern()


def _has(text: str, phrase: str) -> bool:
  return f" {phrase} " in f" {text} "


def _lines(answer: str) -> list[str]:
  return [" ".join(sentence) for sentence in words.sentences(answer)]


def fluent(request: StoryRequest, answer: str) -> bool:
  """Nine of ten sentences can be derived from the grammar."""
  del request
  lines = _lines(answer)
  good = sum(_sentence().fullmatch(line) is not None for line in lines)
  return bool(lines) and good >= 0.9 * len(lines)


def whole(request: StoryRequest, answer: str) -> bool:
  """The last sentence is finished and says more than two words."""
  del request
  lines = _lines(answer)
  return answer.endswith(" .") and bool(lines) and len(lines[-1].split()) > 2


def length_as_asked(request: StoryRequest, answer: str) -> bool:
  """The number of sentences is as asked, one more or less allowed."""
  return abs(len(_lines(answer)) - request.sentences) <= 1


def scene_set(request: StoryRequest, answer: str) -> bool:
  """The first sentence brings a person to the place, named or described."""
  lines = _lines(answer)
  if not lines:
    return False
  place = (request.place, words.PLACES[request.place])
  person = (request.first, request.second, "friends")
  return (
    any(_has(lines[0], p) for p in place)
    and any(_has(lines[0], p) for p in person)
    and any(_has(lines[0], w) for w in ("came", "met", "walked", "sat"))
  )


def trouble_shown(request: StoryRequest, answer: str) -> bool:
  """What the trouble does is shown, rather than its state named."""
  return _has(answer, words.TROUBLES[request.trouble].broken)


def setback(request: StoryRequest, answer: str) -> bool:
  """Something is tried or awaited in vain."""
  del request
  return any(
    _has(line, "but") and (_has(line, "nothing") or _has(line, "no"))
    for line in _lines(answer)
  )


def mended(request: StoryRequest, answer: str) -> bool:
  """The end of the trouble is shown, and not in the first two sentences."""
  fixed = words.TROUBLES[request.trouble].fixed
  return any(_has(line, fixed) for line in _lines(answer)[2:])


def means_to_end(request: StoryRequest, answer: str) -> bool:
  """The thing, named or described, is handled one or two sentences earlier."""
  thing = words.OBJECTS[request.thing]
  fixed = words.TROUBLES[request.trouble].fixed
  lines = _lines(answer)
  ends = [i for i, line in enumerate(lines) if _has(line, fixed)]
  handled = [
    i
    for i, line in enumerate(lines)
    if _has(line, thing.verb)
    and (_has(line, request.thing) or _has(line, thing.other))
  ]
  return any(0 < end - use <= 2 for end in ends for use in handled)


def feeling_shown(request: StoryRequest, answer: str) -> bool:
  """The last sentence shows the mood by what the people do or feel."""
  lines = _lines(answer)
  return bool(lines) and _has(lines[-1], words.MOODS[request.mood])


def cohesive(request: StoryRequest, answer: str) -> bool:
  """A pronoun stands for somebody or something already named."""
  lines = _lines(answer)
  named = [
    i
    for i, line in enumerate(lines)
    if _has(line, request.first)
    or _has(line, request.second)
    or _has(line, "friends")
  ]
  later = lines[named[0] + 1 :] if named else []
  return any(
    _has(line, pronoun) for line in later for pronoun in ("he", "she", "they")
  )


CHECKS: Final[Mapping[str, Callable[[StoryRequest, str], bool]]] = {
  "fluent": fluent,
  "whole": whole,
  "length_as_asked": length_as_asked,
  "scene_set": scene_set,
  "trouble_shown": trouble_shown,
  "setback": setback,
  "mended": mended,
  "means_to_end": means_to_end,
  "feeling_shown": feeling_shown,
  "cohesive": cohesive,
}


def expert_checks(request: StoryRequest, answer: str) -> dict[str, bool]:
  """Every hidden check on one answer, by name."""
  text = words.plain(answer)
  return {name: check(request, text) for name, check in CHECKS.items()}


def expert_score(met: Mapping[str, bool]) -> float:
  """The share of the given checks that are met, each worth ten points."""
  return rubric_score([10.0] * len(met), list(met.values()))
