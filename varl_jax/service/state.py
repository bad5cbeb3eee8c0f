"""The service's state, a mirror of the event log.

`ServiceState` is rebuilt by applying every event in order and changes in no
other way, so a service opened on an old store goes on exactly as the one that
wrote it would have.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.config import Config
from varl_jax.rubrics import shape
from varl_jax.service.assessment import Tally, mean_of
from varl_jax.service.event_log import Event
from varl_jax.service.memo import MemoState
from varl_jax.service.pool import Pool
from varl_jax.service.writing import Order, delivered_shape
from varl_jax.types import Task, from_json

# Rollouts whose scores make the solver's rolling mean.
SOLVER_WINDOW: Final = 512
# Tasks whose texts make the corpus statistics.
CORPUS_WINDOW: Final = 64
# Exploits and patches remembered for the optimizers.
EVIDENCE_WINDOW: Final = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guidance:
  """A version of the evolved guidance; version 0 is empty."""

  version: int = 0
  proposer: str = ""
  generator: str = ""
  summary: str = ""


@dataclasses.dataclass(kw_only=True)
class StepLog:
  """What happened since the last report, for its metrics.

  Attributes:
    admissions: records of `admission.admission_record`.
    written: tasks that became valid.
    flagged: of these, those with values that nothing supports.
    dropped: problems of requests that were given up.
    rejected: a word for each reply that was no valid task.
    rewritten: criteria texts before and after each adopted rewrite.
    judged: votes counted in grading.
    replayed: tasks served from the replay queue.
  """

  admissions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  written: int = 0
  flagged: int = 0
  dropped: list[str] = dataclasses.field(default_factory=list)
  rejected: list[str] = dataclasses.field(default_factory=list)
  rewritten: list[tuple[list[str], list[str]]] = dataclasses.field(
    default_factory=list
  )
  judged: Tally = dataclasses.field(default_factory=Tally)
  replayed: int = 0

  def counts(self) -> dict[str, int]:
    """How much there is of what the background may add to at any time."""
    return {
      "admissions": len(self.admissions),
      "written": self.written,
      "flagged": self.flagged,
      "dropped": len(self.dropped),
      "rejected": len(self.rejected),
      "rewritten": len(self.rewritten),
    }

  def after(self, counted: Mapping[str, int]) -> "StepLog":
    """The log of the next step, once `counted` went into a report."""
    return StepLog(
      admissions=self.admissions[counted["admissions"] :],
      written=self.written - counted["written"],
      flagged=self.flagged - counted.get("flagged", 0),
      dropped=self.dropped[counted["dropped"] :],
      rejected=self.rejected[counted["rejected"] :],
      rewritten=self.rewritten[counted["rewritten"] :],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoProbe:
  """One usable probe of a task as it was written."""

  memo: int
  lead: float
  honest: float


class ServiceState:
  """Everything the service decides from.

  `leads` are the adversary's at admission since the latest guidance, `samples`
  the answers kept for the next one, `failures` the optimizers' failed calls.
  """

  def __init__(self, config: Config):
    self._config = config
    self.pool = Pool()
    # Tasks of steps that are not reported yet, and of the last that was.
    self.served: dict[int, list[Task]] = {}
    self.batches = 0
    self.next_task = 0
    self.orders: dict[str, Order] = {}
    self.shape = shape.ShapeState()
    self.scores: collections.deque[float] = collections.deque(
      maxlen=SOLVER_WINDOW
    )
    self.corpus: collections.deque[Task] = collections.deque(
      maxlen=CORPUS_WINDOW
    )
    self.guidance = [Guidance()]
    # What orders were made under, by version. Orders without a step outlive a
    # rewind of the version that they name.
    self.ordered_guidance: dict[int, Guidance] = {}
    self.ordered_memos: dict[int, str] = {}
    self.train_scores: dict[int, tuple[float, int]] = {}
    self.samples: list[Mapping[str, Any]] = []
    self.leads: list[float] = []
    self.exploits: collections.deque[dict[str, Any]] = collections.deque(
      maxlen=EVIDENCE_WINDOW
    )
    self.patches: collections.deque[dict[str, Any]] = collections.deque(
      maxlen=EVIDENCE_WINDOW
    )
    self.memo = MemoState()
    self.memo_probes: list[MemoProbe] = []
    self.sealed: dict[str, int] = {}
    # Tasks with a pair that the check of pairs called equal.
    self.settled: set[str] = set()
    self.first_patch: dict[str, float] = {}
    self.patched: set[str] = set()
    self.reports = 0
    self.failures: collections.Counter[str] = collections.Counter()
    self.log = StepLog()
    self._handlers = {
      "requests": self._requests,
      "task": self._task,
      "served": self._served,
      "judged": self._judged,
      "windows": self._windows,
      "case": self._case,
      "patch": self._patch,
      "sealed": self._sealed,
      "rankings": self._kept,
      "rewards": self._kept,
      "guidance": self._guidance,
      "memo": self._memo,
      "failure": self._failure,
      "reported": self._reported,
    }

  def apply(self, event: Event) -> None:
    """Follows one event; an unknown kind is a KeyError."""
    self._handlers[event.kind](event.step, event.payload)

  @property
  def solver_mean(self) -> float | None:
    """The solver's rolling mean training score, None before the first."""
    return mean_of(list(self.scores))

  def train_mean(self, version: int) -> float | None:
    """Mean training score over tasks of one guidance version."""
    total, count = self.train_scores.get(version, (0.0, 0))
    return total / count if count else None

  def next_guidance(self, proposer: str, generator: str) -> int:
    """The number of new guidance; never one that names another text.

    A version that was rewound keeps its number where orders were made under
    it, and gets it back when the same text comes again.
    """
    number = self.guidance[-1].version + 1
    while known := self.ordered_guidance.get(number):
      if (known.proposer, known.generator) == (proposer, generator):
        break
      number += 1
    return number

  def _requests(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.batches += 1
    guidance, memo = Guidance(**payload["guidance"]), payload["memo"]
    self.ordered_guidance[guidance.version] = guidance
    self.ordered_memos[memo["version"]] = memo["text"]
    for data in payload["orders"]:
      order = Order(**data)
      self.orders[order.task_id] = order
    self.next_task += len(payload["orders"])

  def _task(self, step: int | None, payload: Mapping[str, Any]) -> None:
    order = self.orders.pop(payload["task_id"])
    self.log.rejected += payload["rejected"]
    if payload["task"] is None:
      self.log.dropped.append(payload["problem"])
      return
    task = from_json(Task, payload["task"])
    self.pool.add(task)
    self.corpus.append(task)
    self.log.written += 1
    self.log.flagged += bool(task.key_flags)
    written = shape.Shape(**payload["shape"])
    self.shape = shape.record_shape(
      self.shape,
      order.shape,
      written,
      red_team=order.red_team,
      targets=shape_targets(self._config),
    )
    admission = payload["admission"]
    if admission is None:
      return
    self.log.admissions.append(admission)
    if admission["adopted"] is not None:
      before = [criterion["text"] for criterion in payload["criteria"]]
      after = [criterion.text for criterion in task.rubric.criteria]
      self.log.rewritten.append((before, after))
    if admission["lead"] is not None:
      self.leads.append(admission["lead"])
      self.memo_probes.append(
        MemoProbe(
          memo=task.memo_version,
          lead=admission["lead"],
          honest=admission["honest"],
        )
      )
    if admission["outcome"] == "exploitable":
      self.exploits.append(
        {
          "source": "admission",
          "request": payload["request"],
          "criteria": payload["criteria"],
          "exploit": admission["exploit"],
          "gap": admission["lead"],
        }
      )

  def _served(self, step: int | None, payload: Mapping[str, Any]) -> None:
    names = [*payload["replay"], *payload["fresh"]]
    tasks = [task for name in names if (task := self.pool.get(name))]
    assert step is not None
    self.served[step] = tasks
    self.pool.mark_served(names)
    self.log.replayed += len(payload["replay"])

  def _judged(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.log.judged += Tally(**payload)

  def _windows(self, step: int | None, payload: Mapping[str, Any]) -> None:
    keep = self._config.pool.window
    requeued = set(payload["requeued"])
    for group in payload["groups"]:
      name, scores = group["task_id"], group["scores"]
      self.scores.extend(scores)
      total, count = self.train_scores.get(group["guidance"], (0.0, 0))
      self.train_scores[group["guidance"]] = (
        total + sum(scores),
        count + len(scores),
      )
      if name not in requeued:
        self.pool.record(name, scores, keep)
      if scores:
        self.first_patch.pop(name, None)
    self.pool.evict(payload["evicted"].keys())
    for name in payload["requeued"]:
      self.pool.requeue(name)
    self.samples += payload["samples"]

  def _case(self, step: int | None, payload: Mapping[str, Any]) -> None:
    case, pair = payload["case"], payload.get("pair")
    if pair == "equal":
      self.settled.add(case["task"]["task_id"])
    if pair in ("equal", "refuted"):
      return
    self.exploits.append(
      {
        "source": case["source"],
        "request": case["task"]["prompt"][-1]["content"],
        "criteria": case["task"]["rubric"]["criteria"],
        "exploit": case["exploit"]["answer"],
        "gap": case["gap"],
      }
    )

  def _patch(self, step: int | None, payload: Mapping[str, Any]) -> None:
    if payload["task"] is None:
      return
    task = from_json(Task, payload["task"])
    self.pool.put_back(task)
    self.sealed.pop(task.task_id, None)
    patch = payload["patch"]
    self.patches.append(
      {
        "label": patch["label"],
        "source": payload["source"],
        "criteria": [
          item["criterion"] for item in patch["items"] if not item["rejected"]
        ],
        "gap_before": patch["gap_before"],
        "gap_after": patch["gap_after"],
      }
    )
    if task.task_id not in self.patched:
      self.patched.add(task.task_id)
      if payload["group_mean"] is not None:
        self.first_patch[task.task_id] = payload["group_mean"]

  def _sealed(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.sealed[payload["task_id"]] = payload["version"]

  def _kept(self, step: int | None, payload: Mapping[str, Any]) -> None:
    """Kept for the trainer; nothing here depends on it."""

  def _guidance(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.guidance.append(
      Guidance(
        version=payload["version"],
        proposer=payload["proposer"],
        generator=payload["generator"],
        summary=payload["summary"],
      )
    )
    del self.leads[: payload["probes"]]

  def _failure(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.failures[payload["role"]] += 1

  def _memo(self, step: int | None, payload: Mapping[str, Any]) -> None:
    self.memo = from_json(MemoState, payload["state"])
    del self.memo_probes[: payload["probes"]]

  def _reported(self, step: int | None, payload: Mapping[str, Any]) -> None:
    assert step is not None
    self.reports += 1
    for old in [known for known in self.served if known < step]:
      del self.served[old]
    self.log = self.log.after(payload["counted"])
    if payload["evolved"]:
      self.samples = []


def shape_targets(config: Config) -> shape.Targets:
  """What the settings steer rubrics towards."""
  return shape.Targets(
    positives=config.rubric.positive_mean,
    negatives=config.rubric.negative_share,
  )


def written_payload(
  task_id: str,
  *,
  task: Mapping[str, Any] | None,
  first: Task | None,
  admission: Mapping[str, Any] | None,
  rejected: Sequence[str],
  problem: str,
) -> dict[str, Any]:
  """Payload of a `task` event.

  Args:
    task_id: the order's name.
    task: the task as it enters the pool, None when the order was dropped.
    first: the task as the generator wrote it.
    admission: its record, None without admission.
    rejected: a word for each reply that was no valid task.
    problem: of a dropped order.
  """
  payload: dict[str, Any] = {
    "task_id": task_id,
    "task": task,
    "admission": admission,
    "rejected": list(rejected),
    "problem": problem,
  }
  if first is not None:
    payload["shape"] = dataclasses.asdict(
      delivered_shape(first.rubric.criteria)
    )
    payload["request"] = first.prompt[-1].content
    payload["criteria"] = [
      {"text": item.text, "points": item.points}
      for item in first.rubric.criteria
    ]
  return payload
