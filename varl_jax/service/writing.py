"""New tasks: requests by the proposer, task and rubric by the generator.

How many positive criteria to write and whether to add a negative is drawn per
request from `rubrics.shape`; a task that breaks the rules of
`rubrics.validation` is asked for again under a new name, `RETRIES` times, and
then dropped and counted.

With a source of passages, each call of the proposer starts from one of its own
and writes fewer requests, so that they do not crowd around one page; the
generator gets the passages found for its request. The names of all of them stay
with the task. A request whose passages could not be searched is dropped: a task
written from memory would pass for one that is grounded.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Final, Protocol

from varl_jax.llm.chat import ChatError
from varl_jax.llm.seeds import derive_seed
from varl_jax.llm.together import together
from varl_jax.roles.generator import Generator
from varl_jax.roles.proposer import Proposer, Request
from varl_jax.roles.writing import GeneratedTask
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.shape import RED_TEAM_COUNTS, Shape
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service.admission import check_problems
from varl_jax.service.calls import ServiceFailure, attempt
from varl_jax.service.passages import (
  Passage,
  PassageError,
  PassageSource,
  passage_text,
)
from varl_jax.types import Criterion, Message, Rubric, Task

RETRIES: Final = 3
PROPOSALS_PER_CALL: Final = 16
PROPOSALS_PER_PASSAGE: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
  """A request waiting to become a task, with all that its writing depends on.

  Attributes:
    task_id: the name its task will have.
    request: the proposer's text.
    use_case: likewise.
    red_team: likewise.
    positives: criteria to ask for.
    negatives: 0 or 1.
    solver_mean: the solver's rolling mean score, None before the first.
    guidance: version of the guidance.
    memo: version of the memo.
    seed_passage: name of the passage the request was started from.
  """

  task_id: str
  request: str
  use_case: str
  red_team: bool
  positives: int
  negatives: int
  solver_mean: float | None
  guidance: int
  memo: int
  seed_passage: str = ""

  @property
  def shape(self) -> Shape:
    """What is asked for."""
    return Shape(positives=self.positives, negatives=self.negatives)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposed:
  """Requests, and why there are fewer than were asked for.

  Attributes:
    requests: what came.
    problem: of the last call that failed for good, "" without one.
  """

  requests: tuple[Request, ...]
  problem: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
  """A valid task, or None with the reason of the last attempt.

  Attributes:
    task: the task.
    attempts: calls made.
    rejected: a word for each failed attempt: `invalid`, `passages`, or the
      call's failure.
    problem: what was wrong with the last one.
    found: the passages it was written from.
  """

  task: Task | None
  attempts: int
  rejected: tuple[str, ...] = ()
  problem: str = ""
  found: tuple[Passage, ...] = ()


class TaskWriter(Protocol):
  """What the supply of tasks needs of a method; see `Writer`.

  What it writes depends on its arguments alone.
  """

  async def propose(
    self, count: int, *, batch: int, guidance: str
  ) -> Proposed: ...

  async def write(
    self, order: Order, *, guidance: str, memo: str
  ) -> Written: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writer:
  """Proposes and writes tasks.

  Attributes:
    proposer: writes requests.
    generator: writes task and rubric.
    checks: verifiers a rubric may use.
    verifiers: their description for the prompt.
    description: of the target benchmark, for the proposer.
    seed: the run's seed.
    source: of passages, None to write without them.
  """

  proposer: Proposer
  generator: Generator
  checks: CheckRegistry
  verifiers: str
  description: str
  seed: int
  source: PassageSource | None = None

  @property
  def _per_call(self) -> int:
    return PROPOSALS_PER_PASSAGE if self.source else PROPOSALS_PER_CALL

  async def propose(self, count: int, *, batch: int, guidance: str) -> Proposed:
    """At most `count` requests; fewer when replies fail or fall short.

    Raises:
      ServiceFailure: there is a source of passages and it cannot be read.
    """
    calls = [
      self._propose(
        min(self._per_call, count - first),
        op=f"propose/{batch}/{index}",
        guidance=guidance,
      )
      for index, first in enumerate(range(0, count, self._per_call))
    ]
    found = await together(calls)
    problems = [some.problem for some in found if some.problem]
    return Proposed(
      requests=tuple(request for some in found for request in some.requests),
      problem=problems[-1] if problems else "",
    )

  async def _propose(self, count: int, *, op: str, guidance: str) -> Proposed:
    seed, problem = self._seed_passage(op), ""
    for number in range(1 + RETRIES):
      name = f"{op}/{number}"
      reply = await attempt(
        self.proposer.propose(
          description=self.description,
          count=count,
          guidance=guidance,
          passage=passage_text([seed]) if seed else "",
          op=name,
          seed=self.seed,
        )
      )
      if not isinstance(reply, ChatError):
        source = seed.name if seed else ""
        return Proposed(
          requests=tuple(
            dataclasses.replace(request, seed_passage=source)
            for request in reply[:count]
          )
        )
      problem = str(reply)
    return Proposed(requests=(), problem=problem)

  def _seed_passage(self, op: str) -> Passage | None:
    if self.source is None:
      return None
    rng = random.Random(derive_seed(self.seed, op))
    try:
      return self.source.seed_passage(rng)
    except PassageError as error:
      raise ServiceFailure(
        f"No seed passage can be read ({error}); mend that and resume the run."
      ) from error

  async def write(self, order: Order, *, guidance: str, memo: str) -> Written:
    """Writes the task of an order."""
    try:
      found = await self.source.passages(order.request) if self.source else ()
    except PassageError as error:
      return Written(
        task=None, attempts=0, rejected=("passages",), problem=str(error)
      )
    return await self._write(order, found, guidance=guidance, memo=memo)

  async def _write(
    self,
    order: Order,
    found: Sequence[Passage],
    *,
    guidance: str,
    memo: str,
  ) -> Written:
    rejected: list[str] = []
    problem = ""
    for number in range(1 + RETRIES):
      op = f"generate/{order.task_id}/{number}"
      reply = await attempt(
        self.generator.generate(
          request=Request(
            text=order.request,
            use_case=order.use_case,
            red_team=order.red_team,
          ),
          positives=order.positives,
          negatives=order.negatives,
          solver_mean=order.solver_mean,
          guidance=guidance,
          memo=memo,
          passages=passage_text(found),
          verifiers=self.verifiers,
          op=op,
          seed=self.seed,
        )
      )
      if isinstance(reply, ChatError):
        rejected.append(reply.kind)
        problem = str(reply)
        continue
      rubric = Rubric(criteria=tuple(reply.criteria))
      problems = self._problems(reply.question, rubric, order)
      if not problems:
        task = dataclasses.replace(
          _task(order, reply, rubric),
          passages=_names(order, found),
        )
        return Written(
          task=task,
          attempts=number + 1,
          rejected=tuple(rejected),
          found=tuple(found),
        )
      rejected.append("invalid")
      problem = problems[0]
    return Written(
      task=None,
      attempts=1 + RETRIES,
      rejected=tuple(rejected),
      problem=problem,
    )

  def _problems(self, question: str, rubric: Rubric, order: Order) -> list[str]:
    problems = rubric_problems(rubric)
    for criterion in rubric.criteria:
      problems += check_problems(criterion, self.checks)
    if not question.strip():
      problems.append("The task is empty.")
    most = RED_TEAM_COUNTS[-1]
    if order.red_team and delivered_shape(rubric.criteria).positives > most:
      problems.append(f"A red-team task has at most {most} positive criteria.")
    return problems


def delivered_shape(criteria: tuple[Criterion, ...]) -> Shape:
  """Counts criteria by sign."""
  positives = sum(criterion.points > 0 for criterion in criteria)
  return Shape(positives=positives, negatives=len(criteria) - positives)


def _names(order: Order, found: Sequence[Passage]) -> tuple[str, ...]:
  """The seed first, then what was found, each once."""
  seed = [order.seed_passage] if order.seed_passage else []
  return tuple(dict.fromkeys([*seed, *(passage.name for passage in found)]))


def _task(order: Order, reply: GeneratedTask, rubric: Rubric) -> Task:
  return Task(
    task_id=order.task_id,
    prompt=(Message(role="user", content=reply.question),),
    rubric=rubric,
    use_case=reply.use_case or order.use_case,
    specialty=reply.specialty,
    red_team=order.red_team,
    guidance_version=order.guidance,
    memo_version=order.memo,
  )
