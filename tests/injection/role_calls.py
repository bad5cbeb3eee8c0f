"""Every role, called with one text in every place where a text can come in."""

import asyncio
import json
from collections.abc import Callable

from tests.roles.fake_chat import FakeChat
from varl_jax.benchmarks.answering import Decoding
from varl_jax.llm.chat import ChatError, ChatRequest
from varl_jax.prompts.loader import load_prompts
from varl_jax.retrieval_answers import Calls
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.analyst import Analyst
from varl_jax.roles.auditor import Auditor
from varl_jax.roles.checklist import ChecklistAuthor
from varl_jax.roles.decomposer import Decomposer
from varl_jax.roles.generator import Generator
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.item_writer import ItemWriter
from varl_jax.roles.judge import Judge
from varl_jax.roles.judge_template import JudgeTemplate
from varl_jax.roles.memo_optimizer import MemoOptimizer
from varl_jax.roles.meta_optimizer import MetaOptimizer
from varl_jax.roles.pair_checker import PairChecker
from varl_jax.roles.patcher import Patcher
from varl_jax.roles.proposer import Proposer, Request
from varl_jax.roles.rater import Rater
from varl_jax.roles.referee import Referee
from varl_jax.roles.repairer import Repairer
from varl_jax.roles.reviser import Reviser
from varl_jax.roles.rubric_author import JsonRubrics
from varl_jax.roles.summarizer import Summarizer
from varl_jax.types import (
  Criterion,
  ExploitCase,
  GradedAnswer,
  Message,
  Rubric,
  Task,
  Verdict,
)

PROMPTS = load_prompts("story")
MET = Verdict(met=True, votes=(True,), explanation="", judge="m")
ITEM = {"criterion_text": "Names the rope.", "points": 8}

# What a well-behaved model replies to each role, told apart from any attack.
REPLIES = {
  "proposer": {"requests": [{"text": "r", "use_case": "u", "red_team": False}]},
  "generator": {"question": "q", "use_case": "u", "rubric_items": [ITEM]},
  "judge": {"explanation": "absent", "criteria_met": False},
  "judge_template": {"explanation": "absent", "criteria_met": False},
  "referee": {"tiers": [["B"], ["A"]], "notes": "n"},
  "repairer": {
    "question": "q",
    "rubric_items": [ITEM],
    "why_farmer_fails": "f",
    "why_honest_passes": "h",
  },
  "patcher": {
    "mode": "other",
    "items": [{**ITEM, "why_separates": "w"}],
  },
  "analyst": {
    "failure_mode": "calculation",
    "rubric_defect": "none",
    "task_defect": "none",
    "verdict": "model_failed_fair_task",
    "gap": "g",
  },
  "meta_optimizer": {
    "query_proposer_guidance": "p",
    "task_rubric_generator_guidance": "g",
    "summary": "s",
  },
  "memo_optimizer": {"memo": "m"},
  "summarizer": {"brief": "b"},
  "planner": {"queries": ["q"]},
  "auditor": {
    "category": "incorrect_pair",
    "second_choice": "none",
    "leftover": False,
    "reason": "r",
  },
  "pair_checker": {"better": "equal", "reason": "r"},
  "decomposer": {"parts": ["p"]},
  "checklist": {
    "items": [
      {
        "title": "t",
        "description": f"Names knot {n}.",
        "category": "Essential",
        "weight": 5,
      }
      for n in range(7)
    ]
  },
  "rater": {"explanation": "e", "rating": 3},
  "item_writer": {"items": [{"category": "substance", **ITEM}]},
  "rubric_author": {"rubric_items": [ITEM]},
}
# A free text in each structured reply.
QUOTING = {
  "judge": ("explanation",),
  "judge_template": ("explanation",),
  "referee": ("notes",),
  "analyst": ("gap",),
  "auditor": ("reason",),
  "pair_checker": ("reason",),
  "meta_optimizer": ("summary",),
  "rater": ("explanation",),
}
PLAIN = {
  "adversary": "an answer",
  "solver": "an answer",
  "reviser": "an answer",
  "yes_no": "No",
}
NAMES = (*REPLIES, *PLAIN)


def reply_of(name: str) -> str:
  """What a well-behaved model replies."""
  return PLAIN[name] if name in PLAIN else json.dumps(REPLIES[name])


def template(text: str) -> JudgeTemplate:
  """A published template, its places filled with blocks."""
  return JudgeTemplate(name="t", sha256="0" * 64, text=text, faithful=False)


def send(
  name: str, text: str, *, reply: str | Callable | None = None
) -> tuple[FakeChat, object]:
  """Calls a role with `text` everywhere; returns the chat and the result."""
  made = reply_of(name) if reply is None else reply
  chat = FakeChat(made if callable(made) else lambda _: made)
  return chat, asyncio.run(_call(name, chat, text))


