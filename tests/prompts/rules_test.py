"""Every rule a prompt must carry, as a pattern found in that prompt.

The reading is over single-spaced text, so that line breaks do not matter.
"""

import re

import pytest

from varl_jax.prompts.loader import load_prompts
from varl_jax.roles import (
  adversary,
  analyst,
  auditor,
  generator,
  memo_optimizer,
  meta_optimizer,
  patcher,
)

RULES = {
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
      r"Keep the situation, the field and the difficulty"
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
    "reply": r'"explanation".*"criteria_met": true',
  },
  "referee": {
    "senior expert": r"You are a senior fiction editor",
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
    "length": rf"At most {memo_optimizer.MAX_CHARS:,} characters",
    "never lenient": r"Never become lenient",
    "no topics or held-out": r"No topics, .* no held-out items",
    "over-restricting": r"over-restricting, tighten nothing further",
    "rules outrank": r"fixed rules on counts and points stand above the memo",
  },
  "summarizer": {
    "one brief": r"Make one brief",
    "sources": r"Name the source of every statement",
    "only the passages": r"Say only what the passages say",
    "no answer": r"do not answer QUERY, say so",
  },
  "auditor": {
    "pair, verdicts, criteria, content": (
      r"1\. The pair.*2\. The verdicts.* carry the gap.*3\. The criteria.*"
      r"4\. The content"
    ),
    "first that applies": r"first category that applies",
    "second choice": r"second_choice is the category",
  },
}


@pytest.mark.parametrize(
  ("prompt", "rule"),
  [(prompt, rule) for prompt, rules in RULES.items() for rule in rules],
)
def test_the_prompt_carries_the_rule(prompt, rule):
  text = " ".join(load_prompts("story").texts[prompt].split())
  assert re.search(RULES[prompt][rule], text), RULES[prompt][rule]


def test_every_prompt_has_rules():
  assert set(RULES) == set(load_prompts("story").texts)


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
def test_closed_vocabularies_are_listed_in_order(prompt, words):
  text = load_prompts("story").texts[prompt]
  places = [text.find(word) for word in words if word != "none"]
  assert min(places) >= 0
  if prompt != "analyst":
    assert places == sorted(places)


def test_nobody_is_told_of_validation():
  for name, text in load_prompts("story").texts.items():
    assert not re.search(r"validation|eval/|test score", text), name
