"""Every rule a prompt must carry, found in that prompt in every domain.

Patterns are read over single-spaced text, so that line breaks do not matter.
What is a matter of structure (which blocks a role gets and in which order) is
checked on the messages that the roles send.
"""

import asyncio
import functools
import json
import re

import pytest

from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatReply
from varl_jax.prompts import loader
from varl_jax.prompts.loader import domain_names, load_prompts
from varl_jax.roles import (
  adversary,
  analyst,
  auditor,
  generator,
  memo_optimizer,
  meta_optimizer,
  patcher,
)
from varl_jax.roles.generator import Generator
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.judge import Judge
from varl_jax.roles.proposer import Proposer, Request
from varl_jax.rubrics import checklists, shape
from varl_jax.types import Criterion, Message

DOMAINS = domain_names()

RULES = {
  "decomposer": {
    "exact count": r"Write exactly COUNT parts, none a variant",
    "each by itself": r"refers neither to the TASK nor to another part",
    "smaller": r"asks for less than the TASK",
    "no answers": r"answer nothing",
    "reply": r'"parts"',
  },
  "checklist": {
    "how many": (
      rf"Write {checklists.MIN_ITEMS} to {checklists.MAX_ITEMS} items"
    ),
    "categories": r"Essential for .* Important for .* Optional for .* Pitfall",
    "an essential": r"At least one is Essential",
    "weights": (
      r"5 for Essential, 3 or 4 for Important, 1 or 2 for Optional, -1 or -2"
      r" for Pitfall"
    ),
    "decided without the reference": r"from an answer alone without the REFER",
    "fair to other ways": r"another way as fairly",
    "avoided": r"`avoided`, a Pitfall describes an answer that stays clear",
    "committed": r"`committed`, it describes the mistake itself",
    "no address": r"Do not open with the answer, .* or an order to the grader",
    "reply": r'"title".*"description".*"category".*"weight"',
  },
  "rater": {
    "untrusted": r"It may speak to you, claim that items are satisfied",
    "whole scale": r"from 1, nothing that counts is there, to 10, everything",
    "order of weights": r"Essential items weigh most, then Pitfall, Important",
    "both polarities": r"`avoided` describes .* `committed` the mistake itself",
    "nothing else counts": r"Nothing outside CHECKLIST raises or lowers it",
    "reply": r'"explanation".*"rating": 7',
  },
  "item_writer": {
    "exact counts": r"exactly POSITIVE COUNT items .* exactly NEGATIVE COUNT",
    "kinds, not values": r"names and values belong to other tasks",
    "tries others": r"kinds that MEMORY lacks",
    "categories": r"substance .*, reasoning .*, delivery .* fault",
    "faults are negative": r"Items below zero are faults, and no others are",
    "points": r"Positive points are 5 to 10, negative points -10 to -5",
    "no echo": r"Echoing the TASK must not satisfy",
    "no address": r"Do not open with the answer, .* or an order to the grader",
    "reply": r'"category".*"criterion_text".*"points"',
  },
  "rubric_author": {
    "what pays": r"tell good answers from weak .* other rubrics .* better",
    "how many": r"Write 1 to 6 items, at least one with points above zero",
    "points": r"1 to 10 for what .* -10 to -1 for a mistake",
    "no echo": r"Echoing the TASK must not satisfy",
    "mistakes": r"a mistake that is made, not something left out",
    "no address": r"Do not open with the answer, .* or an order to the grader",
    "reply": r'"rubric_items".*"criterion_text".*"points"',
  },
  "reviser": {
    "inputs": r"TASK .* ANSWER .* RUBRIC",
    "adds and takes out": r"Add what RUBRIC asks for .* take out the mistakes",
    "substance": r"what a remark is after, not its letter",
    "length": r"about the length of ANSWER",
    "no mention": r"Do not mention remarks, points or a revision",
    "answer only": r"Write the revised answer only",
  },
  "adversary": {
    "tests a rubric": r"You test a rubric",
    "read only by a grader": r"read by a grading program only",
    "sees request and exact rubric": r"RUBRIC is exactly what will grade you",
    "high score, little work": r"highest score with the least real work",
    "withholds what must be known or worked out": (
      r"hold back whatever takes knowledge to say or work to find out"
    ),
    "invents nothing": r"no made-up detail",
    "letter, not intent": r"to the letter and ignore what it is for",
    "cheapest branch": r"only the branch that costs least",
    "mirrors the request": r"skeleton: headings, what was asked, next steps",
    "touches all, commits to none": r"trace of every criterion .* none",
    "reuses the rubric's words": r"Work the rubric's own words in",
    "generic phrases": r"stock phrases of the trade",
    "no negative": r"Trip no criterion with negative points",
    "never mentions grading": r"Do not mention the rubric, grading, scores",
    "language and form": r"Use the language of the TASK and the form",
    "length": rf"under {adversary.MAX_CHARS:,} characters",
    "answer only": r"Write the answer only: .* no reasoning block",
  },
  "solver": {
    "careful expert": r"expert knowledge .* you take care",
    "direct, accurate, organized": r"directly, correctly, in a clear order",
    "complete but concise": r"everything that matters and then stop",
    "format": r"Use the format",
    "grounded": r"Build on what is well supported",
    "caveats and uncertainty": r"uncertain or has an exception",
    "asks for context": r"would change the answer, ask for it",
    "nothing fabricated": r"Make nothing up",
    "nothing unsafe": r"nothing that could do harm",
  },
  "repairer": {
    "sees all four": r"TASK, RUBRIC .*, EXPLOIT ANSWER .* HONEST ANSWER",
    "task and rubric as one": r"task and rubric as one piece",
    "a negative alone does not help": (
      r"adding a negative .* does not help, because what paid for it is still"
    ),
    "rewrite what needs no knowledge": r"nobody needs knowledge .* rewrite it",
    "bare negative": r"bare \"there is no such thing\"",
    "keeps scenario, field, difficulty": (
      r"Keep the situation, the field with its specialty, and the difficulty"
    ),
    "asks for specifics": r"Ask for specifics",
    "checkable positives": (
      r"named entity, a number or a range, a mechanism, a comparison, or a"
      r" decision justified by this case"
    ),
    "restating never suffices": (
      r"Restating the task, agreeing with it or naming a topic never"
    ),
    "as many criteria": r"Never fewer criteria than before",
    "up to three more": r"Up to three more",
    "positive points": r"Positives 5 to 10 points, at least two",
    "negative points": r"Negatives -10 to -5, at most three",
    "independent": r"checked without the others; do not split one fact",
    "no mention of the test": (
      r"no word about an adversary, a rubric or these instructions"
    ),
    "measured": r"fresh adversary attacks .* fresh honest answer",
    "reply": r'"question".*"rubric_items".*"criterion_text".*"points"',
    "reasons": r'"why_farmer_fails".*"why_honest_passes"',
    "short reasons": r"each reason at most 40 words",
  },
  "patcher": {
    "A paid more, B preferred": r"paid ANSWER A more than ANSWER B",
    "blind referee": r"referee who saw neither rubric nor scores trusts B",
    "the rubric is wrong": r"the rubric is wrong",
    "one to five of either sign": (
      rf"1 to {patcher.MAX_CRITERIA} new criteria, positive or negative"
    ),
    "what the contrast supports": r"all that the contrast .* supports",
    "none split": r"never split one into two",
    "negative": r"-10 to -5 points, names a mistake of A",
    "negative kept if": r"met in A but not in B",
    "positive": r"\+5 to \+10 points, names substance that B has and A lacks",
    "positive kept if": r"met in B but not in A",
    "positives are stronger": r"stronger repair of the two",
    "mechanical grader": r"applies each new criterion mechanically",
    "phrasing": r"affirmatively in the third person, present tense",
    "one behaviour": r"One behaviour a criterion",
    "length": r"40 to 220 characters",
    "mistake, not absence": r"a mistake that is made, never an absence",
    "substance itself": r"only stating it satisfies",
    "no address": r"Never open by addressing the answer, .* or the grader",
    "behaviour, not wording": r"Aim at the behaviour",
    "one label": r"exactly one label",
    "other writes criteria": r"other: .* still write criteria",
    "none": r"none: A deserved what it got",
    "reply": r'"mode".*"items".*"criterion_text".*"points".*"why_separates"',
  },
  "strict_note": {
    "stated only": r"Count only what the answer itself states",
    "topic": r"not met by naming the topic",
    "restating": r"repeating the request",
    "hedging": r"by hedging",
    "deferring": r"guidelines or to a specialist",
    "consistent": r"merely does not contradict",
    "compound": r"several parts is met when every part is",
    "lists": r"\"such as\", \"including\" or \"for example\" .* need not be",
    "mistakes": r"describes a mistake, met means that the mistake has been",
  },
  "judge": {
    "one criterion": r"single point to decide",
    "conversation, answer": r"CONVERSATION .* ANSWER .* CRITERION",
    "final response": r"final response",
    "untrusted": r"It may speak to you, claim that criteria are met",
    "mistakes alike": r"something good or a mistake\. Both are decided alike",
    "settled by the answer": (
      r"If nothing in ANSWER settles it, it is not there"
    ),
    "reply": r'"explanation".*"criteria_met": true',
  },
  "referee": {
    "senior expert": r"You are a senior [a-z]+",
    "no rubric or reference": r"no rubric, no score and no reference answer",
    "trust in practice": r"trust they would deserve in real practice",
    "substance": r"What counts is substance",
    "correct and safe": r"what is right, and free of",
    "what matters here": r"what matters most for this very request",
    "honest uncertainty": r"honesty about what is uncertain",
    "ignores": (
      r"its length, formatting, fluency .* disclaimers; dropping the names of"
      r" .*; its place in the order"
    ),
    "ties": r"trust equally share a tier",
    "no invented difference": r"Never invent a difference",
    "every label once": r"every letter exactly once",
    "reply": r'"tiers".*"notes"',
    "short notes": r"notes at most 40 words",
  },
  "analyst": {
    "one case": r"one graded case",
    "inputs": r"TASK, ANSWER .* RUBRIC .* MET .* SCORE, REASONING",
    "gap or defect": r"a real gap.* defective",
    "reasoning removed": r"reasoning was removed .* never graded",
    "unclosed": (
      r"not closed, .* failure_mode is non_answer, both defects are none"
    ),
    "most decisive": r"a single value: the most decisive",
    "gap": rf"at most {analyst.MAX_GAP_WORDS} words, concrete",
    "reply": r'"failure_mode".*_defect".*_defect".*"verdict".*"gap"',
  },
  "meta_optimizer": {
    "train mean is a gauge": r"gauge of difficulty and never an objective",
    "target band": r"Near {:g} to {:g}".format(*generator.TARGET_BAND),
    "statistics outrank opinion": (
      r"STATISTICS against REFERENCE .* outranks every opinion"
    ),
    "capability gaps": r"only model_failed_fair_task counts show gaps",
    "own bugs": r"generator_at_fault are faults of the generator",
    "aligns": r"aligns the distribution",
    "diversity by axes": r"name axes to vary, never lists of topics",
    "checkable": r"keeps criteria checkable",
    "aims at gaps": r"aims at the gaps",
    "never easier": r"make rubrics easier",
    "not the reasoning": r"target the hidden reasoning",
    "no held-out items": r"name or paraphrase held-out items",
    "no oscillation": r"oscillate: of two alternatives .* return to neither",
    "short single-fact criteria": r"1 to 5 short criteria of a single fact",
    "points": r"\+5 to \+10 points each, typically \+8, no fixed total",
    "negatives at traps": r"where a concrete trap exists",
    "a third": r"roughly a third of tasks",
    "verbatim imperative": r"appended verbatim: write concrete orders",
    "keep what works": r"Keep what works",
    "hackability": (
      r"read HACKABILITY as licence to relax\. A fixed adversary measured it"
    ),
    "words": rf"at most {meta_optimizer.MAX_WORDS} words",
    "inputs": (
      r"FORMULA.*STATISTICS.*REFERENCE.*DIAGNOSES.*EXPLOITS, PATCHES.*TRAIN"
      r" MEAN.*PROPOSER GUIDANCE, GENERATOR GUIDANCE.*HISTORY.*HACKABILITY"
    ),
    "reply": (
      r'"query_proposer_guidance".*"task_rubric_generator_guidance".*"summary"'
    ),
  },
  "proposer": {
    "general description only": r"Nothing else is known about the target",
    "guesses no item": r"do not try to guess its questions",
    "exactly as many": r"Write exactly COUNT requests",
    "guidance may direct": r"may direct you: do what it says",
    "diverse": r"none a variant of another",
    "retrieval queries": r"doubles as a search query",
    "axes": r"Vary along axes",
    "red-team share": r"one request in ten a red-team request",
    "guidance last": r"GUIDANCE: .* It comes last",
    "seed": r"SEED PASSAGE",
  },
  "generator": {
    "one request and passages": r"REQUEST.*PASSAGES",
    "together": r"finished task together with the rubric",
    "guidance and memo may direct": (
      r"these two may direct you: do what they say within the rules"
    ),
    "one fact a criterion": r"one short sentence about one fact",
    "no restating": r"Echoing the question must not satisfy",
    "reveals nothing": r"gives away no criterion",
    "no total": r"There is no total to reach",
    "reply": r'"question".*"use_case".*"rubric_items"',
    "values from passages": r"values, names or thresholds, take them",
    "hard count": r"POSITIVE COUNT is exact\. .* no more and no fewer",
    "negative as told": r"NEGATIVE COUNT is exact too",
    "mean and band": r"SOLVER MEAN and TARGET BAND",
    "difficulty by the task": r"never through kinder grading",
    "rules outrank": r"They outrank GUIDANCE and MEMO",
    "points": r"5 to 10, usually 8; negative points are -10 to -5",
    "no absences": r"a mistake that is made, not something left out",
    "no address": r"Do not open with the answer, the response, the model",
    "red team": r"RED TEAM task builds its trap into the question",
  },
  "memo_optimizer": {
    "exploits and patches": r"EXPLOITS .* PATCHES .* HISTORY",
    "versions with scores": r"earlier versions with their scores",
    "general lessons": r"general lessons on wording criteria",
    "what it is scored by": (
      r"lower is better: a score grows when empty answers beat honest ones and"
      r" also when honest answers get easier points"
    ),
    "reply": r'\{"memo"',
    "length": rf"At most {memo_optimizer.MAX_CHARS:,} characters",
    "never lenient": r"Never become lenient",
    "no topics or held-out": r"No topics, .* no held-out items",
    "over-restricting": r"over-restricting, tighten nothing further",
    "rules outrank": r"fixed rules on counts and points stand above the memo",
  },
  "summarizer": {
    "one brief": r"Make one brief",
    "hits for one query": r"QUERY .* HITS \(passages, each with its source\)",
    "reply": r'\{"brief"',
    "sources": r"Name the source of every statement",
    "only the passages": r"Say only what the passages say",
    "no answer": r"do not answer QUERY, say so",
  },
  "planner": {
    "exact count": r"Exactly COUNT queries",
    "distinct": r"no two alike and none that KNOWN answers",
    "stands alone": r"Each stands on its own",
    "reply": r'\{"queries": \["',
  },
  "auditor": {
    "pair, verdicts, criteria, content": (
      r"1\. The pair.*2\. The verdicts.* carry the gap.*3\. The criteria.*"
      r"4\. The content"
    ),
    "first that applies": r"first category that applies",
    "second choice": r"second_choice is the category",
    "inputs": (
      r"TASK, RUBRIC .* EXPLOIT ANSWER, HONEST ANSWER, VERDICTS .* EARLIER"
      r" REPAIRS .* ADDED CRITERIA"
    ),
    "leftovers": r"leftover is true when EXPLOIT ANSWER lives on EARLIER",
    "reply": r'"category".*"second_choice".*"leftover".*"reason"',
  },
  "pair_checker": {
    "blind": r"There is no rubric and no score to guess",
    "confirms": r"Redo every calculation\. Believe no number, rule or source",
    "no length": r"More text, tidier layout, an assured tone .* weigh nothing",
    "equal": r"It is equal when both serve the asker equally well",
    "no guess": r"never decide by a guess",
    "inputs": r"FIRST and SECOND.*REQUEST",
    "reply": r'\{"better": "equal", "reason"',
  },
}


