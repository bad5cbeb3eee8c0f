"""Scripts of the roles of RaR and SibylSense.

They know what the untuned generator knows, and as little of what the hidden
expert looks for. What each has beyond it is what its method gives it: the
author of checklists sees a reference answer, and takes up some of what it finds
there; the item writer sees which items told answers apart, and tries a kind of
its own now and then.
"""

import dataclasses
import json
import random
from typing import Final

from varl_jax.llm.scripted_chat import Reading
from varl_jax.rubrics.checklists import WEIGHTS
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.story import criteria, words, writers
from varl_jax.story.requests import StoryRequest, read_request

_CHECKS: Final = CheckRegistry(checks=criteria.REGISTRY)
_STATED: Final = {"Essential": 5, "Important": 4, "Optional": 2, "Pitfall": -2}
_TITLE_WORDS: Final = 4
# How often an item follows the memory, and how often another is of a kind that
# the untuned generator does not write.
_FOLLOW: Final = 0.8
_TRY: Final = 0.25
_CATEGORY: Final = {
  "before": "reasoning",
  "put_to_work": "reasoning",
  "speaks": "delivery",
  "time_steps": "delivery",
  "acts_apart": "delivery",
  "loose_mood": "delivery",
}


def decompose(reading: Reading) -> str:
  """Decomposer: the same trouble in another mood, no longer than the whole."""
  rng = reading.rng
  request = read_request(reading.blocks["TASK"])
  counts = [word for word, n in words.COUNTS.items() if n <= request.sentences]
  moods = rng.sample(list(words.MOODS), int(reading.blocks["COUNT"]))
  parts = [
    dataclasses.replace(request, mood=mood, count=rng.choice(counts))
    for mood in moods
  ]
  return json.dumps({"parts": [part.text for part in parts]})


def _found(request: StoryRequest, reference: str) -> list[criteria.Item]:
  """Specific items that hold of a reference answer."""
  library = criteria.items(request)
  return [
    item
    for kind in writers.LESSONS
    if kind not in writers.FAULTS
    for item in library[kind]
    if item.check and _CHECKS.run(item.check, reference)
  ]


def write_checklist(reading: Reading) -> str:
  """Checklist author: the request's words, and some of what is in REFERENCE."""
  blocks, rng = reading.blocks, reading.rng
  request = read_request(blocks["TASK"])
  library = criteria.items(request)
  plain = [item for kind in writers.UNTUNED for item in library[kind]]
  found = _found(request, blocks["REFERENCE"])
  rng.shuffle(plain)
  rng.shuffle(found)
  chosen = [("Essential", item) for item in plain[:3]]
  chosen += [("Important", item) for item in found[: rng.randint(1, 3)]]
  chosen += [("Optional", item) for item in plain[3:]]
  items = [_entry(category, item.text, item.check) for category, item in chosen]
  if blocks["PITFALLS"] == "avoided":
    items.append(_entry("Pitfall", rng.choice(list(criteria.FREE_OF)), None))
  else:
    kind = rng.choice(writers.UNTUNED_NEGATIVE)
    items.append(_entry("Pitfall", library[kind][0].text, None))
  return json.dumps({"items": items})


def _entry(category: str, text: str, check: str | None) -> dict[str, object]:
  entry: dict[str, object] = {
    "title": " ".join(text.split()[:_TITLE_WORDS]),
    "description": text,
    "category": category,
    "weight": _STATED[category],
  }
  return entry | ({"check": check} if check else {})


def rate(reading: Reading) -> str:
  """Rater: reads each item as the judge does, then rounds."""
  blocks = reading.blocks
  earned = possible = 0.0
  for line in blocks["CHECKLIST"].splitlines():
    category, text, *check = line.split(" | ")
    weight = WEIGHTS[category]  # pyright: ignore[reportArgumentType]
    if check:
      holds = _CHECKS.run(check[0], blocks["ANSWER"])
    else:
      holds = criteria.loose_met(text, blocks["ANSWER"], strict=False) is True
    if category == "Pitfall" and blocks["PITFALLS"] == "committed":
      earned -= weight * holds
    else:
      possible += weight
      earned += weight * holds
  share = max(0.0, earned / possible)
  return json.dumps(
    {
      "explanation": "By what the checklist asks for.",
      "rating": 1 + round(9 * share),
    }
  )


def write_items(reading: Reading) -> str:
  """Item writer: the kinds in MEMORY, else untuned ones and a try."""
  blocks, rng = reading.blocks, reading.rng
  library = criteria.items(read_request(blocks["TASK"]))
  remembered = list(writers.kinds_seen(blocks.get("MEMORY", "")))
  items = []
  for negative, count in (
    (False, int(blocks["POSITIVE COUNT"])),
    (True, int(blocks["NEGATIVE COUNT"])),
  ):
    plain = writers.UNTUNED_NEGATIVE if negative else writers.UNTUNED
    kinds = (
      _of_sign(remembered, library, negative),
      _of_sign(list(writers.LESSONS), library, negative),
      _of_sign(list(plain), library, negative),
    )
    items += _drawn(kinds, count, rng)
  return json.dumps({"items": items})


def _of_sign(
  kinds: list[str],
  library: dict[str, list[criteria.Item]],
  negative: bool,
) -> list[criteria.Item]:
  return [
    item
    for kind in kinds
    for item in library[kind]
    if item.negative == negative
  ]


def _drawn(
  kinds: tuple[list[criteria.Item], ...], count: int, rng: random.Random
) -> list[dict[str, object]]:
  """Draws items of the remembered, of other and of untuned kinds."""
  remembered, others, plain = kinds
  taken: list[criteria.Item] = []
  for _ in range(count):
    chosen = plain
    if remembered and rng.random() < _FOLLOW:
      chosen = remembered
    elif rng.random() < _TRY:
      chosen = others
    left = [item for item in chosen if item not in taken] or [
      item for item in (*plain, *others) if item not in taken
    ]
    taken.append(rng.choice(left))
  return [
    {
      "category": (
        "fault" if item.negative else _CATEGORY.get(item.kind, "substance")
      ),
      **writers.as_json(item, rng),
    }
    for item in taken
  ]
