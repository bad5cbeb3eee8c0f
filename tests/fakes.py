"""A tiny deterministic world: scripted models, checks and a fake solver.

Tasks ask to tell of three things. A bare list of the things earns every
untuned criterion; a sentence about two of them earns less and is better.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence

from varl_jax import config as configs
from varl_jax.llm.scripted_chat import Reading, ScriptedChat
from varl_jax.roles.bundle import Roles, make_roles
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.types import (
  Criterion,
  GradedAnswer,
  Message,
  Rollout,
  Rubric,
  Task,
  Verdict,
)

THINGS = ("fox", "lamp", "rope", "door", "boat", "kite", "well", "drum")
VERB = "found"


def has(answer: str, word: str) -> bool:
  """The word is in the answer."""
  return word in answer.replace(".", " ").split()


def sentence(answer: str) -> bool:
  """Somebody does something, and it ends with a full stop."""
  return VERB in answer and "." in answer


def bare_list(answer: str) -> bool:
  """Words without any verb."""
  return VERB not in answer


CHECKS = CheckRegistry(
  checks={"has": has, "sentence": sentence, "bare_list": bare_list}
)


def listing(words: Sequence[str]) -> str:
  """The exploit."""
  return "All of these are in it: " + " ".join(words)


def story(words: Sequence[str]) -> str:
  """A better answer."""
  return f"Once the child {VERB} the {' and the '.join(words)} at home."


def words_of(text: str) -> list[str]:
  """The things a text names, in order."""
  return [word for word in text.replace(".", " ").split() if word in THINGS]


def proposer(reading: Reading) -> str:
  requests = []
  for _ in range(int(reading.blocks["COUNT"])):
    words = reading.rng.sample(THINGS, 3)
    requests.append(
      {
        "text": f"Tell of {' '.join(words)}",
        "use_case": reading.rng.choice(["tale", "note"]),
        "red_team": reading.rng.random() < 0.1,
      }
    )
  return json.dumps({"requests": requests})


def generator(reading: Reading) -> str:
  words = words_of(reading.blocks["REQUEST"])
  count = int(reading.blocks["POSITIVE COUNT"])
  items = [
    {
      "criterion_text": f"Brings the {word} into the text.",
      "points": 8,
      "check": f"has({word})",
    }
    for word in (words * 2)[:count]
  ]
  if int(reading.blocks["NEGATIVE COUNT"]):
    items.append(
      {"criterion_text": "Speaks of a 'dragon' at length.", "points": -6}
    )
  if reading.rng.random() < 0.1:
    items[0]["criterion_text"] = "The answer brings it in."
  return json.dumps(
    {
      "question": reading.blocks["REQUEST"],
      "use_case": reading.blocks["USE CASE"],
      "rubric_items": items,
    }
  )


def adversary(reading: Reading) -> str:
  words = words_of(reading.blocks["TASK"])
  if "sentence()" in reading.blocks["RUBRIC"]:
    if reading.rng.random() < 0.5:
      words = [*words, VERB + "."]
  return listing(words)


def solver(reading: Reading) -> str:
  words = words_of(reading.user)
  return story(words[: reading.rng.choice([1, 2, 2])])


def judge(reading: Reading) -> str:
  criterion = reading.blocks["CRITERION"]
  wanted = criterion.split("'")[1] if "'" in criterion else "\0"
  met = wanted in reading.blocks["ANSWER"]
  return json.dumps({"explanation": wanted, "criteria_met": met})


def referee(reading: Reading) -> str:
  labels: dict[bool, list[str]] = {True: [], False: []}
  for name, text in reading.blocks.items():
    if name.startswith("ANSWER "):
      labels[VERB in text and len(words_of(text)) > 0].append(name[-1])
  tiers = [tier for tier in (labels[True], labels[False]) if tier]
  return json.dumps({"tiers": tiers, "notes": "Sentences first."})


SENTENCE_ITEM = {
  "criterion_text": "Tells in a whole sentence what somebody did there.",
  "points": 9,
  "check": "sentence()",
}
LIST_ITEM = {
  "criterion_text": "Strings the things together as a bare list of words.",
  "points": -7,
  "check": "bare_list()",
}


def repairer(reading: Reading) -> str:
  items = []
  for line in reading.blocks["RUBRIC"].splitlines():
    points, text, *check = line.split(" | ")
    item = {"criterion_text": text, "points": float(points)}
    items.append(item | ({"check": check[0]} if check else {}))
  if reading.rng.random() < 0.7:
    items.append(SENTENCE_ITEM | {"points": 14})
  return json.dumps(
    {
      "question": reading.blocks["TASK"].removeprefix("user: "),
      "rubric_items": items,
      "why_farmer_fails": "No sentence.",
      "why_honest_passes": "A sentence.",
    }
  )


def patcher(reading: Reading) -> str:
  choices = [SENTENCE_ITEM, LIST_ITEM, SENTENCE_ITEM | {"points": 2}]
  items = [
    item | {"why_separates": "Only one of them does."}
    for item in choices
    if reading.rng.random() < 0.7
  ]
  if not items:
    return json.dumps({"mode": "none", "items": []})
  return json.dumps({"mode": "keyword_stuffing", "items": items})


def analyst(reading: Reading) -> str:
  return json.dumps(
    {
      "failure_mode": "incompleteness",
      "rubric_defect": "gameable_restates_task",
      "task_defect": "none",
      "verdict": reading.rng.choice(
        ["generator_at_fault", "model_failed_fair_task"]
      ),
      "gap": "tells too little",
    }
  )


def meta_optimizer(reading: Reading) -> str:
  return json.dumps(
    {
      "query_proposer_guidance": f"Vary things, {reading.rng.random():.3f}.",
      "task_rubric_generator_guidance": "Ask for what happens.",
      "summary": "More variety.",
    }
  )


def memo_optimizer(reading: Reading) -> str:
  return json.dumps({"memo": f"Lists must not pay ({reading.rng.random()})."})


def decomposer(reading: Reading) -> str:
  words = words_of(reading.blocks["TASK"])
  parts = [f"Tell of {' '.join(words[n:] + words[:n])}" for n in range(3)]
  return json.dumps({"parts": parts[: int(reading.blocks["COUNT"])]})


def checklist(reading: Reading) -> str:
  """Essential things, an important sentence, optional rest, one pitfall."""
  words = words_of(reading.blocks["TASK"])
  items = [
    ("Essential", f"Brings the {word} into the text.", f"has({word})")
    for word in words
  ]
  items.append(("Important", "Tells what somebody did there.", "sentence()"))
  items += [
    ("Optional", f"Speaks of a '{word}' at length.", None)
    for word in ("dragon", "castle")
  ]
  if reading.blocks["PITFALLS"] == "committed":
    items.append(("Pitfall", "Strings things together.", "bare_list()"))
  else:
    items.append(("Pitfall", "Tells what happens in clauses.", "sentence()"))
  return json.dumps(
    {
      "items": [
        {
          "title": "An item",
          "description": text,
          "category": category,
          "weight": 5,
          "check": check,
        }
        for category, text, check in items
      ]
    }
  )


def rater(reading: Reading) -> str:
  """One for being there, two a thing, three for a verb."""
  answer = reading.blocks["ANSWER"]
  rating = 1 + 2 * len(set(words_of(answer))) + 3 * (VERB in answer)
  return json.dumps({"explanation": "Counted.", "rating": min(10, rating)})


def item_writer(reading: Reading) -> str:
  """Things at first; a whole sentence now and then, and once remembered."""
  words = words_of(reading.blocks["TASK"])
  items = [
    {
      "category": "substance",
      "criterion_text": f"Brings the {word} into the text.",
      "points": 8,
      "check": f"has({word})",
    }
    for word in (words * 2)[: int(reading.blocks["POSITIVE COUNT"])]
  ]
  told = {"category": "reasoning", **SENTENCE_ITEM}
  if "whole sentence" in reading.blocks["MEMORY"] or reading.rng.random() < 0.3:
    items[-1] = told
  if int(reading.blocks["NEGATIVE COUNT"]):
    items.append({"category": "fault", **LIST_ITEM})
  return json.dumps({"items": items})


def reviser(reading: Reading) -> str:
  """Adds every thing that the rubric names."""
  named = words_of(reading.blocks["RUBRIC"])
  return f"{reading.blocks['ANSWER']} {' '.join(named)}"


def rubric_set(*items: tuple[str, float, str]) -> str:
  """A rubric set as a trained generator writes it."""
  return json.dumps(
    {
      "rubric_items": [
        {"criterion_text": text, "points": points, "check": check}
        for text, points, check in items
      ]
    }
  )


def rubric_sets(prompt: Task, step: int, count: int = 4) -> list[Rollout]:
  """A fake generator's sets for a prompt; some are no sets."""
  rng = random.Random(f"{prompt.task_id}/{step}")
  words = words_of(prompt.prompt[-1].content)
  sets = []
  for sample in range(count):
    items = [
      (f"Brings the {word} into the text.", rng.randint(1, 9), f"has({word})")
      for word in rng.sample(words, 2)
    ]
    listed = ("Lists things without a verb.", -5, "bare_list()")
    text = rubric_set(*items, *([listed] if rng.random() < 0.5 else []))
    sets.append(text if sample else "Once there was no rubric.")
  return [rollout(prompt, sample, text) for sample, text in enumerate(sets)]