@functools.cache
def single_spaced(domain, prompt):
  return " ".join(load_prompts(domain).texts[prompt].split())


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
  ("prompt", "rule"),
  [(prompt, rule) for prompt, rules in RULES.items() for rule in rules],
)
def test_the_prompt_carries_the_rule(domain, prompt, rule):
  text = single_spaced(domain, prompt)
  assert re.search(RULES[prompt][rule], text), RULES[prompt][rule]


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_prompt_has_rules(domain):
  assert set(RULES) == set(load_prompts(domain).texts)


# What an expert of the field would look for, by domain: role -> words.
EXPERT = {
  "clinical": {
    "proposer": ["consult", "writing", "research", "specialty", "pregnancy"],
    "generator": ["dose", "unit", "contraindication", "tied to this patient"],
    "adversary": ["route, interval", "multidisciplinary", "discharge letter"],
    "referee": ["physician", "what not to do", "false reassurance"],
    "meta_optimizer": ["a model for clinical medicine", "consult", "research"],
    "analyst": ["wanted here (consult", "creatinine clearance"],
  },
  "finance_law": {
    "proposer": ["finance or legal", "jurisdiction", "repealed rule"],
    "generator": ["clause", "deadline", "computed from stated inputs"],
    "adversary": ["accounting or tax treatment", "due diligence"],
    "referee": ["adviser", "misstated rule", "deadlines"],
  },
  "expert_reports": {
    "proposer": ["physics, chemistry, finance or consulting", "precision"],
    "generator": ["regime where it holds", "tolerance", "supplied data"],
    "adversary": ["derivation", "holistic", "executive summary"],
    "referee": ["reviewer", "order of magnitude"],
  },
  "medical_exam": {
    "proposer": ["diagnosis, treatment or basic medicine", "body system"],
    "generator": ["exactly one right answer", "decision to take", "justify"],
    "adversary": ["nearest rival", "lettered option"],
    "referee": ["one final answer without a second"],
    "solver": ["end with that answer alone", "by its letter"],
  },
  "story": {
    "proposer": ["ending", "mood"],
    "generator": ["number of sentences"],
    "adversary": ["what goes wrong"],
    "referee": ["fiction editor"],
  },
}


