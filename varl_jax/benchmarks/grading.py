"""Verdicts on answers: by the judge, or by a criterion's own program.

The judge decides as in training, without the strict note unless it is asked for
(paper section 3). A vote that cannot be read is no vote; where that leaves a
criterion undetermined it is judged again, a bounded number of times, under
names of their own. What stays undetermined is neither met nor unmet.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Final

from varl_jax.benchmarks.protocol import BenchmarkTask
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.together import together
from varl_jax.roles.grading import Grader
from varl_jax.types import Rubric, Verdict

# Failures of a reply's content. Others have been tried again by the endpoint.
_CONTENT: Final = frozenset({"malformed", "refusal", "length"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerGrader:
  """Grades answers to a benchmark's tasks.

  Attributes:
    grader: judge and programs.
    seed: of the evaluation.
    strict: whether the judge gets the strict note.
    repeats: most times that an undetermined criterion is judged again.
    op: first part of the operations' names.
  """

  grader: Grader
  seed: int
  strict: bool = False
  repeats: int = 2
  op: str = "grade"

  async def grade(
    self,
    task: BenchmarkTask,
    answer: str,
    *,
    sample: int = 0,
    known: Mapping[int, Verdict] | None = None,
  ) -> tuple[Verdict, ...]:
    """One verdict a criterion, in order.

    Args:
      task: what was answered.
      answer: the final answer.
      sample: which of the task's answers it is.
      known: verdicts by criterion that need not be asked for.

    Raises:
      ChatError: a fatal one only, after which no call can succeed.
    """
    verdicts = dict(known or {})
    mark = zlib.crc32(answer.encode("utf-8", "surrogatepass"))
    op = f"{self.op}/{task.task_id}/{sample}/{mark:08x}"
    for repeat in range(self.repeats + 1):
      wanted = [
        index
        for index in range(len(task.criteria))
        if index not in verdicts or (repeat and _to_repeat(verdicts[index]))
      ]
      suffix = f"/again{repeat}" if repeat else ""
      found = await together(
        self._verdict(task, answer, index, f"{op}/{index}{suffix}")
        for index in wanted
      )
      verdicts.update(zip(wanted, found, strict=True))
    return tuple(verdicts[index] for index in range(len(task.criteria)))

  async def _verdict(
    self, task: BenchmarkTask, answer: str, index: int, op: str
  ) -> Verdict:
    (verdict,) = await self.grader.grade(
      task.prompt,
      answer,
      Rubric(criteria=(task.criteria[index],)),
      strict=self.strict,
      op=op,
      seed=self.seed,
    )
    return verdict


def _to_repeat(verdict: Verdict) -> bool:
  return verdict.met is None and bool(_CONTENT & set(verdict.failures))


@dataclasses.dataclass(frozen=True)
class NoJudge:
  """Stands where programs decide everything; asking it is a mistake."""

  name: str = "none"

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Refuses."""
    raise ChatError("rejected", "No judge is named; give --judge.")
