"""Verification of the answer key that the paper asks of successors.

A criterion that names a value is right only if the value is (spec section 12:
faulty answer keys). Each value is looked for in the passages the task was
written from, then in the task itself, then computed: equations in the criterion
are executed, and doses follow from what passages and task say. What none of
this supports is flagged. A flag says "not supported", not "wrong": passages may
be silent where the generator is right.

The paper's arms run without it (`retrieval.verify_answer_key`).
"""

import dataclasses
from collections.abc import Sequence

from varl_jax.retrieval.fusion import best
from varl_jax.retrieval.lexical import LexicalIndex
from varl_jax.retrieval.lexicon import EMPTY
from varl_jax.rubrics.quantities import (
  Quantity,
  derivation,
  equation_for,
  quantities,
)
from varl_jax.service.passages import Passage
from varl_jax.types import Rubric, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """What supports one value of one criterion.

  Attributes:
    criterion: its index in the rubric.
    value: as written there.
    passage: name of the passage that states it, "" for none.
    computed: the computation that gives it, "" for none.
    in_task: whether the task states it.
  """

  criterion: int
  value: str
  passage: str = ""
  computed: str = ""
  in_task: bool = False

  @property
  def supported(self) -> bool:
    """Whether anything does."""
    return bool(self.passage or self.computed or self.in_task)


def check_key(
  rubric: Rubric, question: str, passages: Sequence[Passage]
) -> list[Finding]:
  """Findings for every value that a criterion names, in order."""
  stated = [(p.name, quantities(f"{p.title}\n{p.text}")) for p in passages]
  asked = quantities(question)
  known = [quantity for _, held in stated for quantity in held]
  return [
    _finding(index, criterion.text, value, stated, asked, known)
    for index, criterion in enumerate(rubric.criteria)
    for value in quantities(criterion.text)
  ]


def _finding(
  index: int,
  text: str,
  value: Quantity,
  stated: Sequence[tuple[str, list[Quantity]]],
  asked: Sequence[Quantity],
  known: Sequence[Quantity],
) -> Finding:
  for name, held in stated:
    if any(value.same_as(quantity) for quantity in held):
      return Finding(criterion=index, value=value.text, passage=name)
  if any(value.same_as(quantity) for quantity in asked):
    return Finding(criterion=index, value=value.text, in_task=True)
  computed = equation_for(value, text) or derivation(value, asked, known)
  return Finding(criterion=index, value=value.text, computed=computed)


def nearest_passages(
  rubric: Rubric, passages: Sequence[Passage]
) -> tuple[str, ...]:
  """For each criterion the name of the passage it is likest to, "" for none.

  What a criterion was written from is not recorded by the generator; of the
  passages a task names, this is the one to read first.
  """
  index = LexicalIndex.build([(f"{p.title}\n{p.text}",) for p in passages])
  names = []
  for criterion in rubric.criteria:
    found = best(index.scores(criterion.text, EMPTY), 1, above=0.0)
    names.append(passages[found[0]].name if len(found) else "")
  return tuple(names)


def with_flags(task: Task, passages: Sequence[Passage]) -> Task:
  """The task with one flag a value of its rubric that nothing supports."""
  question = task.prompt[-1].content
  findings = check_key(task.rubric, question, passages)
  flags = tuple(
    f"criterion {finding.criterion + 1}: {finding.value}"
    for finding in findings
    if not finding.supported
  )
  return dataclasses.replace(task, key_flags=flags)