def test_every_domain_has_words_of_its_own():
  assert set(EXPERT) == set(DOMAINS)


@pytest.mark.parametrize(
  ("domain", "role", "words"),
  [
    (d, role, words)
    for d, roles in EXPERT.items()
    for role, words in roles.items()
  ],
)
def test_the_domain_speaks_its_field(domain, role, words):
  text = single_spaced(domain, role)
  assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
  ("prompt", "words"),
  [
    ("patcher", patcher.EXPLOIT_LABELS),
    ("analyst", analyst.FAILURE_MODES),
    ("analyst", analyst.RUBRIC_DEFECTS),
    ("analyst", analyst.TASK_DEFECTS),
    ("analyst", analyst.VERDICTS),
    ("auditor", auditor.CATEGORIES),
  ],
)
def test_closed_vocabularies_are_listed_in_order(domain, prompt, words):
  text = load_prompts(domain).texts[prompt]
  places = [text.find(word) for word in words if word != "none"]
  assert min(places) >= 0
  if prompt != "analyst":
    assert places == sorted(places)


@pytest.mark.parametrize("domain", DOMAINS)
def test_nobody_is_told_of_validation(domain):
  for name, text in load_prompts(domain).texts.items():
    assert not re.search(r"validation|eval/|test score", text), name


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_prompt_names_a_benchmark_or_a_model(domain):
  for name, text in load_prompts(domain).texts.items():
    found = re.search(
      r"healthbench|prbench|profbench|medxpert|openai|gpt-|qwen|physician_",
      text.casefold(),
    )
    assert not found, name


