"""HealthBench Professional.

score = r - 0.0147 (length - 2000) / 500, two-sided, on the whole answer in
Python characters, neither clipped nor bounded. An answer that is missing gets 0
and no length term, or it would earn 0.0588 for its brevity.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  OfficialJudge,
  criterion,
  groups_of,
  points_of,
  ratio,
  text_of,
  turns_of,
)
from varl_jax.rubrics.scoring import length_adjusted


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a row; the conversation is an object with messages, or a list."""
  conversation = row["conversation"]
  if isinstance(conversation, Mapping):
    conversation = conversation["messages"]
  return BenchmarkTask(
    task_id=text_of(row, "id"),
    prompt=turns_of(conversation),
    criteria=tuple(
      criterion(text_of(item, "criterion_text"), points_of(item["points"]))
      for item in row["rubric_items"]
    ),
    groups=groups_of(
      use_case=row.get("use_case"),
      difficulty=row.get("difficulty"),
      type=row.get("type"),
      specialty=row.get("specialty"),
    ),
    canary=str(row.get("canary_string") or ""),
  )


def measures(
  task: BenchmarkTask, met: Sequence[bool], answer: str
) -> dict[str, float]:
  """The length-adjusted score of an answer."""
  return {"score": length_adjusted(ratio(task, met), len(answer))}


BENCHMARK: Final = Benchmark(
  name="healthbench_professional",
  title="HealthBench Professional",
  to_task=to_task,
  page="https://huggingface.co/datasets/openai/healthbench-professional",
  files=("*professional*",),
  size=525,
  sha256={
    ".jsonl": "d44b08e6e952e04c945e2c406f02533d9e7a989a84e35820ee7efdff20c9e4e2"
  },
  measures=measures,
  official_judge=OfficialJudge(model="gpt-5.4-2026-03-05", effort="low"),
  guarded=True,
)
