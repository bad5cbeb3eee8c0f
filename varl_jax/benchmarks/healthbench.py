"""HealthBench: full, Hard and Consensus.

An item's score is the ratio r. The authors' program clips only the mean over
the data set to [0, 1] (`clipped_mean`), the paper's numbers clip every task
(`mean_of_clipped`, which is `score` here); both are in the results. Tags of an
item get its score, tags of a criterion the ratio of their own criteria, left
out where none of these is positive.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  Groups,
  OfficialJudge,
  criterion,
  points_of,
  text_of,
  turns_of,
)

PAGE: Final = "https://huggingface.co/datasets/openai/healthbench"


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a row."""
  rubrics = row["rubrics"]
  if not isinstance(rubrics, Sequence) or isinstance(rubrics, str):
    raise ValueError("'rubrics' is no list.")
  return BenchmarkTask(
    task_id=text_of(row, "prompt_id"),
    prompt=turns_of(row["prompt"]),
    criteria=tuple(
      criterion(text_of(item, "criterion"), points_of(item["points"]))
      for item in rubrics
    ),
    groups=tag_groups(row.get("example_tags")),
    criterion_groups=tuple(tag_groups(item.get("tags")) for item in rubrics),
    canary=str(row.get("canary") or ""),
  )


def tag_groups(tags: Any) -> Groups:
  """Tags such as `theme:emergency` by what stands before the colon."""
  if tags is None:
    return {}
  if not isinstance(tags, Sequence) or isinstance(tags, str):
    raise ValueError(f"Tags are a list, got {tags!r:.60}.")
  found: dict[str, list[str]] = {}
  for tag in tags:
    kind, colon, value = str(tag).partition(":")
    found.setdefault(kind if colon else "tag", []).append(
      value if colon else kind
    )
  return {kind: tuple(dict.fromkeys(values)) for kind, values in found.items()}


def _make(name: str, title: str, files: str, size: int) -> Benchmark:
  return Benchmark(
    name=name,
    title=title,
    to_task=to_task,
    page=PAGE,
    files=(files,),
    size=size,
    official_judge=OfficialJudge(model="gpt-4.1-2025-04-14"),
    guarded=True,
  )


FULL: Final = _make("healthbench", "HealthBench", "*oss_eval*", 5000)
HARD: Final = _make("healthbench_hard", "HealthBench Hard", "*hard*", 1000)
CONSENSUS: Final = _make(
  "healthbench_consensus", "HealthBench Consensus", "*consensus*", 3671
)