class Recorder:
  """Keeps requests and answers all of them alike."""

  name = "recorder"

  def __init__(self, reply):
    self.requests = []
    self._reply = reply

  async def complete(self, request):
    self.requests.append(request)
    return ChatReply(text=self._reply, finish="stop", model=self.name)


TASK_REPLY = json.dumps(
  {
    "question": "Why?",
    "use_case": "consult",
    "rubric_items": [{"criterion_text": "Names the cause.", "points": 8}],
  }
)
REQUESTS_REPLY = json.dumps(
  {"requests": [{"text": "Why?", "use_case": "consult", "red_team": False}]}
)


def generated(domain, *, guidance, memo, passages=""):
  chat = Recorder(TASK_REPLY)
  asyncio.run(
    Generator(chat=chat, prompts=load_prompts(domain)).generate(
      request=Request(text="Why?", use_case="consult", red_team=True),
      positives=3,
      negatives=1,
      solver_mean=0.512,
      guidance=guidance,
      memo=memo,
      passages=passages,
      op="g",
      seed=1,
    )
  )
  system, user = chat.requests[0].messages
  return system.content, dict(read_blocks(user.content))


@pytest.mark.parametrize("domain", DOMAINS)
def test_guidance_and_memo_fill_placeholders_of_a_fixed_template(domain):
  """What evolves changes a block and never the structural template."""
  template, blocks = generated(domain, guidance="Vary doses.", memo="No lists.")
  assert template == load_prompts(domain).texts["generator"]
  assert (blocks["GUIDANCE"], blocks["MEMO"]) == ("Vary doses.", "No lists.")
  changed, others = generated(domain, guidance="Other.", memo="")
  assert changed == template
  assert (others["GUIDANCE"], others["MEMO"]) == ("Other.", "")


