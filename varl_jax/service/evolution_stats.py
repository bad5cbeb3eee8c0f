"""What guidance evolution is told in numbers (paper appendix D); pure logic.

Models diagnose single cases; sampling, counting and corpus statistics are done
here, so that the optimizer reads arithmetic and not impressions.
"""

import collections
import dataclasses
import itertools
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from varl_jax.types import Diagnosis, Task

SHINGLE_WORDS: Final = 3

NO_DEFECT: Final = "none"
NON_ANSWER: Final = "non_answer"
FAIR_FAILURE: Final = "model_failed_fair_task"
GENERATOR_FAULT: Final = "generator_at_fault"
# An answer that never ended is labelled in code. It is counted as such and
# nowhere else: it says nothing about knowledge, task or rubric.
TRUNCATED: Final = Diagnosis(
  failure_mode=NON_ANSWER,
  rubric_defect=NO_DEFECT,
  task_defect=NO_DEFECT,
  verdict=FAIR_FAILURE,
  gap="",
)

_WORD = re.compile(r"\w+")


def sample_cases(
  scores: Sequence[float | None],
  count: int = 20,
  *,
  rng: random.Random,
  worst_share: float = 0.5,
  best_share: float = 0.25,
  uniform: Collection[int] | None = None,
) -> list[int]:
  """Draws cases for the analyst: the worst, the best, the rest at random.

  Args:
    scores: one a graded answer; None (unscorable) is never drawn.
    count: how many; all of them when there are fewer.
    rng: seeded by the caller; also breaks ties between equal scores.
    worst_share: share of `count` with the lowest scores.
    best_share: share with the highest scores of those left.
    uniform: indices that the random cases come from, None for all; for scores
      that were themselves picked, in which the rest is no fair sample.

  Returns:
    Indices into `scores`: worst first, then best, then random.
  """
  order = [i for i, score in enumerate(scores) if score is not None]
  rng.shuffle(order)
  order.sort(key=lambda index: scores[index])  # pyright: ignore
  count = min(count, len(order))
  worst = min(count, _rounded(count * worst_share))
  best = min(count - worst, _rounded(count * best_share))
  middle = order[worst : len(order) - best]
  tail = order[len(order) - best :]
  if uniform is not None:
    middle = [index for index in middle if index in uniform]
  rest = min(len(middle), count - worst - best)
  return [*order[:worst], *reversed(tail), *rng.sample(middle, rest)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiagnosisCounts:
  """Counts over one round's cases; `none` values are left out.

  Attributes:
    cases: how many cases.
    non_answers: cases labelled `non_answer` in code.
    verdicts: all cases but the non-answers, by verdict.
    capability: failure modes of fair tasks the solver failed.
    rubric_defects: of cases blamed on the generator.
    task_defects: likewise.
    gaps: the free texts of fair tasks the solver failed, in order.
  """

  cases: int
  non_answers: int
  verdicts: dict[str, int]
  capability: dict[str, int]
  rubric_defects: dict[str, int]
  task_defects: dict[str, int]
  gaps: tuple[str, ...]


def count_diagnoses(diagnoses: Sequence[Diagnosis]) -> DiagnosisCounts:
  """Counts what may steer the guidance, apart from what may not.

  Only failed fair tasks count as gaps of the solver, and only cases with the
  generator at fault count as its bugs; `TRUNCATED` steers nothing.
  """
  read = [d for d in diagnoses if d != TRUNCATED]
  fair = [d for d in read if d.verdict == FAIR_FAILURE]
  faulty = [d for d in read if d.verdict == GENERATOR_FAULT]
  return DiagnosisCounts(
    cases=len(diagnoses),
    non_answers=len(diagnoses) - len(read),
    verdicts=_count(d.verdict for d in read),
    capability=_count(d.failure_mode for d in fair),
    rubric_defects=_count(d.rubric_defect for d in faulty),
    task_defects=_count(d.task_defect for d in faulty),
    gaps=tuple(d.gap for d in fair if d.gap),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusStatistics:
  """Shape and diversity of a set of tasks, or of a benchmark as reference.

  None stands for what is not known, as of a benchmark, or does not exist.

  Attributes:
    tasks: how many.
    criteria_per_task: mean.
    criterion_chars: mean length of a criterion.
    negative_share: share of tasks with a negative criterion.
    use_cases: share of tasks by use case.
    specialties: distinct ones, capitals aside.
    self_similarity: mean over pairs of tasks of the Jaccard index of their
      requests' word shingles, in [0, 1]; 0 below two tasks.
  """

  tasks: int
  criteria_per_task: float | None = None
  criterion_chars: float | None = None
  negative_share: float | None = None
  use_cases: dict[str, float] | None = None
  specialties: int | None = None
  self_similarity: float | None = None


def corpus_statistics(tasks: Sequence[Task]) -> CorpusStatistics:
  """Measures tasks; specialties are unknown where no task names its own.

  Raises:
    ValueError: no tasks.
  """
  if not tasks:
    raise ValueError("Statistics need at least one task.")
  criteria = [item for task in tasks for item in task.rubric.criteria]
  negative = [
    any(item.points < 0 for item in task.rubric.criteria) for task in tasks
  ]
  mix = collections.Counter(task.use_case for task in tasks)
  branches = {task.specialty.casefold() for task in tasks if task.specialty}
  return CorpusStatistics(
    tasks=len(tasks),
    criteria_per_task=len(criteria) / len(tasks),
    criterion_chars=sum(len(item.text) for item in criteria)
    / max(1, len(criteria)),
    negative_share=sum(negative) / len(tasks),
    use_cases={name: n / len(tasks) for name, n in sorted(mix.items())},
    specialties=len(branches) or None,
    self_similarity=self_similarity([_request(task) for task in tasks]),
  )


def drift(
  measured: CorpusStatistics, reference: CorpusStatistics
) -> dict[str, float]:
  """Measured minus reference, for each number both have.

  Use cases are keyed `use_cases/NAME`; one that is missing counts as share 0.
  """
  moved = {}
  for field in dataclasses.fields(CorpusStatistics):
    a, b = getattr(measured, field.name), getattr(reference, field.name)
    if field.name == "tasks" or a is None or b is None:
      continue
    if isinstance(a, Mapping):
      for name in sorted({*a, *b}):
        moved[f"{field.name}/{name}"] = a.get(name, 0.0) - b.get(name, 0.0)
    else:
      moved[field.name] = float(a - b)
  return moved


def shingles(text: str, size: int = SHINGLE_WORDS) -> frozenset[str]:
  """Runs of `size` words of `text`; a shorter text is one shingle."""
  words = _WORD.findall(text.casefold())
  if not words:
    return frozenset()
  return frozenset(
    " ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1))
  )


def self_similarity(texts: Sequence[str]) -> float:
  """Mean Jaccard index of shingles over all pairs; 0 below two texts."""
  sets = [shingles(text) for text in texts]
  pairs = [
    len(a & b) / (len(a | b) or 1) for a, b in itertools.combinations(sets, 2)
  ]
  return math.fsum(pairs) / len(pairs) if pairs else 0.0


def _request(task: Task) -> str:
  return "\n".join(m.content for m in task.prompt if m.role == "user")


def _count(labels: Iterable[str]) -> dict[str, int]:
  """Counts labels but `none`, the most frequent first, then by name."""
  counts = collections.Counter(x for x in labels if x != NO_DEFECT)
  return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rounded(value: float) -> int:
  return math.floor(value + 0.5)
