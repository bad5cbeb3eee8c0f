"""Scripts of the roles that write: tasks, rubrics, answers, repairs, guidance.

Each takes the text a language model would get and returns the text it would
send back. They know the world's grammar and verifiers, and nothing of what the
hidden expert looks for.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from varl_jax.llm.scripted_chat import Reading
from varl_jax.story import criteria, grammar, words
from varl_jax.story.requests import (
  StoryRequest,
  draw_request,
  read_request,
)

UNTUNED: Final = (
  "mention_person",
  "loose_thing",
  "loose_place",
  "loose_trouble",
  "loose_mood",
)
UNTUNED_NEGATIVE: Final = ("poem", "machine")

# One sentence of guidance or memo for each kind of criterion that can be
# taught; a generator that reads the sentence starts to write that kind.
LESSONS: Final = {
  "uses": "Ask for a person doing something with the thing.",
  "before": "Ask that the trouble is told before the thing comes up.",
  "fetched": "Ask that somebody finds or brings the thing.",
  "put_to_work": "Ask that the thing is put to work on what is in trouble.",
  "speaks": "Ask for somebody who speaks aloud.",
  "acts_apart": "Ask that both people act, each in their own sentence.",
  "time_steps": "Ask for words of time between events.",
  "repeats": "Fine a sentence that is told twice.",
  "outsider": "Fine a name that was never asked for.",
  "verbless": "Fine a piece without a verb.",
  "stuffed": "Fine a name or thing that is said over and over.",
}
# Drafts of a memo before one that HISTORY shows is handed in all the same.
_ATTEMPTS: Final = 6
FAULTS: Final = frozenset(("repeats", "outsider", "verbless", "stuffed"))
# What a repair swaps in: all that is taught but the loosest of them.
_SPECIFIC: Final = tuple(
  kind for kind in LESSONS if kind not in FAULTS and kind != "uses"
)


def propose(reading: Reading) -> str:
  """Query proposer: requests drawn from the training combinations."""
  count = int(reading.blocks["COUNT"])
  requests = [
    draw_request(reading.rng, validation=False, red_team=0.1)
    for _ in range(count)
  ]
  return json.dumps(
    {
      "requests": [
        {"text": r.text, "use_case": r.mood, "red_team": r.alone}
        for r in requests
      ]
    }
  )


def _points(rng: random.Random, negative: bool) -> int:
  points = rng.randint(5, 10)
  return -points if negative else points


def as_json(item: criteria.Item, rng: random.Random) -> dict[str, object]:
  """The item as a generator writes it, with points drawn for its sign."""
  made: dict[str, object] = {
    "criterion_text": item.text,
    "points": _points(rng, item.negative),
  }
  if item.check:
    made["check"] = item.check
  return made


def _taught(text: str) -> list[str]:
  return [kind for kind, lesson in LESSONS.items() if lesson in text]


def _draw(
  request: StoryRequest,
  kinds: Iterable[str],
  fallback: Iterable[str],
  count: int,
  rng: random.Random,
) -> list[criteria.Item]:
  """Draws items: four in five of the taught kinds while there are any."""
  library = criteria.items(request)
  taught = [item for kind in kinds for item in library[kind]]
  plain = [item for kind in fallback for item in library[kind]]
  rng.shuffle(taught)
  rng.shuffle(plain)
  drawn = []
  for _ in range(count):
    use_taught = taught and (rng.random() < 0.8 or not plain)
    drawn.append((taught if use_taught else plain).pop())
  return drawn


def generate(reading: Reading) -> str:
  """Task and rubric in one reply, following guidance and memo."""
  blocks, rng = reading.blocks, reading.rng
  request = read_request(blocks["REQUEST"])
  taught = _taught(blocks.get("GUIDANCE", "") + blocks.get("MEMO", ""))
  chosen = _draw(
    request,
    [kind for kind in taught if kind not in FAULTS],
    UNTUNED,
    int(blocks["POSITIVE COUNT"]),
    rng,
  )
  chosen += _draw(
    request,
    [kind for kind in taught if kind in FAULTS],
    UNTUNED_NEGATIVE,
    int(blocks["NEGATIVE COUNT"]),
    rng,
  )
  return json.dumps(
    {
      "question": request.text,
      "use_case": request.mood,
      "rubric_items": [as_json(item, rng) for item in chosen],
    }
  )


def answer_honestly(reading: Reading) -> str:
  """The honest answerer: a good story for the request alone."""
  return grammar.write("good", read_request(reading.user), reading.rng)


_LINE: Final = re.compile(
  r"^(?P<points>[+-]\d+(?:\.\d+)?) \| (?P<text>[^|]+?)(?: \| (?P<check>.+))?$",
  re.M,
)


def rubric_lines(text: str) -> list[tuple[float, str, str]]:
  """Points, text and check ("" for none) of each line of a rubric."""
  return [
    (float(m["points"]), m["text"], m["check"] or "")
    for m in _LINE.finditer(text)
  ]


def attack(reading: Reading) -> str:
  """The adversary: the cheapest words that each criterion could accept.

  What would have to be worked out it holds back more often than not.
  """
  rng = reading.rng
  request = read_request(reading.blocks["TASK"])
  rubric = rubric_lines(reading.blocks["RUBRIC"])
  bare = not any(check.startswith("verbless") for _, _, check in rubric)
  parts = []
  for points, text, check in rubric:
    if points > 0:
      parts.append(_cheapest(text, check, request, bare, rng))
  parts.append("and so on ." if bare else "it was so .")
  return " ".join(dict.fromkeys(parts))


def _cheapest(
  text: str, check: str, request: StoryRequest, bare: bool, rng: random.Random
) -> str:
  name, _, rest = check.partition("(")
  args = [part.strip() for part in rest.rstrip(")").split(",")]

  def say(word: str) -> str:
    return f"the {word} , as asked ." if bare else f"there was {word} ."

  thing = words.OBJECTS[request.thing]
  if name == "uses":
    done = f"{args[0]} used the {args[1]} ."
    return done if rng.random() < 0.6 else say(f"{args[0]} and {args[1]}")
  if name == "fetched":
    done = f"somebody saw the {args[0]} ."
    return done if rng.random() < 0.4 else say(args[0])
  if name == "put_to_work":
    done = f"{thing.verb} the {args[0]} {thing.preposition} the {args[1]} ."
    return done if rng.random() < 0.35 else say(f"{args[0]} and {args[1]}")
  if name == "before":
    return f"{say(args[0])} {say(args[1])}"
  if name == "speaks":
    done = f"{request.first} said , it is as asked ."
    return done if rng.random() < 0.5 else say("talk")
  if name == "acts_apart":
    done = " ".join(f"{person} was there ." for person in args)
    return done if rng.random() < 0.4 else say(" and ".join(args))
  if name == "time_steps":
    return "soon . then ." if bare else "soon it was . then it was ."
  if name == "mentions":
    return say(args[0])
  named = [
    word
    for word in re.findall(r"\w+", text)
    if word in (request.thing, request.place, request.trouble, request.mood)
  ]
  return " ".join(say(word) for word in named) or say(request.trouble)


def repair(reading: Reading) -> str:
  """Admission repairer: swaps loose criteria for specific ones."""
  rng = reading.rng
  request = read_request(reading.blocks["TASK"])
  library = criteria.items(request)
  specific = [item for kind in _SPECIFIC for item in library[kind]]
  rng.shuffle(specific)
  kept = []
  for points, text, check in rubric_lines(reading.blocks["RUBRIC"]):
    kind = criteria.kind_of(text, request)
    loose = points > 0 and kind in UNTUNED and rng.random() < 0.8
    if not loose:
      kept.append({"criterion_text": text, "points": points})
      if check:
        kept[-1]["check"] = check
  wanted = len(rubric_lines(reading.blocks["RUBRIC"])) + rng.randint(0, 1)
  texts = {item["criterion_text"] for item in kept}
  for item in specific:
    if len(kept) < wanted and item.text not in texts:
      kept.append(as_json(item, rng))
  if rng.random() < 0.4 and "verbless()" not in reading.blocks["RUBRIC"]:
    kept.append(as_json(library["verbless"][0], rng))
  return json.dumps(
    {
      "question": request.text,
      "rubric_items": kept,
      "why_farmer_fails": "Naming things no longer earns the points.",
      "why_honest_passes": "A told story has people who act in order.",
    }
  )


def patch(reading: Reading) -> str:
  """Patcher: a noisy draw from the library; it cannot test what separates."""
  rng = reading.rng
  request = read_request(reading.blocks["TASK"])
  present = {text for _, text, _ in rubric_lines(reading.blocks["RUBRIC"])}
  choices = [
    item
    for made in criteria.items(request).values()
    for item in made
    if item.text not in present and len(item.text) >= 40
  ]
  chosen = rng.sample(choices, min(len(choices), rng.randint(3, 5)))
  told = words.sentences(reading.blocks["ANSWER A"])
  mean = sum(map(len, told)) / max(1, len(told))
  if mean < 4.5:
    mode = "keyword_stuffing"
  elif len(told) < 5:
    mode = "task_restatement"
  else:
    mode = "other"
  items = []
  for item in chosen:
    items.append(as_json(item, rng))
    items[-1]["why_separates"] = "B tells it and A leaves it out, or A errs."
  return json.dumps({"mode": mode, "items": items})


def _counted(text: str, name: str) -> int:
  match = re.search(rf"\b{name}\b\D*(\d+)", text)
  return int(match[1]) if match else 0


_SIGNS: Final = {
  "uses": "does something with the",
  "before": "is told a sentence before the",
  "fetched": "Somebody finds, sees or brings",
  "put_to_work": "is put to work on the",
  "speaks": "Somebody says something aloud",
  "acts_apart": "each do something in a sentence",
  "time_steps": "Words of time, such as",
  "repeats": "is told twice in the story",
  "outsider": "is called by a name",
  "verbless": "a bare list of words",
  "stuffed": "is said over and over, four",
}


def kinds_seen(text: str) -> Counter[str]:
  """How often each kind of taught criterion stands in a text."""
  return Counter(
    {kind: text.count(sign) for kind, sign in _SIGNS.items() if sign in text}
  )


def evolve(reading: Reading) -> str:
  """Meta-optimizer: lessons from counted diagnoses and accepted patches."""
  blocks = reading.blocks
  taught = _taught(blocks["GENERATOR GUIDANCE"])
  diagnoses = blocks["DIAGNOSES"]
  vague = _counted(diagnoses, "gameable_restates_task") + _counted(
    diagnoses, "untestable_vague"
  )
  if vague >= 3:
    ladder = [kind for kind in ("uses", "before") if kind not in taught]
    taught += ladder[:1]
  frequent = [
    kind
    for kind, count in kinds_seen(blocks.get("PATCHES", "")).most_common()
    if kind not in taught and count >= 2
  ]
  taught += frequent[:2]
  return json.dumps(
    {
      "query_proposer_guidance": (
        "Vary people, place, thing and trouble from request to request."
      ),
      "task_rubric_generator_guidance": " ".join(
        ["Write criteria that a reader can check."]
        + [LESSONS[kind] for kind in taught]
      ),
      "summary": f"Lessons in force: {', '.join(taught) or 'none'}.",
    }
  )


def remember(reading: Reading) -> str:
  """Memo optimizer: the kinds of criteria that held against the adversary."""
  taught = _taught(reading.blocks["MEMO"])
  held = kinds_seen(reading.blocks.get("PATCHES", ""))
  new = [kind for kind, _ in held.most_common() if kind not in taught]
  if not taught and not new:
    new = ["put_to_work", "verbless"]
  tried = reading.blocks.get("HISTORY", "")
  memo = reading.blocks["MEMO"]
  for _ in range(_ATTEMPTS):
    reading.rng.shuffle(new)
    kinds = (taught + new[: reading.rng.choice((1, 2))])[-6:]
    memo = " ".join(LESSONS[kind] for kind in kinds)
    if memo not in tried:
      break
  return json.dumps({"memo": memo})
