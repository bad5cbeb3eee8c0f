"""Rubrics as Rewards (arXiv 2507.17746) as an arm beside RRI.

Generated tasks are split into smaller ones; for each the frozen model answers,
and one call turns task and answer into a checklist of 7 to 20 items. The list
of tasks is static: nothing that training finds out enters it, no task leaves it
and `rar.tasks` ends it, so that writing it when it is needed is the same as
writing it in advance. Then it is served again from its start.

Two aggregations, see `rubrics.checklists`: `implicit` has the judge's model
rate an answer once as a whole, `explicit` has each item judged as any criterion
is. The length term of the reward is the run's, for all methods alike.

Reconstructed: the reference answer is the honest answer of the frozen model;
the smaller tasks become tasks by the generator that writes those of other arms,
its rubric left aside. Parts of red-team requests are red-team requests.
"""

import dataclasses

from varl_jax.config import Config, ConfigError
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.methods.parts import Workshop
from varl_jax.roles.bundle import Roles
from varl_jax.roles.checklist import ChecklistAuthor
from varl_jax.roles.decomposer import Decomposer
from varl_jax.roles.grading import Grader
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.proposer import Request
from varl_jax.roles.rater import Rater
from varl_jax.rubrics import checklists, scoring
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import criterion_problems
from varl_jax.service.admission import check_problems
from varl_jax.service.assessment import Assessor
from varl_jax.service.calls import attempt
from varl_jax.service.event_log import EventStore
from varl_jax.service.evolution_stats import CorpusStatistics
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.passages import PassageSource
from varl_jax.service.writing import (
  RETRIES,
  Order,
  Proposed,
  Writer,
  Written,
)
from varl_jax.types import (
  Criterion,
  GradedAnswer,
  Message,
  Rollout,
  Rubric,
  Task,
  Verdict,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChecklistWriter:
  """Writes smaller tasks with checklists; a `service.writing.TaskWriter`.

  Attributes:
    tasks: proposes requests and makes tasks of them.
    decomposer: splits requests.
    honest: writes reference answers.
    author: writes checklists.
    checks: verifiers that a checklist may use.
    verifiers: their description for the prompt.
    parts: smaller tasks a request.
    pitfalls: how they are worded.
    seed: the run's seed.
  """

  tasks: Writer
  decomposer: Decomposer
  honest: HonestAnswerer
  author: ChecklistAuthor
  checks: CheckRegistry
  verifiers: str
  parts: int
  pitfalls: checklists.Pitfalls
  seed: int

  async def propose(self, count: int, *, batch: int, guidance: str) -> Proposed:
    """At most `count` smaller requests."""
    whole = await self.tasks.propose(
      -(-count // self.parts), batch=batch, guidance=guidance
    )
    split = await together(
      self._split(request, op=f"decompose/{batch}/{number}")
      for number, request in enumerate(whole.requests)
    )
    problems = [some.problem for some in (whole, *split) if some.problem]
    requests = tuple(r for some in split for r in some.requests)
    return Proposed(
      requests=requests[:count], problem=problems[-1] if problems else ""
    )

  async def _split(self, request: Request, *, op: str) -> Proposed:
    parts = await attempt(
      self.decomposer.split(
        request=request.text, count=self.parts, op=op, seed=self.seed
      )
    )
    if isinstance(parts, ChatError):
      return Proposed(requests=(), problem=str(parts))
    return Proposed(
      requests=tuple(dataclasses.replace(request, text=part) for part in parts)
    )

  async def write(self, order: Order, *, guidance: str, memo: str) -> Written:
    """Writes the task of an order, its reference answer and its checklist."""
    # The solver's mean would steer a list that is meant to be static.
    order = dataclasses.replace(order, solver_mean=None)
    written = await self.tasks.write(order, guidance=guidance, memo=memo)
    if written.task is None:
      return written
    rejected, problem = list(written.rejected), ""
    for number in range(1 + RETRIES):
      made = await self._graded_by(
        written.task, op=f"checklist/{order.task_id}/{number}"
      )
      if isinstance(made, Task):
        return dataclasses.replace(written, task=made, rejected=tuple(rejected))
      kind, problem = made
      rejected.append(kind)
    return Written(
      task=None,
      attempts=written.attempts + 1 + RETRIES,
      rejected=tuple(rejected),
      problem=problem,
    )

  async def _graded_by(self, task: Task, *, op: str) -> Task | tuple[str, str]:
    """The task with a checklist, or a word and a sentence why there is none."""
    reference = await attempt(
      self.honest.answer(
        prompt=task.prompt, op=f"{op}/reference", seed=self.seed
      )
    )
    if isinstance(reference, ChatError):
      return reference.kind, str(reference)
    items = await attempt(
      self.author.write(
        prompt=task.prompt,
        reference=reference,
        pitfalls=self.pitfalls,
        verifiers=self.verifiers,
        op=f"{op}/items",
        seed=self.seed,
      )
    )
    if isinstance(items, ChatError):
      return items.kind, str(items)
    problems = checklist_problems(items, self.checks)
    if problems:
      return "invalid", problems[0]
    return dataclasses.replace(
      task, rubric=Rubric(criteria=items), cached_honest=reference
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatingAssessor:
  """Rates whole answers; a `service.assessment.AnswerAssessor`.

  An answer has one verdict: of the rating, met above the middle of its scale.

  Attributes:
    rater: gives the ratings.
    plain: the assessor of the run, for what is not rated.
    pitfalls: how they are worded.
  """

  rater: Rater
  plain: Assessor
  pitfalls: checklists.Pitfalls

  @property
  def grader(self) -> Grader:
    """Judges single items, as the canary does."""
    return self.plain.grader

  async def assess_rollout(
    self,
    prompt: tuple[Message, ...],
    rollout: Rollout,
    rubric: Rubric,
    *,
    op: str,
  ) -> GradedAnswer:
    """Rates a rollout; a failed rating leaves it without a score."""
    if rollout.answer is None:
      return await self.plain.assess_rollout(prompt, rollout, rubric, op=op)
    rated = await attempt(
      self.rater.rate(
        prompt=prompt,
        answer=rollout.answer,
        rubric=rubric,
        pitfalls=self.pitfalls,
        op=f"{op}/rating",
        seed=self.plain.seed,
      )
    )
    score = raw = None
    if isinstance(rated, ChatError):
      verdict = Verdict(
        met=None,
        votes=(),
        explanation="",
        judge=self.rater.chat.name,
        failures=(rated.kind,),
      )
    else:
      raw = checklists.implicit_score(rated.rating)
      score = scoring.training_score(
        raw, len(rollout.answer), self.plain.reward
      )
      verdict = Verdict(
        met=raw > 0.5,
        votes=(raw > 0.5,),
        explanation=f"Rated {rated.rating}: {rated.explanation}",
        judge=self.rater.chat.name,
      )
    return GradedAnswer(
      sample=rollout.sample,
      answer=rollout.answer,
      verdicts=(verdict,),
      score=score,
      raw=raw,
      finish=rollout.finish,
      reasoning_chars=rollout.reasoning_chars,
    )


def checklist_problems(
  items: tuple[Criterion, ...], checks: CheckRegistry
) -> list[str]:
  """Lists what is wrong with a checklist, apart from its length."""
  problems = []
  for number, item in enumerate(items, 1):
    found = criterion_problems(item) + check_problems(item, checks)
    problems += [f"Item {number}: {problem}" for problem in found]
  if not any(
    checklists.category_of(item.points) == "Essential" for item in items
  ):
    problems.append("A checklist has at least one Essential item.")
  return problems


def rar(
  config: Config,
  *,
  roles: Roles,
  store: EventStore,
  checks: CheckRegistry,
  verifiers: str = "",
  reference: CorpusStatistics | None = None,
  passages: PassageSource | None = None,
) -> GenerationService:
  """The generation service of the arm.

  Raises:
    ConfigError: a list that cannot fill a batch.
  """
  if config.rar.tasks < config.train.tasks_per_step:
    raise ConfigError(
      "rar.tasks is at least train.tasks_per_step, got"
      f" {config.rar.tasks} and {config.train.tasks_per_step}."
    )
  config = static_list(config)
  workshop = Workshop(
    config=config,
    roles=roles,
    checks=checks,
    verifiers=verifiers,
    reference=reference,
    passages=passages,
  )
  plain = workshop.assessor()
  rating = RatingAssessor(
    rater=roles.rater, plain=plain, pitfalls=config.rar.pitfalls
  )
  return GenerationService(
    config,
    store=store,
    writer=ChecklistWriter(
      tasks=workshop.writer(),
      decomposer=roles.decomposer,
      honest=roles.honest,
      author=roles.checklist,
      checks=checks,
      verifiers=verifiers,
      parts=config.rar.parts,
      pitfalls=config.rar.pitfalls,
      seed=config.seed,
    ),
    assessor=rating if config.rar.aggregation == "implicit" else plain,
    refereeing=(
      workshop.refereeing() if config.method.measure_exploits else None
    ),
  )


def static_list(config: Config) -> Config:
  """The settings under which the pool is a list that nothing leaves."""
  return dataclasses.replace(
    config,
    pool=dataclasses.replace(
      config.pool,
      capacity=config.rar.tasks,
      floor=0,
      variance_floor=0.0,
      mean_low=float("-inf"),
      mean_high=float("inf"),
    ),
  )
