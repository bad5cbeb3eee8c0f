"""What makes a rubric unfit for use (paper appendix B).

Problems are returned as sentences rather than raised, so that a caller can
salvage, retry or report; an empty list means the rubric is fit.
"""

import math
import re
from typing import Final

from varl_jax.types import Criterion, Rubric

MIN_CRITERIA: Final = 1
MAX_CRITERIA: Final = 6
MAX_PATCHED_CRITERIA: Final = 12
MAX_ABS_POINTS: Final = 10

# A criterion describes content. One that opens by naming the graded text or by
# telling the grader what to do with points is refused; only whole words count,
# so `Awards the medal` and `Marks the door` are fine while `Mark the door` is
# not (a character of that name pays for it, which costs one retry).
ADDRESSING: Final = (
  "the response",
  "the answer",
  "the model",
  "award",
  "deduct",
  "penalise",
  "penalize",
  "score",
  "mark",
)

# Verbs that say something is absent. They count as the criterion's main verb:
# at its start or after a short subject, so that a false claim which happens to
# contain one (`Claims the drug does not interact`) is a legitimate mistake.
_ABSENT_VERB = (
  r"(?:does|do|did)\s+not|(?:does|do|did)n't|fail(?:s|ed)?\s+to|omit(?:s|ted)?"
  r"|lack(?:s|ed)?|avoid(?:s|ed)?|neglect(?:s|ed)?|leaves?\s+out"
)
_ABSENT_STATE = (
  r"(?:is|are|was|were)\s+(?:not|missing|absent)|(?:is|are|was|were)n't|never"
  r"|(?:has|contains|includes|gives|makes|offers|provides|mentions)\s+no"
)
_ABSENT_START = (
  r"not|no|without|missing|absent|absence\s+of|lack\s+of|omission\s+of"
  r"|failing\s+to|omitting|lacking|avoiding|neglecting|leaving\s+out"
)
_SUBJECT = r"it|there|(?:the|a|an|this|that|its)(?:\s+[\w'-]+){1,2}"
_ABSENCE = re.compile(
  rf"(?:{_ABSENT_START}|{_ABSENT_VERB}|{_ABSENT_STATE}"
  rf"|(?:{_SUBJECT})\s+(?:{_ABSENT_VERB}|{_ABSENT_STATE})"
  rf"|[\w'-]+\s+(?:{_ABSENT_VERB}))\b"
)
_ADDRESS = re.compile(
  "(?:" + "|".join(a.replace(" ", r"\s+") for a in ADDRESSING) + r")\b"
)
# Quotes, bullets and numbering before the first word do not hide it.
_LEADING = re.compile(r"^(?:[\W_]|\d+[.)])+")


def addresses_judge(text: str) -> bool:
  """Whether a criterion opens by addressing the answer or its grader."""
  return _ADDRESS.match(_opening(text)) is not None


def describes_absence(text: str) -> bool:
  """Whether the main verb of a criterion says that something is absent.

  As a negative criterion such a text is met by doing nothing, and a grader that
  credits only what is stated cannot decide it.
  """
  return _ABSENCE.match(_opening(text)) is not None


def criterion_problems(criterion: Criterion) -> list[str]:
  """Lists what is wrong with one criterion, apart from its rubric."""
  problems = []
  if not criterion.text.strip():
    problems.append("The criterion has no text.")
  points = criterion.points
  if (
    isinstance(points, bool)
    or not math.isfinite(points)
    or points == 0
    or abs(points) > MAX_ABS_POINTS
  ):
    problems.append(
      f"Points are between -{MAX_ABS_POINTS} and {MAX_ABS_POINTS} and not 0,"
      f" got {points!r}."
    )
  if addresses_judge(criterion.text):
    problems.append(f"It addresses the judge: {criterion.text[:40]!r}.")
  if points < 0 and describes_absence(criterion.text):
    problems.append(
      f"A negative names a mistake, not an absence: {criterion.text[:40]!r}."
    )
  return problems


def rubric_problems(rubric: Rubric, *, patched: bool = False) -> list[str]:
  """Lists what is wrong with a rubric.

  Args:
    rubric: the rubric.
    patched: whether a repair wrote it, which raises the cap on criteria.
  """
  problems = []
  most = MAX_PATCHED_CRITERIA if patched else MAX_CRITERIA
  count = len(rubric.criteria)
  if not MIN_CRITERIA <= count <= most:
    problems.append(
      f"A rubric has {MIN_CRITERIA} to {most} criteria, got {count}."
    )
  if not any(criterion.points > 0 for criterion in rubric.criteria):
    problems.append("A rubric has at least one positive criterion.")
  for number, criterion in enumerate(rubric.criteria, 1):
    found = criterion_problems(criterion)
    problems += [f"Criterion {number}: {problem}" for problem in found]
  return problems


def _opening(text: str) -> str:
  plain = text.replace("\u2019", "'")
  return _LEADING.sub("", plain).casefold()
