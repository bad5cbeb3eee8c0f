"""ProfBench: expert reports in physics, chemistry, finance and consulting.

A task's score is the weighted fraction of its criteria, the whole score the
mean of the domains' means. The authors leave out criteria whose judgement
failed, which changes the denominator; here such an answer is unscorable and
counted.
"""

from collections.abc import Mapping
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  Groups,
  criterion,
  groups_of,
  points_of,
  text_of,
  unclipped,
)
from varl_jax.types import Message

WEIGHTS: Final[Mapping[str, int]] = {
  "critical": 4,
  "major": 3,
  "minor": 2,
  "additional": 1,
}


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a row; files that the prompt refers to are named, not read."""
  rubrics = row["rubrics"]
  return BenchmarkTask(
    task_id=str(row["task_id"]),
    prompt=(Message(role="user", content=text_of(row, "prompt")),),
    criteria=tuple(
      criterion(
        text_of(item, "criterion_description"),
        _weight(item["criterion_weight"]),
      )
      for item in rubrics
    ),
    groups=groups_of(domain=text_of(row, "domain")),
    criterion_groups=tuple(
      _types(item.get("criterion_type")) for item in rubrics
    ),
    attachments=tuple(map(str, row.get("filepaths") or ())),
  )


def _weight(value: Any) -> float:
  if not isinstance(value, str):
    return points_of(value)
  weight = WEIGHTS.get(value.strip().lower())
  if weight is None:
    raise ValueError(f"the weight {value!r} is none of {', '.join(WEIGHTS)}.")
  return weight


def _types(value: Any) -> Groups:
  found = [value] if isinstance(value, str) else list(value or ())
  return {"criterion_type": tuple(map(str, found))} if found else {}


BENCHMARK: Final = Benchmark(
  name="profbench",
  title="ProfBench",
  to_task=to_task,
  page="https://huggingface.co/datasets/nvidia/ProfBench",
  size=40,
  measures=unclipped,
  mean_over="domain",
  domain="expert_reports",
)
