"""PRBench: finance and legal, and the hard half of each.

A criterion is its `title`. Its weight is the field that its weight class names:
several of the six weight fields of a criterion can be filled, and the first
that is would give many detrimental criteria a positive sign. Reference texts
stand before the turn they belong to.

`score` is earned points over positive points, not clipped; `normalized` is
(points - sum of negatives) / (sum of positives - sum of negatives).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  criterion,
  groups_of,
  points_of,
  ratio,
  text_of,
)
from varl_jax.types import Criterion, Message

PAGE: Final = "https://huggingface.co/datasets/ScaleAI/PRBench"
MAX_TURNS: Final = 10


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a row."""
  rubric = row["rubric"]
  if isinstance(rubric, str):
    rubric = json.loads(rubric)
  return BenchmarkTask(
    task_id=text_of(row, "task"),
    prompt=_conversation(row),
    criteria=tuple(map(_criterion, rubric)),
    groups=groups_of(field=row.get("field"), topic=row.get("topic")),
    criterion_groups=tuple(
      groups_of(category=item["annotations"].get("criteria_category"))
      for item in rubric
    ),
  )


def _criterion(item: Mapping[str, Any]) -> Criterion:
  annotations = item["annotations"]
  kind = text_of(annotations, "weight_class")
  field = f"{kind.replace(' ', '_')}_weight"
  weight = annotations.get(field)
  if weight is None:
    raise ValueError(f"a criterion of class {kind!r} has no {field!r}.")
  return criterion(text_of(item, "title"), points_of(weight))


def _conversation(row: Mapping[str, Any]) -> tuple[Message, ...]:
  """Every prompt with its references, and the responses between them."""
  turns: list[Message] = []
  for index in range(_turns(row)):
    if index:
      response = text_of(row, f"response_{index - 1}")
      turns.append(Message(role="assistant", content=response))
    prompt = text_of(row, f"prompt_{index}")
    texts = [*_references(row.get(f"reference_texts_{index}")), prompt]
    turns.append(Message(role="user", content="\n\n".join(texts)))
  return tuple(turns)


def _turns(row: Mapping[str, Any]) -> int:
  """Turns of the user: as stated, else as many as there are prompts."""
  stated = row.get("turns")
  if isinstance(stated, (int, float)) and not isinstance(stated, bool):
    return int(stated)
  filled = [i for i in range(MAX_TURNS) if row.get(f"prompt_{i}")]
  return len(filled)


def _references(value: Any) -> list[str]:
  if value is None:
    return []
  found = [value] if isinstance(value, str) else list(value)
  if not all(isinstance(text, str) for text in found):
    raise ValueError(f"reference texts are texts, got {value!r:.60}.")
  return [text for text in found if text.strip()]


def measures(
  task: BenchmarkTask, met: Sequence[bool], answer: str
) -> dict[str, float]:
  """Both scores of an answer."""
  points = [item.points for item in task.criteria]
  negative = math.fsum(p for p in points if p < 0)
  positive = math.fsum(p for p in points if p > 0)
  earned = math.fsum(p for p, m in zip(points, met, strict=True) if m)
  return {
    "score": ratio(task, met),
    "normalized": (earned - negative) / (positive - negative),
  }


def _make(name: str, title: str, files: Sequence[str], size: int) -> Benchmark:
  return Benchmark(
    name=name,
    title=title,
    to_task=to_task,
    page=PAGE,
    files=tuple(files),
    size=size,
    measures=measures,
    domain="finance_law",
  )


_FINANCE, _LEGAL = "finance|finance-*", "legal|legal-*"
_FINANCE_HARD, _LEGAL_HARD = "finance_hard*", "legal_hard*"
ALL: Final = (
  _make("prbench", "PRBench", (_FINANCE, _LEGAL), 1100),
  _make("prbench_finance", "PRBench finance", (_FINANCE,), 600),
  _make("prbench_legal", "PRBench legal", (_LEGAL,), 500),
  _make("prbench_hard", "PRBench Hard", (_FINANCE_HARD, _LEGAL_HARD), 550),
  _make("prbench_finance_hard", "PRBench Hard, finance", (_FINANCE_HARD,), 300),
  _make("prbench_legal_hard", "PRBench Hard, legal", (_LEGAL_HARD,), 250),
)
