"""Guidance rounds and the memo's upkeep."""

import asyncio
import dataclasses
import json

from tests import fakes
from varl_jax.config import MemoConfig, RewardConfig
from varl_jax.llm.chat import ChatError
from varl_jax.methods.parts import Workshop
from varl_jax.prompts.loader import load_prompts
from varl_jax.service.evolution import (
  Evolution,
  Material,
  Round,
  score_formula,
)
from varl_jax.service.evolution_stats import corpus_statistics
from varl_jax.service.memo import MemoState
from varl_jax.service.memo_keeping import PROBES, memo_metrics
from varl_jax.service.state import MemoProbe
from varl_jax.types import GradedGroup

MATERIAL = Material(
  tasks=(fakes.task(), fakes.task(question="Tell of well drum kite")),
  exploits=(
    {
      "source": "on_policy",
      "request": "Tell {{of}} things " + "x" * 900,
      "criteria": [{"text": "Brings it in.", "points": 8}],
      "exploit": "A list.",
      "gap": 0.4,
    },
  ),
  patches=(
    {
      "label": "other",
      "source": "on_policy",
      "criteria": [{"text": "Tells it.", "points": 9}],
      "gap_before": 0.4,
      "gap_after": None,
    },
  ),
  train_mean=0.625,
  proposer="old proposer text",
  generator="old generator text",
  history=[{"version": 0, "train_mean": 0.625, "summary": ""}],
  hackability="",
)


def evolution(*, settings=None, reference=None, **changed) -> Evolution:
  workshop = Workshop(
    config=fakes.config(**(settings or {})),
    roles=fakes.roles(**changed),
    checks=fakes.CHECKS,
    reference=reference,
  )
  return workshop.evolution()


def groups(count: int = 6) -> list[GradedGroup]:
  answers = [fakes.graded(i / 10, sample=i) for i in range(7)]
  answers.append(fakes.graded(0.0, answer=None, sample=7))
  answers.append(fakes.graded(None, sample=8))
  return [
    GradedGroup(
      task=fakes.task(task_id=f"t{i}"), step=0, answers=tuple(answers)
    )
    for i in range(count)
  ]


def test_due_at_every_interval():
  part = evolution(settings={"evolution__interval": 5})
  assert [n for n in range(1, 12) if part.due(n)] == [5, 10]


def test_a_step_keeps_what_a_round_may_draw():
  kept = evolution().keep(groups(), step=0)
  scores = [sample["answer"]["score"] for sample in kept]
  assert None not in scores
  assert scores[:4] == [0.0] * 4 and scores[4:6] == [0.6, 0.6]
  assert sum(sample["uniform"] for sample in kept) == 8
  assert evolution().keep(groups(), step=0) == kept
  assert evolution().keep(groups(), step=1) != kept


def test_a_round_reads_measured_facts_and_writes_both_blocks():
  seen = {}

  def optimizer(reading):
    seen.update(reading.blocks)
    return json.dumps(
      {
        "query_proposer_guidance": "word " * 400,
        "task_rubric_generator_guidance": "Ask for what happens.",
        "summary": "Changed.",
      }
    )

  reference = corpus_statistics([fakes.task()])
  part = evolution(meta_optimizer=optimizer, reference=reference)
  kept = part.keep(groups(), step=0)
  made = asyncio.run(part.evolve(kept, MATERIAL, op="evolve/1"))
  assert isinstance(made, Round)
  assert len(made.proposer.split()) == 300
  assert made.generator == "Ask for what happens."
  assert seen["TRAIN MEAN"] == "0.625"
  assert '"criteria_per_task": 0.0' in seen["STATISTICS"]
  assert "Lead +0.40" in seen["EXPLOITS"] and "[cut]" in seen["EXPLOITS"]
  assert "+9 Tells it." in seen["PATCHES"]
  assert seen["GENERATOR GUIDANCE"] == "old generator text"
  assert "HACKABILITY" not in seen
  snapshot = made.snapshot
  assert len(snapshot["cases"]) == 8 and len(snapshot["diagnoses"]) == 8
  assert snapshot["inputs"]["statistics"] == seen["STATISTICS"]
  prompts = load_prompts("story")
  assert snapshot["system"] == {
    role: prompts.texts[role]
    for role in ("analyst", "meta_optimizer", "proposer", "generator")
  }
  json.dumps(snapshot, allow_nan=False)


