"""Repair rounds: acceptance on real verdicts, re-attacks and sealing."""

import asyncio
import dataclasses
import json

import pytest

from tests import fakes
from varl_jax.llm.chat import ChatError
from varl_jax.methods.parts import Workshop
from varl_jax.service.patching import Patching, Repair
from varl_jax.types import ExploitCase, GradedGroup, Rubric

WORDS = ("fox", "lamp", "rope")
LISTING = fakes.listing(WORDS)
STORY = fakes.story(WORDS[:2])


def patching(*, patch=None, **changed) -> Patching:
  workshop = Workshop(
    config=fakes.config(patch=patch or {}),
    roles=fakes.roles(**changed),
    checks=fakes.CHECKS,
  )
  return workshop.patching()


def proposes(*items: dict, mode: str = "keyword_stuffing"):
  """A patcher with this reply."""
  reply = [item | {"why_separates": ""} for item in items]
  return lambda reading: json.dumps({"mode": mode, "items": reply})


def case(task=None, exploit=LISTING, honest=STORY) -> ExploitCase:
  task = task or fakes.task(cached_honest=STORY)
  assessor = patching().assessor

  async def graded(answer, sample):
    return await assessor.assess(
      task.prompt, answer, task.rubric, strict=False, op=answer, sample=sample
    )

  first = asyncio.run(graded(exploit, 0))
  second = asyncio.run(graded(honest, 1))
  assert first.score is not None and second.score is not None
  return ExploitCase(
    case_id="t000000-s3",
    task=task,
    step=3,
    source="on_policy",
    exploit=first,
    honest=second,
    gap=first.score - second.score,
  )


def repair(found: ExploitCase | None = None, **settings) -> Repair:
  return asyncio.run(patching(**settings).repair(found or case()))


def reasons(result: Repair, number: int = 0) -> list[str]:
  return [item.rejected for item in result.patches[number].items]


def always_lists(reading) -> str:
  return LISTING


def test_criteria_that_separate_the_pair_are_added_and_the_gap_falls():
  result = repair(patcher=proposes(fakes.SENTENCE_ITEM, fakes.LIST_ITEM))
  patch = result.patches[0]
  assert reasons(result) == ["", ""]
  assert patch.label == "keyword_stuffing" and patch.round == 1
  assert patch.gap_before == pytest.approx(1 / 3)
  # The exploit: 24 - 7 of 33 points; the honest answer: 16 + 9.
  assert patch.gap_after == pytest.approx((24 - 7 - 25) / 33)
  added = result.task.rubric.criteria[3:]
  assert [c.points for c in added] == [9, -7]
  assert {c.source for c in added} == {"patch"}
  assert result.task.rubric.version == 1 and result.task.patches == 1
  assert result.task.cached_honest == STORY


def test_each_rejected_criterion_says_why():
  result = repair(
    patcher=proposes(
      fakes.SENTENCE_ITEM,
      fakes.SENTENCE_ITEM,
      fakes.SENTENCE_ITEM | {"points": 3},
      {"criterion_text": "Too short.", "points": 8},
      {
        "criterion_text": "Speaks at some length of the 'fox' in the story.",
        "points": 8,
      },
    )
  )
  assert reasons(result) == [
    "",
    "overlap",
    "points",
    "length",
    "positive_on_exploit",
  ]
  assert result.patches[0].items[3].on_exploit is None
  assert result.patches[0].items[4].on_exploit is not None


def test_no_more_criteria_than_a_round_takes():
  result = repair(
    patch={"max_criteria": 1},
    patcher=proposes(fakes.SENTENCE_ITEM, fakes.LIST_ITEM),
  )
  assert reasons(result) == ["", "over_limit"]


def test_a_negative_met_by_the_cached_honest_answer_is_rejected():
  task = fakes.task(cached_honest="An honest answer that is a mere bare list")
  result = repair(case(task), patcher=proposes(fakes.LIST_ITEM))
  assert reasons(result) == ["negative_on_cached"]
  item = result.patches[0].items[0]
  assert item.on_cached is not None and item.on_cached.met
  assert result.task == task and result.patches[0].after is None


def test_undetermined_verdicts_reject():
  def torn(reading):
    raise ChatError("timeout", "Too slow.")

  item = {
    "criterion_text": "Says what the 'child' did with the things found.",
    "points": 8,
  }
  assert reasons(repair(patcher=proposes(item), judge=torn)) == ["undetermined"]
  assert reasons(repair(patcher=proposes(item))) == [""]