RESPONDERS: Mapping[str, Callable[[Reading], str]] = {
  "proposer": proposer,
  "generator": generator,
  "adversary": adversary,
  "solver": solver,
  "judge": judge,
  "referee": referee,
  "repairer": repairer,
  "patcher": patcher,
  "analyst": analyst,
  "meta_optimizer": meta_optimizer,
  "memo_optimizer": memo_optimizer,
  "decomposer": decomposer,
  "checklist": checklist,
  "rater": rater,
  "item_writer": item_writer,
  "reviser": reviser,
}


def chat(**changed: Callable[[Reading], str]) -> ScriptedChat:
  """The world's model, some roles played otherwise."""
  return ScriptedChat(name="fake", responders={**RESPONDERS, **changed})


def roles(**changed: Callable[[Reading], str]) -> Roles:
  """All roles played by `chat`."""
  return make_roles(
    chat(**changed), "story", configs.JudgeConfig(votes=3), CHECKS
  )


def config(**changed: object) -> configs.Config:
  """Settings of a small repeatable run, in dotted names with `__`."""
  tree: dict = {
    "description": "Short texts about things.",
    "train": {"tasks_per_step": 4, "minibatch_tasks": 4, "samples": 4},
    "pool": {"capacity": 10},
    "admission": {"barrier": True},
    "evolution": {"interval": 2, "cases": 8},
  }
  for name, value in changed.items():
    group, _, key = name.partition("__")
    if key:
      tree.setdefault(group, {})[key] = value
    else:
      tree[group] = value
  return configs.from_config_dict(tree)


