"""Probe and repair, by each rule of admission."""

import asyncio
import dataclasses
import json

import pytest

from tests import fakes
from varl_jax.llm.chat import ChatError
from varl_jax.methods.parts import Workshop
from varl_jax.service.admission import Admission, admission_record

WORDS = ("fox", "lamp", "rope")


def admit(task=None, *, admission=None, **changed) -> Admission:
  config = fakes.config(admission=admission or {"barrier": True})
  workshop = Workshop(
    config=config, roles=fakes.roles(**changed), checks=fakes.CHECKS
  )
  return asyncio.run(workshop.admitter().admit(task or fakes.task()))


def says(*answers: str):
  """A role that gives these answers in turn, the last one for ever."""
  left = list(answers)
  return lambda reading: left.pop(0) if len(left) > 1 else left[0]


def rewrite(*items: dict, question: str = "Tell of fox lamp rope"):
  """A repairer's reply."""
  return json.dumps(
    {
      "question": question,
      "rubric_items": list(items),
      "why_farmer_fails": "",
      "why_honest_passes": "",
    }
  )


def names(*words: str, points: float = 8) -> list[dict]:
  return [
    {
      "criterion_text": f"Brings the {word} in.",
      "points": points,
      "check": f"has({word})",
    }
    for word in words
  ]


def test_a_task_that_passes_keeps_its_rubric_and_the_honest_answer():
  passing = fakes.story(WORDS[:2])
  found = admit(
    adversary=says("fox and nothing else at all"), solver=says(passing)
  )
  assert found.first.outcome == "pass"
  assert found.rounds == () and found.adopted is None
  assert found.task == dataclasses.replace(fakes.task(), cached_honest=passing)
  assert admission_record(found)["lead"] == pytest.approx(1 / 3 - 2 / 3)


def test_an_adversary_that_earns_nothing_is_discarded():
  found = admit(adversary=says("nothing to be seen here"))
  assert found.first.outcome == "discarded"
  assert found.rounds == ()
  assert found.task.rubric == fakes.task().rubric
  assert admission_record(found)["lead"] is None


def test_an_exploit_that_stays_too_long_measures_nothing():
  found = admit(adversary=says("fox lamp rope " * 200))
  assert found.first.outcome == "unusable"
  assert found.first.problem == "exploit: malformed"
  assert found.task.rubric == fakes.task().rubric


@pytest.mark.parametrize("short", ["adversary", "solver"])
def test_short_answers_make_the_probe_unusable(short):
  found = admit(**{short: says("fox")})
  assert found.first.outcome == "unusable"
  assert found.first.problem.endswith("too_short")
  assert found.task.rubric == fakes.task().rubric


def test_failed_replies_make_the_probe_unusable():
  def broken(reading):
    raise ChatError("refusal", "No.")

  found = admit(adversary=broken)
  assert (found.first.outcome, found.first.problem) == (
    "unusable",
    "exploit: refusal",
  )
  # The honest answer is good all the same.
  assert found.task.cached_honest


def test_an_undetermined_verdict_makes_the_probe_unusable():
  task = fakes.task(
    ("Brings the fox in.", 8, "has(fox)"), ("Speaks of 'x'.", 8, None)
  )
  found = admit(task, judge=says("no json at all"))
  assert found.first.outcome == "unusable"
  assert "undetermined" in found.first.problem


def test_a_clear_rewrite_is_adopted_after_one_round():
  better = rewrite(*names(*WORDS), fakes.SENTENCE_ITEM | {"points": 14})
  found = admit(solver=says(fakes.story(WORDS[:2])), repairer=says(better))
  assert found.first.outcome == "exploitable"
  assert found.adopted == 0 and len(found.rounds) == 1
  assert [c.points for c in found.task.rubric.criteria] == [8, 8, 8, 10]
  assert {c.source for c in found.task.rubric.criteria} == {"admission"}
  assert found.task.rubric.version == 1
  record = admission_record(found)
  assert record["lead"] == pytest.approx(1 / 3)
  assert record["lead_after"] == pytest.approx(24 / 34 - 26 / 34)
  assert record["outcome_after"] == "exploitable"


def test_the_best_positive_drop_is_adopted_when_none_clears_the_bar():
  small = rewrite(*names(*WORDS), fakes.SENTENCE_ITEM | {"points": 5})
  found = admit(
    solver=says(fakes.story(WORDS[:2])),
    repairer=says(rewrite(*names(*WORDS)), small),
    admission={"barrier": True, "min_drop": 0.5},
  )
  # The first round changed nothing, the second lowered D by less than asked.
  assert len(found.rounds) == 2 and found.adopted == 1
  assert len(found.task.rubric.criteria) == 4


def test_a_task_no_rewrite_helps_keeps_its_rubric_and_enters():
  found = admit(
    solver=says(fakes.story(WORDS[:2])), repairer=says(rewrite(*names(*WORDS)))
  )
  assert found.adopted is None and len(found.rounds) == 2
  assert found.task.rubric == fakes.task().rubric
  assert admission_record(found)["outcome_after"] == "exploitable"


def test_a_rewrite_with_the_honest_score_out_of_band_is_not_adopted():
  hard = rewrite(fakes.SENTENCE_ITEM, *names("well", "drum", points=10))
  found = admit(
    solver=says(fakes.story(WORDS[:2]), "Nothing comes to mind about it"),
    repairer=says(hard),
  )
  assert found.adopted is None


def test_unusable_rewrites_are_counted_and_change_nothing():
  found = admit(
    solver=says(fakes.story(WORDS[:2])),
    repairer=says("no json", "no json", rewrite(LIST := fakes.LIST_ITEM)),
  )
  assert LIST["points"] < 0
  assert [made.problem != "" for made in found.rounds] == [True, True]
  assert found.rounds[0].problem == "malformed"
  assert found.task.rubric == fakes.task().rubric


def test_proposals_are_salvaged():
  wild = rewrite(
    *names(*WORDS, points=80),
    {"criterion_text": "Brings it in.", "points": 8, "check": "unknown()"},
    *[
      fakes.SENTENCE_ITEM | {"criterion_text": f"Tells {i}."} for i in range(9)
    ],
  )
  found = admit(solver=says(fakes.story(WORDS[:2])), repairer=says(wild))
  made = found.rounds[0].task
  assert made is not None
  assert len(made.rubric.criteria) == 3 + 4
  assert max(c.points for c in made.rubric.criteria) == 10
  assert all(c.check != "unknown()" for c in made.rubric.criteria)


def test_the_second_round_starts_from_the_better_first():
  seen = []

  def repairer(reading):
    seen.append(reading.blocks["RUBRIC"])
    return rewrite(*names(*WORDS), fakes.SENTENCE_ITEM | {"points": 5})

  admit(
    solver=says(fakes.story(WORDS[:2])),
    repairer=repairer,
    admission={"barrier": True, "min_drop": 0.9},
  )
  assert "sentence()" not in seen[0] and "sentence()" in seen[1]


def test_served_tasks_never_hold_the_adversarys_answer():
  found = admit()
  assert found.first.exploit is not None
  assert found.first.exploit.answer not in repr(found.task)
