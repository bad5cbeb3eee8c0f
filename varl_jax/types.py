"""Values that travel between the parts; behaviour lives elsewhere.

Everything here is frozen and made of plain values, so that it can be stored as
JSON, compared in tests and sent to another process (`to_json`, `from_json`).
"""

import dataclasses
import functools
import types as python_types
import typing
from collections.abc import Mapping
from typing import Any, Literal

CaseSource = Literal["on_policy", "re_attack"]
Finish = Literal["stop", "length"]
# Why a tool call gave no result; "" in a `ToolResult` that is one.
ToolFailure = Literal[
  "",
  "malformed",
  "unknown_tool",
  "bad_arguments",
  "limit",
  "timeout",
  "unavailable",
  "refused",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
  """One turn of a conversation; `role` is system, user or assistant."""

  role: str
  content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Criterion:
  """One rubric item.

  Attributes:
    text: what a grader looks for, one sentence.
    points: in [-10, 10], never 0; positive for content an answer should have,
      negative for a mistake it should not make.
    check: a programmatic verifier such as `uses(mia, rope)`, or None when a
      judge decides (see `rubrics.checks`).
    source: who wrote it: `generator`, `admission`, `patch`, or a role of
      another method.
  """

  text: str
  points: float
  check: str | None = None
  source: str = "generator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rubric:
  """Weighted criteria; `version` grows by one with every repair."""

  criteria: tuple[Criterion, ...]
  version: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A request with its rubric, as served to the trainer.

  Attributes:
    task_id: unique within a run.
    prompt: the conversation the solver answers (no system turn).
    rubric: the rubric at this serving; one version for a whole group.
    use_case: the domain's own kind of task.
    specialty: the branch of its field, "" where the field has none.
    red_team: whether the task sets a trap.
    guidance_version: version of the guidance that wrote it.
    memo_version: version of the memo that wrote it.
    cached_honest: the honest answer kept from admission, "" before it.
    patches: repairs accepted so far.
    passages: names of the reference passages it was written from.
    key_flags: values of the rubric that nothing supports, where that is
      checked (`service.answer_key`).
  """

  task_id: str
  prompt: tuple[Message, ...]
  rubric: Rubric
  use_case: str = ""
  specialty: str = ""
  red_team: bool = False
  guidance_version: int = 0
  memo_version: int = 0
  cached_honest: str = ""
  patches: int = 0
  passages: tuple[str, ...] = ()
  key_flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """One criterion judged on one answer.

  Attributes:
    met: True, False, or None when the votes were undetermined.
    votes: each readable vote in order.
    explanation: the reason given by a vote of the majority.
    judge: who decided, `check` for a programmatic verifier; never empty.
    failures: typed reasons of the votes that could not be read.
  """

  met: bool | None
  votes: tuple[bool, ...]
  explanation: str
  judge: str
  failures: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSpec:
  """What a model is told of a tool.

  Attributes:
    name: what it is called by.
    description: what it is good for, and when.
    arguments: descriptions by name; all are texts and all are needed.
  """

  name: str
  description: str
  arguments: Mapping[str, str]

  def schema(self) -> dict[str, Any]:
    """The tool as chat templates want it, in OpenAI's form."""
    parameters = {
      "type": "object",
      "properties": {
        name: {"type": "string", "description": text}
        for name, text in self.arguments.items()
      },
      "required": list(self.arguments),
    }
    return {
      "type": "function",
      "function": {
        "name": self.name,
        "description": self.description,
        "parameters": parameters,
      },
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
  """A call that a model wrote.

  Attributes:
    op: unique name of the operation in the run, the same after a restart.
    name: of the tool.
    arguments: texts by name.
  """

  op: str
  name: str
  arguments: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult:
  """What a model sees of a call.

  Attributes:
    text: the result, or a sentence on why there is none.
    failure: "" for a result.
  """

  text: str
  failure: ToolFailure = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
  """One sampled answer of the solver to one task.

  `tokens`, `logprobs` and `mask` have one entry a generated token; `mask` is 1
  where the solver wrote the token and 0 inside tool spans.

  Attributes:
    task_id: the task answered.
    sample: index in the group, 0..n-1.
    answer: the final answer's text, None when reasoning never closed.
    tokens: generated token ids.
    logprobs: log-probability of each token when it was sampled (nats).
    mask: 1 for trained tokens.
    finish: `stop`, or `length` when the token limit ended it.
    reasoning_chars: characters of the reasoning before the answer.
    tool_results: how each tool call ended, a failure or "", in order.
  """

  task_id: str
  sample: int
  answer: str | None
  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]
  mask: tuple[int, ...]
  finish: Finish
  reasoning_chars: int = 0
  tool_results: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradedAnswer:
  """An answer with its verdicts, one for each criterion in order.

  A method that rates answers as a whole has one verdict, of the rating.

  Attributes:
    sample: index in the group.
    answer: the text that was graded; None when there was no final answer.
    verdicts: one a criterion, or one; empty without an answer to judge.
    score: the training score, None when unscorable.
    raw: the score clipped to [0, 1], without a length term; None likewise.
    truncated: whether there was no final answer.
    finish: as in `Rollout`.
    reasoning_chars: likewise.
  """

  sample: int
  answer: str | None
  verdicts: tuple[Verdict, ...]
  score: float | None
  raw: float | None
  truncated: bool = False
  finish: Finish = "stop"
  reasoning_chars: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradedGroup:
  """All answers to one serving of one task, under one rubric version."""

  task: Task
  step: int
  answers: tuple[GradedAnswer, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupRanking:
  """What the blind referee made of one group.

  Attributes:
    task_id: the group's task.
    tiers: indices into the group's answers, the best tier first.
    repaired: (better, worse) of the group's exploit case, when criteria that
      tell the two apart were accepted; else empty.
  """

  task_id: str
  tiers: tuple[tuple[int, ...], ...]
  repaired: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExploitCase:
  """A pair in which the rubric paid the worse answer more (spec section 7).

  Attributes:
    case_id: unique within a run.
    task: the task with the rubric the pair was scored under.
    step: the training step it was found in.
    source: `on_policy` (the referee) or `re_attack` (the adversary).
    exploit: the overpaid answer.
    honest: the better answer that earned less.
    gap: exploit score minus honest score.
  """

  case_id: str
  task: Task
  step: int
  source: CaseSource
  exploit: GradedAnswer
  honest: GradedAnswer
  gap: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchItem:
  """One proposed criterion with both verdicts and what became of it.

  `rejected` is "" when it was accepted, else one typed reason.
  """

  criterion: Criterion
  on_exploit: Verdict | None
  on_honest: Verdict | None
  on_cached: Verdict | None = None
  rejected: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
  """One repair round of a case.

  Attributes:
    case_id: the case it repairs.
    task_id: its task.
    step: training step.
    round: 1 or 2.
    label: one exploit label of the closed list.
    items: every proposed criterion.
    before: the rubric the case was scored under.
    after: the repaired rubric, None when nothing was accepted.
    gap_before: exploit minus honest score under `before`.
    gap_after: the same pair's gap under `after`; None without one.
  """

  case_id: str
  task_id: str
  step: int
  round: int
  label: str
  items: tuple[PatchItem, ...]
  before: Rubric
  after: Rubric | None
  gap_before: float
  gap_after: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
  """What the analyst says of one graded case; closed vocabularies."""

  failure_mode: str
  rubric_defect: str
  task_defect: str
  verdict: str
  gap: str


def to_json(value: Any) -> Any:
  """Turns a value of this module into lists, dicts and scalars."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {
      field.name: to_json(getattr(value, field.name))
      for field in dataclasses.fields(value)
    }
  if isinstance(value, (list, tuple)):
    return [to_json(item) for item in value]
  if isinstance(value, Mapping):
    return {str(key): to_json(item) for key, item in value.items()}
  return value


def from_json(kind: Any, data: Any) -> Any:
  """Rebuilds what `to_json` wrote.

  Args:
    kind: the class or annotation to build, such as `Task`.
    data: the parsed JSON.

  Returns:
    A value of `kind`.

  Raises:
    ValueError: a field is missing or unknown.
  """
  origin = typing.get_origin(kind)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    hints = _hints(kind)
    unknown = set(data) - set(hints)
    if unknown:
      raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}.")
    made = {name: from_json(hints[name], item) for name, item in data.items()}
    try:
      return kind(**made)  # pyright: ignore[reportCallIssue]
    except TypeError as error:
      raise ValueError(f"Incomplete {kind.__name__}: {error}.") from error
  if origin is tuple:
    return tuple(from_json(typing.get_args(kind)[0], item) for item in data)
  if origin in (typing.Union, python_types.UnionType):
    if data is None:
      return None
    inner = [a for a in typing.get_args(kind) if a is not type(None)]
    return from_json(inner[0], data)
  return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
  """Types of a class's fields; reading them anew takes most of the time."""
  return typing.get_type_hints(kind)