def rollouts(task: Task, step: int, count: int = 4) -> list[Rollout]:
  """The fake solver's answers: lists, stories, something cut short."""
  rng = random.Random(f"{task.task_id}/{step}")
  words = words_of(task.prompt[-1].content)
  return [
    rollout(
      task,
      sample,
      rng.choice(
        [listing(words), story(words[:2]), story(words[:1]), "Who knows?", None]
        if sample
        else [listing(words)]
      ),
    )
    for sample in range(count)
  ]


def rollout(task: Task, sample: int, answer: str | None) -> Rollout:
  """A rollout of two tokens."""
  return Rollout(
    task_id=task.task_id,
    sample=sample,
    answer=answer,
    tokens=(1, 2),
    logprobs=(-0.5, -0.5),
    mask=(1, 1),
    finish="length" if answer is None else "stop",
  )


def task(
  *texts_and_points: tuple[str, float, str | None],
  task_id: str = "t000000",
  question: str = "Tell of fox lamp rope",
  **fields: object,
) -> Task:
  """A task with these criteria."""
  criteria = tuple(
    Criterion(text=text, points=points, check=check)
    for text, points, check in texts_and_points
  ) or (
    Criterion(text="Brings the fox in.", points=8, check="has(fox)"),
    Criterion(text="Brings the lamp in.", points=8, check="has(lamp)"),
    Criterion(text="Brings the rope in.", points=8, check="has(rope)"),
  )
  return Task(
    task_id=task_id,
    prompt=(Message(role="user", content=question),),
    rubric=Rubric(criteria=criteria),
    **fields,  # pyright: ignore[reportArgumentType]
  )


def verdict(met: bool | None, failures: tuple[str, ...] = ()) -> Verdict:
  """A verdict by three votes."""
  votes = () if met is None else (met,) * 3
  return Verdict(
    met=met, votes=votes, explanation="", judge="fake", failures=failures
  )


def graded(
  score: float | None, answer: str | None = "Some text.", sample: int = 0
) -> GradedAnswer:
  """A graded answer without verdicts."""
  return GradedAnswer(
    sample=sample,
    answer=answer,
    verdicts=(),
    score=score,
    raw=score,
    truncated=answer is None,
  )
