"""Scripts of the roles that read: judge, referee, analyst, auditor, summary.

The referee and the analyst go by the shape of a text (length of sentences,
variety of words), which says something about quality but not all of it: that
is what makes them as fallible as a model would be.
"""

import json
import re
from collections.abc import Sequence

from varl_jax.llm.scripted_chat import Reading, Responder
from varl_jax.story import criteria, graders, requests, revision, words, writers


def judge(reading: Reading) -> str:
  """Judge: one criterion, one answer; strict when the note is appended."""
  blocks = reading.blocks
  outside = reading.user[reading.user.rfind("<<<END ") :]
  met = criteria.loose_met(
    blocks["CRITERION"],
    blocks["ANSWER"],
    strict="strict" in outside.lower(),
  )
  if met is None:
    return json.dumps(
      {"explanation": "The criterion cannot be read.", "criteria_met": None}
    )
  reason = "The story has it." if met else "The story lacks it."
  return json.dumps({"explanation": reason, "criteria_met": met})


def _shape(answer: str) -> tuple[float, int]:
  told = words.sentences(answer)
  length = sum(map(len, told))
  return length / max(1, len(told)), len({w for s in told for w in s})


def quality(answer: str) -> float:
  """The referee's taste, in [0, 2]: variety, length, middling sentences.

  It favours long texts, rambling ones too, as a hurried reader does.
  """
  mean, distinct = _shape(answer)
  return (
    min(1.0, distinct / 20)
    + 0.6 * min(1.0, len(answer.split()) / 36)
    + 0.4 * max(0.0, 1 - abs(mean - 5.5) / 3)
  )


def referee(reading: Reading) -> str:
  """Blind referee: tiers by `quality`, a clear step down opens a new tier."""
  answers = {
    name.removeprefix("ANSWER "): text
    for name, text in reading.blocks.items()
    if name.startswith("ANSWER ")
  }
  worth = {label: quality(text) for label, text in answers.items()}
  tiers: list[list[str]] = []
  last = 0.0
  for label in sorted(worth, key=lambda label: (-worth[label], label)):
    if not tiers or last - worth[label] > 0.12:
      tiers.append([])
    tiers[-1].append(label)
    last = worth[label]
  return json.dumps({"tiers": tiers, "notes": "By how it reads."})


def _parted(
  request: requests.StoryRequest, answer: str
) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
  """Different sentences that tell something of the request, and the others."""
  place = words.PLACES[request.place].split()[-1]
  thing = words.OBJECTS[request.thing].other.split()[-1]
  about = {request.first, request.second, request.place, request.thing}
  about |= {request.trouble, place, thing, "it", "he", "she"}
  every = {tuple(sentence) for sentence in words.sentences(answer)}
  told = {s for s in every if about & set(s) and words.VERBS & set(s)}
  return told, every - told


def _told(request: requests.StoryRequest, answer: str) -> int:
  """Sentences that tell something of the request, those asked for at most."""
  return min(len(_parted(request, answer)[0]), request.sentences)


def check_pair(reading: Reading) -> str:
  """Pair checker: by `_told`, which a list or a ramble does not raise."""
  blocks = reading.blocks
  request = requests.read_request(blocks["REQUEST"])
  first, second = (_told(request, blocks[name]) for name in ("FIRST", "SECOND"))
  better = "equal"
  if first != second:
    better = "first" if first > second else "second"
  return json.dumps({"better": better, "reason": "By what it tells."})


def _score(text: str) -> float:
  match = re.search(r"-?\d+(?:\.\d+)?", text)
  return float(match[0]) if match else 0.0


def analyse(reading: Reading) -> str:
  """Analyst: separates a paid word list from a story that fell short."""
  score = _score(reading.blocks["SCORE"])
  mean, distinct = _shape(reading.blocks["ANSWER"])
  reply = {
    "failure_mode": "none",
    "rubric_defect": "none",
    "task_defect": "none",
    "verdict": "model_succeeded",
    "gap": "nothing to add",
  }
  if score >= 0.5 and mean < 4.6:
    reply.update(
      failure_mode="instruction_format",
      rubric_defect="gameable_restates_task",
      verdict="generator_at_fault",
      gap="words are named and nothing is told",
    )
  elif score >= 0.7 and distinct < 18:
    reply.update(
      rubric_defect="untestable_vague",
      task_defect="too_easy",
      verdict="generator_at_fault",
      gap="a bare report earns nearly everything",
    )
  elif score < 0.5:
    reply.update(
      failure_mode="incompleteness",
      verdict="model_failed_fair_task",
      gap="the events asked for are left out",
    )
  return json.dumps(reply)


def summarize(reading: Reading) -> str:
  """Summarizer: the first line of each hit."""
  hits = reading.blocks["HITS"].splitlines()
  return json.dumps({"brief": " ".join(hits[:3]) or "No hit answers this."})


def _points(lines: str) -> float:
  return sum(abs(float(line.split(" | ")[0])) for line in lines.splitlines())


def _leftover(earlier: str, verdicts: str) -> bool:
  """Whether earlier repairs carry most of what sets the answers apart."""
  apart = "\n".join(
    line
    for line in verdicts.splitlines()
    if line.endswith(("exploit met | honest not met", "not met | honest met"))
  )
  return bool(earlier) and 2 * _points(earlier) > _points(apart)


def audit(reading: Reading) -> str:
  """Auditor: checks the pair by `_told` first, then the kind of gap."""
  blocks = reading.blocks
  request = requests.read_request(blocks["TASK"])
  exploit, honest = blocks["EXPLOIT ANSWER"], blocks["HONEST ANSWER"]
  if _told(request, exploit) >= _told(request, honest):
    order: Sequence[str] = ("incorrect_pair", "ambiguous_rubrics")
  elif blocks["ADDED CRITERIA"].startswith("-") or (
    len(_parted(request, exploit)[1]) > len(_parted(request, honest)[1])
  ):
    order = ("missed_negatives", "ambiguous_rubrics")
  elif "in some way" in blocks["RUBRIC"] or "plays a part" in blocks["RUBRIC"]:
    order = ("ambiguous_rubrics", "missed_negatives")
  else:
    order = ("missed_positives", "ambiguous_rubrics")
  return json.dumps(
    {
      "category": order[0],
      "second_choice": order[1],
      "leftover": _leftover(blocks["EARLIER REPAIRS"], blocks["VERDICTS"]),
      "reason": "By the shape of both answers and what was added.",
    }
  )


RESPONDERS: dict[str, Responder] = {
  "solver": writers.answer_honestly,
  "proposer": writers.propose,
  "generator": writers.generate,
  "adversary": writers.attack,
  "repairer": writers.repair,
  "patcher": writers.patch,
  "meta_optimizer": writers.evolve,
  "memo_optimizer": writers.remember,
  "judge": judge,
  "referee": referee,
  "analyst": analyse,
  "summarizer": summarize,
  "auditor": audit,
  "pair_checker": check_pair,
  "decomposer": graders.decompose,
  "checklist": graders.write_checklist,
  "rater": graders.rate,
  "item_writer": graders.write_items,
  "reviser": revision.revise,
}