async def _call(name: str, chat: FakeChat, text: str) -> object:
  turns = (
    Message(role="user", content=text),
    Message(role="assistant", content=text),
    Message(role="user", content=text),
  )
  criterion = Criterion(text=text, points=7)
  rubric = Rubric(criteria=(criterion, Criterion(text=text, points=-5)))
  graded = GradedAnswer(
    sample=0, answer=text, verdicts=(MET, MET), score=0.5, raw=0.5
  )
  task = Task(task_id="t", prompt=turns, rubric=rubric)
  named = {"op": "op", "seed": 0}
  role = {"chat": chat, "prompts": PROMPTS}
  pair = {"prompt": turns, "rubric": rubric, "exploit": text, "honest": text}
  graded_by = {"prompt": turns, "answer": text, "criterion": criterion}
  if name == "proposer":
    return await Proposer(**role).propose(
      description=text, count=1, guidance=text, passage=text, **named
    )
  if name == "generator":
    return await Generator(**role).generate(
      request=Request(text=text, use_case=text, red_team=True),
      positives=3,
      negatives=1,
      solver_mean=0.5,
      guidance=text,
      memo=text,
      passages=text,
      verifiers=text,
      **named,
    )
  if name == "adversary":
    return await Adversary(**role).attack(prompt=turns, rubric=rubric, **named)
  if name == "solver":
    return await HonestAnswerer(**role).answer(prompt=turns, **named)
  if name in ("judge", "judge_template", "yes_no"):
    texts = {
      "judge": None,
      "judge_template": template(
        "A <<conversation>> B <<rubric_item>> criteria_met"
      ),
      "yes_no": template("Yes or No: {response} {criterion_description}?"),
    }
    judge = Judge(**role, template=texts[name])
    return await judge.judge(**graded_by, strict=True, **named)
  if name == "referee":
    return await Referee(**role).rank(
      prompt=turns, answers=[(0, text), (1, text)], **named
    )
  if name == "repairer":
    return await Repairer(**role).rewrite(**pair, verifiers=text, **named)
  if name == "patcher":
    return await Patcher(**role).propose(**pair, verifiers=text, **named)
  if name == "analyst":
    return await Analyst(**role).diagnose(task=task, answer=graded, **named)
  if name == "meta_optimizer":
    return await MetaOptimizer(**role).rewrite(
      formula=text,
      statistics=text,
      reference=text,
      diagnoses=text,
      exploits=text,
      patches=text,
      train_mean=0.5,
      proposer_guidance=text,
      generator_guidance=text,
      history=text,
      hackability=text,
      **named,
    )
  if name == "memo_optimizer":
    return await MemoOptimizer(**role).rewrite(
      memo=text, exploits=text, patches=text, history=text, **named
    )
  if name == "pair_checker":
    return await PairChecker(**role).compare(
      prompt=turns, first=text, second=text, **named
    )
  if name == "summarizer":
    return await Summarizer(**role).summarize(query=text, hits=text, **named)
  if name == "decomposer":
    return await Decomposer(**role).split(request=text, count=1, **named)
  if name == "checklist":
    return await ChecklistAuthor(**role).write(
      prompt=turns, reference=text, pitfalls="avoided", verifiers=text, **named
    )
  if name == "rater":
    listed = Criterion(text=text, points=10)
    return await Rater(**role).rate(
      prompt=turns,
      answer=text,
      rubric=Rubric(criteria=(listed,)),
      pitfalls="avoided",
      **named,
    )
  if name == "item_writer":
    return await ItemWriter(**role).write(
      prompt=turns,
      positives=1,
      negatives=0,
      memory=text,
      verifiers=text,
      **named,
    )
  if name == "rubric_author":
    # It is trained, not asked; its conversation holds the same texts.
    language = JsonRubrics(prompts=PROMPTS, verifiers=text)
    request = ChatRequest(
      role=name, messages=language.conversation(turns), operation="op", seed=0
    )
    try:
      return language.read((await chat.complete(request)).text, turns)
    except ValueError as error:
      raise ChatError("malformed", str(error)) from error
  if name == "reviser":
    return await Reviser(**role).revise(
      prompt=turns, answer=text, criteria=rubric.criteria, **named
    )
  if name == "planner":
    calls = Calls(
      chat=chat,
      decoding=Decoding(),
      planner=PROMPTS.system("planner"),
      name="name",
    )
    return await calls.plan(1, request=text, op="op", known=text)
  assert name == "auditor"
  case = ExploitCase(
    case_id="c",
    task=task,
    step=0,
    source="on_policy",
    exploit=graded,
    honest=graded,
    gap=0.5,
  )
  return await Auditor(**role).audit(case=case, added=[criterion], **named)
