"""What a benchmark is: one protocol for all of them, a user's own included.

A `Benchmark` is data and a few pure functions:

    load        `to_task` reads one row; which files and hashes are known
    conversation `BenchmarkTask.prompt`, rendered by `to_task`
    criteria    `BenchmarkTask.criteria`, points verbatim
    score       `measures`, from the met criteria of one answer
    aggregate   `mean_over`, a plain mean or a mean of groups' means
    breakdowns  `BenchmarkTask.groups` and `criterion_groups`
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.scoring import raw_score, rubric_score
from varl_jax.types import Criterion, Message, Rubric, Task

# Values by kind, such as {"theme": ("emergency",)}.
Groups = Mapping[str, tuple[str, ...]]


class BenchmarkError(ValueError):
  """Data or results that cannot be used; one sentence with the mend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkTask:
  """One item of a benchmark.

  Attributes:
    task_id: unique in the data.
    prompt: the conversation to answer, its last turn the user's. No criterion
      and no label is in it.
    criteria: text and points as the data have them.
    groups: what the item belongs to, for breakdowns of its score.
    criterion_groups: likewise for each criterion, whose groups get a ratio of
      their own; empty without any.
    images: files or data URLs that belong to the last turn.
    attachments: names of files that the prompt refers to and does not hold.
    canary: the text that marks the data; never shown.
  """

  task_id: str
  prompt: tuple[Message, ...]
  criteria: tuple[Criterion, ...]
  groups: Groups = dataclasses.field(default_factory=dict)
  criterion_groups: tuple[Groups, ...] = ()
  images: tuple[str, ...] = ()
  attachments: tuple[str, ...] = ()
  canary: str = dataclasses.field(default="", repr=False)

  @property
  def rubric(self) -> Rubric:
    """The criteria as roles and graders take them."""
    return Rubric(criteria=self.criteria)

  def as_task(self) -> Task:
    """The task as the policy answers it."""
    return Task(task_id=self.task_id, prompt=self.prompt, rubric=self.rubric)


# From a task, whether each criterion was met, and the answer, to named values.
# "score" is the benchmark's own; "unclipped" (r) and "raw" are added by
# `scoring.score`.
Measures = Callable[[BenchmarkTask, Sequence[bool], str], dict[str, float]]


def ratio(task: BenchmarkTask, met: Sequence[bool]) -> float:
  """Earned points over positive points.

  Raises:
    ValueError: no criterion has positive points.
  """
  return rubric_score([item.points for item in task.criteria], met)


def clipped(
  task: BenchmarkTask, met: Sequence[bool], answer: str
) -> dict[str, float]:
  """The ratio, clipped to [0, 1] for each task."""
  return {"score": raw_score(ratio(task, met))}


def unclipped(
  task: BenchmarkTask, met: Sequence[bool], answer: str
) -> dict[str, float]:
  """The ratio as it is, negative ones included."""
  return {"score": ratio(task, met)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialJudge:
  """The judge the authors grade with; `votes` calls a criterion."""

  model: str
  effort: str = ""
  votes: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
  """One benchmark.

  Attributes:
    name: as given to `--benchmark`.
    title: for people.
    to_task: turns a row into a task; the second argument names the file it came
      from, without its ending. May raise ValueError, KeyError or TypeError,
      which is reported with file and line.
    page: where the data are to be had; "" for a user's own.
    files: patterns of the files in a folder without their endings, alternatives
      separated by `|`; one file of each must be there.
    size: tasks of the whole data, None where any number is.
    sha256: known hashes by ending of the file.
    measures: the values of an answer.
    mean_over: kind of group whose means are averaged with equal weight; "" for
      the mean over tasks.
    domain: whose prompts the judge and the solver read.
    official_judge: the authors', where they name one.
    checks: programs that decide criteria with a `check`.
    guarded: whether the authors ask that items are not shown.
  """

  name: str
  title: str
  to_task: Callable[[Mapping[str, Any], str], BenchmarkTask]
  page: str = ""
  files: tuple[str, ...] = ("*",)
  size: int | None = None
  sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)
  measures: Measures = clipped
  mean_over: str = ""
  domain: str = "clinical"
  official_judge: OfficialJudge | None = None
  checks: CheckRegistry = dataclasses.field(default_factory=CheckRegistry)
  guarded: bool = False


def text_of(row: Mapping[str, Any], key: str) -> str:
  """A row's text.

  Raises:
    ValueError: it is missing, no text, or empty.
  """
  value = row.get(key)
  if not isinstance(value, str) or not value.strip():
    raise ValueError(f"{key!r} is no text: {value!r:.60}.")
  return value


def points_of(value: Any) -> float:
  """Points as the data have them: whole numbers stay whole.

  Raises:
    ValueError: no finite number.
  """
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f"Points are a number, got {value!r:.60}.")
  if value != value or abs(value) == float("inf"):
    raise ValueError(f"Points are finite, got {value!r}.")
  return value


def turns_of(value: Any) -> tuple[Message, ...]:
  """A conversation of `{role, content}` turns that ends with the user's.

  Raises:
    ValueError: it is not of that form.
  """
  if not isinstance(value, (list, tuple)) or not value:
    raise ValueError(f"The conversation is no list of turns: {value!r:.60}.")
  turns = []
  for turn in value:
    if not isinstance(turn, Mapping):
      raise ValueError(f"A turn is an object, got {turn!r:.60}.")
    role, content = turn.get("role"), turn.get("content")
    if role not in ("system", "user", "assistant"):
      raise ValueError(f"A turn has the unknown role {role!r:.60}.")
    if not isinstance(content, str):
      raise ValueError(f"The content of a turn is no text: {content!r:.60}.")
    turns.append(Message(role=role, content=content))
  if turns[-1].role != "user":
    raise ValueError(f"The last turn is the user's, got {turns[-1].role!r}.")
  return tuple(turns)


def criterion(
  text: str, points: float, *, check: str | None = None
) -> Criterion:
  """A criterion of a benchmark."""
  return Criterion(text=text, points=points, check=check, source="benchmark")


def groups_of(**values: Any) -> dict[str, tuple[str, ...]]:
  """Groups from a row's fields; what a row leaves empty is left out."""
  return {
    kind: (str(value).strip(),)
    for kind, value in values.items()
    if value is not None and str(value).strip()
  }