def test_the_formula_is_that_of_the_run():
  """Its words are worked out by hand for the three settings they depend on."""
  paid = score_formula(RewardConfig())
  assert (
    "0.0147 * max(0, characters of the final answer - 2000) / 500 is taken off"
  ) in paid
  assert "never ended scores 0." in paid
  free = score_formula(
    RewardConfig(length_adjusted=False, truncated_score="unscorable")
  )
  assert "Length" not in free and "has no score." in free

  seen = {}

  def optimizer(reading):
    seen.update(reading.blocks)
    return fakes.meta_optimizer(reading)

  settings = {"reward": {"length_weight": 0.25, "length_center": 90}}
  part = evolution(settings=settings, meta_optimizer=optimizer)
  kept = part.keep(groups(), step=0)
  asyncio.run(part.evolve(kept, MATERIAL, op="evolve/1"))
  assert "0.25 * max(0, characters of the final answer - 90)" in seen["FORMULA"]


def test_the_analyst_reads_how_long_the_solver_thought():
  seen = set()

  def analyst(reading):
    seen.add(reading.blocks["REASONING"])
    return fakes.analyst(reading)

  part = evolution(analyst=analyst)
  thought = [
    dataclasses.replace(
      group,
      answers=tuple(
        dataclasses.replace(a, reasoning_chars=37) for a in group.answers
      ),
    )
    for group in groups()
  ]
  kept = part.keep(thought, step=0)
  asyncio.run(part.evolve(kept, MATERIAL, op="evolve/1"))
  assert seen == {
    "closed: yes\ncharacters: 37\nanswer ran into the token limit: no"
  }


def test_truncated_answers_are_labelled_without_asking_and_steer_nothing():
  asked = []

  def analyst(reading):
    asked.append(reading.blocks["ANSWER"])
    return fakes.analyst(reading)

  part = evolution(analyst=analyst)
  cut = [s for s in part.keep(groups(), step=0) if s["answer"]["truncated"]]
  assert cut
  made = asyncio.run(part.evolve(cut, MATERIAL, op="evolve/1"))
  assert isinstance(made, Round) and asked == []
  counts = made.snapshot["inputs"]["diagnoses"]
  assert f"non_answers: {len(cut)}" in counts and "verdicts: {}" in counts


def test_failed_analysts_are_left_out_and_a_failed_optimizer_changes_nothing():
  part = evolution(analyst=lambda reading: "no json")
  kept = part.keep(groups(), step=0)
  made = asyncio.run(part.evolve(kept, MATERIAL, op="evolve/1"))
  assert isinstance(made, Round) and made.snapshot["failed"] > 0
  broken = evolution(meta_optimizer=lambda reading: "no json")
  assert isinstance(
    asyncio.run(broken.evolve(kept, MATERIAL, op="evolve/1")), ChatError
  )


def keep(state: MemoState, margin: float, honest: float, *, op: str, n=PROBES):
  workshop = Workshop(
    config=fakes.config(), roles=fakes.roles(), checks=fakes.CHECKS
  )
  probes = [MemoProbe(memo=state.current, lead=margin, honest=honest)] * n + [
    MemoProbe(memo=99, lead=9.0, honest=9.0)
  ]
  return asyncio.run(
    workshop.memo_keeper().advance(
      state,
      probes,
      exploits=MATERIAL.exploits,
      patches=MATERIAL.patches,
      op=op,
    )
  )


def test_the_memo_waits_for_probes_and_two_observations():
  assert keep(MemoState(), 0.3, 0.5, op="memo/0", n=PROBES - 1) is None
  first = keep(MemoState(), 0.3, 0.5, op="memo/1")
  assert first is not None and first.decision == "wait"
  second = keep(first.state, 0.3, 0.5, op="memo/2")
  assert second is not None and second.decision == "commit"
  assert second.state.current == 1 and second.state.text
  assert second.state.honest_baseline == 0.5


def test_a_worse_memo_is_rolled_back_and_replaced():
  state = MemoState()
  decisions = []
  for number, margin in enumerate([0.3, 0.3, 0.5, 0.5]):
    step = keep(state, margin, 0.5, op=f"memo/{number}")
    assert step is not None
    state = step.state
    decisions.append(step.decision)
  assert decisions == ["wait", "commit", "wait", "rollback"]
  assert state.versions[1].status == "rolled_back" and state.current == 2
  metrics = memo_metrics(state, MemoConfig())
  assert metrics["memo/rolled_back"] == 1
  assert metrics["memo/measured_version"] == 1
  assert metrics["memo/objective"] == 0.5


def test_an_over_restricting_memo_is_not_tightened():
  state = MemoState()
  for number in range(3):
    step = keep(state, 0.3, 0.2, op=f"memo/{number}")
    assert step is not None
    state = step.state
  assert state.current == 0 and len(state.versions) == 1
  assert memo_metrics(state, MemoConfig())["memo/over_restricting"] == 1.0