def test_criteria_are_graded_under_the_strict_note():
  notes = []

  def judge(reading):
    notes.append(reading.user.endswith("<<<END CRITERION") or reading.user)
    return fakes.judge(reading)

  item = {
    "criterion_text": "Says what the 'child' did with the things found.",
    "points": 8,
  }
  system = patching(patcher=proposes(item), judge=judge)
  asyncio.run(system.repair(case()))
  strict = system.assessor.grader.judge.prompts.strict_note
  assert notes and all(strict in note for note in notes)


def test_an_earned_score_adds_nothing():
  result = repair(patcher=proposes(mode="none"))
  assert result.patches[0].label == "none"
  assert result.patches[0].items == () and result.patches[0].after is None
  assert result.attacks == () and result.sealed is None


def test_a_failed_patcher_is_counted():
  result = repair(patcher=lambda reading: "no json")
  assert result.failures == ("malformed",) and result.patches == ()


def test_an_attack_that_finds_nothing_seals_the_version():
  result = repair(
    patcher=proposes(fakes.SENTENCE_ITEM, fakes.LIST_ITEM),
    adversary=always_lists,
  )
  assert result.attacks == ("none",) and result.sealed == 1
  assert result.cases == () and len(result.patches) == 1


def test_an_attack_that_succeeds_opens_the_second_round():
  trick = f"{LISTING} {fakes.VERB}."
  second = {
    "criterion_text": "Tells of a 'child' who found all the things at home.",
    "points": 10,
  }
  replies = [
    proposes(fakes.SENTENCE_ITEM),
    proposes(second),
  ]
  result = repair(
    patcher=lambda reading: replies.pop(0)(reading),
    adversary=lambda reading: trick,
  )
  assert [patch.round for patch in result.patches] == [1, 2]
  assert result.patches[1].case_id == "t000000-s3-a1"
  opened = result.cases[0]
  assert opened.source == "re_attack" and opened.step == 3
  assert opened.exploit.answer == trick and opened.honest.answer == STORY
  assert opened.task.rubric == result.patches[0].after
  assert opened.gap == pytest.approx(1 - 25 / 33)
  assert result.task.rubric.version == 2 and result.task.patches == 2
  # The attack on the second version fails: 33 of 43 against 35 of 43.
  assert result.attacks == ("found", "none") and result.sealed == 2


def test_rounds_end_even_when_attacks_go_on():
  trick = f"{LISTING} {fakes.VERB}."
  result = repair(
    patcher=proposes(fakes.SENTENCE_ITEM),
    adversary=lambda reading: trick,
  )
  # The second round proposes a copy, so nothing more is added.
  assert [patch.after is None for patch in result.patches] == [False, True]
  assert result.sealed is None and len(result.cases) == 1


def test_failed_attacks_seal_nothing():
  def broken(reading):
    raise ChatError("unavailable", "Down.")

  result = repair(patcher=proposes(fakes.SENTENCE_ITEM), adversary=broken)
  assert result.attacks == ("failed",) and result.sealed is None


def test_re_attacks_can_be_switched_off():
  result = repair(
    patch={"re_attack": False}, patcher=proposes(fakes.SENTENCE_ITEM)
  )
  assert result.attacks == () and result.task.patches == 1


def test_a_task_is_patched_six_times_at_most():
  part = patching()
  task = fakes.task(patches=5)
  assert part.repairable(task)
  assert not part.repairable(dataclasses.replace(task, patches=6))
  full = Rubric(criteria=task.rubric.criteria * 4)
  assert not part.repairable(dataclasses.replace(task, rubric=full))
  spent = case(fakes.task(patches=5, cached_honest=STORY))
  trick = f"{LISTING} {fakes.VERB}."
  result = repair(
    spent,
    patcher=proposes(fakes.SENTENCE_ITEM),
    adversary=lambda reading: trick,
  )
  assert result.attacks == ("found",) and len(result.patches) == 1


def test_the_same_answers_are_scored_again():
  found = case()
  unscored = dataclasses.replace(found.exploit, score=None)
  cut = fakes.graded(0.0, answer=None)
  group = GradedGroup(
    task=found.task,
    step=3,
    answers=(found.exploit, found.honest, unscored, cut),
  )
  part = patching(patcher=proposes(fakes.SENTENCE_ITEM), adversary=always_lists)
  after = asyncio.run(part.repair(found)).task.rubric
  means = asyncio.run(part.rescore(group, after))
  assert means == pytest.approx(((1 + 2 / 3) / 2, (24 / 33 + 25 / 33) / 2))