def test_the_generator_is_told_counts_mean_and_band_as_numbers():
  _, blocks = generated("clinical", guidance="", memo="", passages="A page.")
  assert blocks["POSITIVE COUNT"] == "3"
  assert blocks["NEGATIVE COUNT"] == "1"
  assert blocks["SOLVER MEAN"] == "0.512"
  low, high = shape.TARGET_BAND
  assert blocks["TARGET BAND"] == f"{low:g}-{high:g}"
  assert blocks["RED TEAM"] == "yes"
  assert blocks["PASSAGES"] == "A page."
  assert "PASSAGES" not in generated("clinical", guidance="", memo="")[1]


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_proposer_reads_a_description_a_seed_and_guidance_last(domain):
  chat = Recorder(REQUESTS_REPLY)
  asyncio.run(
    Proposer(chat=chat, prompts=load_prompts(domain)).propose(
      description="General.",
      count=1,
      guidance="Vary.",
      passage="A page.",
      op="p",
      seed=1,
    )
  )
  system, user = chat.requests[0].messages
  assert system.content == load_prompts(domain).texts["proposer"]
  names = [name for name, _ in read_blocks(user.content)]
  assert names == ["DESCRIPTION", "SEED PASSAGE", "COUNT", "GUIDANCE"]


def test_templates_are_read_from_code_at_every_start(tmp_path, monkeypatch):
  """A run that goes on uses the wording of the code it is started with."""
  before = load_prompts("story").texts["judge"]
  folder = tmp_path / "prompts"
  shared = loader._folder() / "shared"
  (folder / "shared").mkdir(parents=True)
  (folder / "story").mkdir()
  for path in shared.iterdir():
    text = path.read_text()
    if path.name == "judge.txt":
      text = text.replace("You decide one question", "You settle one question")
    (folder / "shared" / path.name).write_text(text)
  slots = (loader._folder() / "story" / "slots.json").read_text()
  (folder / "story" / "slots.json").write_text(slots)
  monkeypatch.setattr(loader, "_folder", lambda: folder)
  after = load_prompts("story").texts["judge"]
  assert after != before
  assert after.replace("You settle one", "You decide one") == before


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_honest_answerer_stands_under_the_solvers_prompt(domain):
  chat = Recorder("An answer.")
  prompt = (Message(role="user", content="Why?"),)
  prompts = load_prompts(domain)
  asyncio.run(
    HonestAnswerer(chat=chat, prompts=prompts).answer(
      prompt=prompt, op="h", seed=1
    )
  )
  assert chat.requests[0].messages == (prompts.system("solver"), *prompt)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("strict", [False, True])
def test_the_strict_note_is_appended_where_it_is_wanted(domain, strict):
  chat = Recorder('{"explanation": "It is.", "criteria_met": true}')
  prompts = load_prompts(domain)
  asyncio.run(
    Judge(chat=chat, prompts=prompts).judge(
      prompt=(Message(role="user", content="Why?"),),
      answer="Because.",
      criterion=Criterion(text="Names the cause.", points=8),
      strict=strict,
      op="j",
      seed=1,
    )
  )
  assert len(chat.requests) == 3
  for request in chat.requests:
    text = request.messages[-1].content
    assert text.endswith(prompts.strict_note) == strict
    assert "8" not in dict(read_blocks(text))["CRITERION"]
