"""New tasks: requests by the proposer, task and rubric by the generator.

How many positive criteria to write and whether to add a negative is drawn per
request from `rubrics.shape`; a task that breaks the rules of
`rubrics.validation` is asked for again under a new name, `RETRIES` times, and
then dropped and counted.
"""

import asyncio
import dataclasses
from typing import Final

from varl_jax.llm.chat import ChatError
from varl_jax.roles.generator import Generator
from varl_jax.roles.proposer import Proposer, Request
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.shape import RED_TEAM_COUNTS, Shape
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service.admission import check_problems
from varl_jax.service.calls import attempt
from varl_jax.types import Criterion, Message, Rubric, Task

RETRIES: Final = 3
PROPOSALS_PER_CALL: Final = 16


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

  @property
  def shape(self) -> Shape:
    """What is asked for."""
    return Shape(positives=self.positives, negatives=self.negatives)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
  """A valid task, or None with the reason of the last attempt.

  Attributes:
    task: the task.
    attempts: calls made.
    rejected: a word for each failed attempt: `invalid` or the call's failure.
    problem: what was wrong with the last one.
  """

  task: Task | None
  attempts: int
  rejected: tuple[str, ...] = ()
  problem: str = ""


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
  """

  proposer: Proposer
  generator: Generator
  checks: CheckRegistry
  verifiers: str
  description: str
  seed: int

  async def propose(
    self, count: int, *, batch: int, guidance: str
  ) -> list[Request]:
    """At most `count` requests; fewer when replies fail or fall short."""
    calls = [
      self._propose(
        min(PROPOSALS_PER_CALL, count - first),
        op=f"propose/{batch}/{index}",
        guidance=guidance,
      )
      for index, first in enumerate(range(0, count, PROPOSALS_PER_CALL))
    ]
    found = await asyncio.gather(*calls)
    return [request for some in found for request in some]

  async def _propose(
    self, count: int, *, op: str, guidance: str
  ) -> tuple[Request, ...]:
    for number in range(1 + RETRIES):
      name = f"{op}/{number}"
      reply = await attempt(
        self.proposer.propose(
          description=self.description,
          count=count,
          guidance=guidance,
          op=name,
          seed=self.seed,
        )
      )
      if not isinstance(reply, ChatError):
        return tuple(reply[:count])
    return ()

  async def write(self, order: Order, *, guidance: str, memo: str) -> Written:
    """Writes the task of an order."""
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
        task = _task(order, reply.question, reply.use_case, rubric)
        return Written(task=task, attempts=number + 1, rejected=tuple(rejected))
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


def _task(order: Order, question: str, use_case: str, rubric: Rubric) -> Task:
  return Task(
    task_id=order.task_id,
    prompt=(Message(role="user", content=question),),
    rubric=rubric,
    use_case=use_case or order.use_case,
    red_team=order.red_team,
    guidance_version=order.guidance,
    memo_version=order.memo,
  )
