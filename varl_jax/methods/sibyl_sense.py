"""SibylSense (arXiv 2602.20751) as an arm beside RRI.

The generator of rubrics is frozen; what changes is the memory of items that it
is shown (`methods.item_memory`). Every `evolution.interval` reports a round
ends: for the tasks of its last step the frozen model writes a reference answer,
each item's verdict on it is compared with the verdicts on the policy's samples,
which were graded for training anyway, and the items that credit the reference
more enter the memory. So the trained policy's samples are the candidates of
every round, and an item that the policy has learned to satisfy loses its place.

The memory is the generator's guidance. It is stored, versioned and rewound as
that is, so the service needs nothing that it does not have for RRI.

Reconstructed: the first candidates are the untrained policy's own samples; the
reference is the honest answer; a round looks at one step's tasks, because older
ones were answered by an older policy. Tasks are those that other arms are
served, their rubrics left aside.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from varl_jax.config import Config
from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.methods import item_memory
from varl_jax.methods.parts import Workshop
from varl_jax.roles import item_writer
from varl_jax.roles.bundle import Roles
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.item_writer import ItemWriter
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service.admission import check_problems
from varl_jax.service.assessment import Assessor
from varl_jax.service.calls import attempt
from varl_jax.service.event_log import EventStore
from varl_jax.service.evolution import Material, Round, Sample
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
from varl_jax.types import GradedGroup, Rubric, Task, from_json, to_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryWriter:
  """Writes tasks whose rubrics follow the memory.

  A `service.writing.TaskWriter`; the guidance of its orders is the memory.

  Attributes:
    tasks: proposes requests and makes tasks of them.
    items: writes rubrics.
    checks: verifiers that they may use.
    verifiers: their description for the prompt.
    seed: the run's seed.
  """

  tasks: Writer
  items: ItemWriter
  checks: CheckRegistry
  verifiers: str
  seed: int

  async def propose(self, count: int, *, batch: int, guidance: str) -> Proposed:
    """At most `count` requests."""
    return await self.tasks.propose(count, batch=batch, guidance=guidance)

  async def write(self, order: Order, *, guidance: str, memo: str) -> Written:
    """Writes the task of an order and its rubric."""
    memory = memory_block(item_memory.read_memory(guidance))
    written = await self.tasks.write(order, guidance="", memo=memo)
    if written.task is None:
      return written
    rejected, problem = list(written.rejected), ""
    for number in range(1 + RETRIES):
      reply = await attempt(
        self.items.write(
          prompt=written.task.prompt,
          positives=order.positives,
          negatives=order.negatives,
          memory=memory,
          verifiers=self.verifiers,
          op=f"items/{order.task_id}/{number}",
          seed=self.seed,
        )
      )
      if isinstance(reply, ChatError):
        rejected.append(reply.kind)
        problem = str(reply)
        continue
      rubric = Rubric(criteria=reply)
      problems = self._problems(rubric)
      if not problems:
        return dataclasses.replace(
          written,
          task=dataclasses.replace(written.task, rubric=rubric),
          rejected=tuple(rejected),
        )
      rejected.append("invalid")
      problem = problems[0]
    return Written(
      task=None,
      attempts=written.attempts + 1 + RETRIES,
      rejected=tuple(rejected),
      problem=problem,
    )

  def _problems(self, rubric: Rubric) -> list[str]:
    problems = rubric_problems(rubric)
    for criterion in rubric.criteria:
      problems += check_problems(criterion, self.checks)
    return problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remembering:
  """Fills the memory; a `service.evolution.GuidanceSource`.

  Attributes:
    honest: writes reference answers.
    assessor: has their items judged.
    interval: reports a round.
    seed: the run's seed.
  """

  honest: HonestAnswerer
  assessor: Assessor
  interval: int
  seed: int

  def due(self, reports: int) -> bool:
    """Whether the report of that number (from 1) ends a round."""
    return reports % self.interval == 0

  def keep(self, groups: Sequence[GradedGroup], *, step: int) -> list[Sample]:
    """Of every group, its task and which items its answers met."""
    return [
      {
        "step": step,
        "task": to_json(group.task),
        "met": [
          [verdict.met for verdict in answer.verdicts]
          for answer in group.answers
          if answer.verdicts
        ],
      }
      for group in groups
    ]

  async def evolve(
    self, samples: Sequence[Sample], material: Material, *, op: str
  ) -> Round | ChatError:
    """The memory after a round; a reference that failed is left out."""
    last = max((sample["step"] for sample in samples), default=None)
    latest = [sample for sample in samples if sample["step"] == last]
    scored = await together(
      self._scored(sample, op=f"{op}/{number}")
      for number, sample in enumerate(latest)
    )
    before = item_memory.read_memory(material.generator)
    after = item_memory.remember(before, [i for some in scored for i in some])
    counts = {
      category: len(item_memory.top_items(after, category, len(after)))
      for category in item_writer.CATEGORIES
    }
    return Round(
      proposer="",
      generator=item_memory.write_memory(after),
      summary=", ".join(f"{n} {category}" for category, n in counts.items()),
      snapshot={
        "tasks": len(latest),
        "scored": [dataclasses.asdict(i) for some in scored for i in some],
      },
    )

  async def _scored(
    self, sample: Sample, *, op: str
  ) -> tuple[item_memory.Item, ...]:
    """The items of one task with their rewards."""
    task = from_json(Task, sample["task"])
    reference = await attempt(
      self.honest.answer(
        prompt=task.prompt, op=f"{op}/reference", seed=self.seed
      )
    )
    if isinstance(reference, ChatError):
      return ()
    verdicts = await self.assessor.verdicts(
      task.prompt, reference, task.rubric, strict=False, op=f"{op}/grade"
    )
    return tuple(
      scored_items(task.rubric, [v.met for v in verdicts], sample["met"])
    )


def scored_items(
  rubric: Rubric,
  on_reference: Sequence[bool | None],
  on_candidates: Sequence[Sequence[bool | None]],
) -> Iterable[item_memory.Item]:
  """The items of a rubric with their rewards; undecided verdicts are left out.

  Args:
    rubric: written by the item writer; other criteria are passed over.
    on_reference: one verdict an item.
    on_candidates: for each candidate likewise.
  """
  for index, criterion in enumerate(rubric.criteria):
    category = item_writer.category_of(criterion)
    reference = on_reference[index]
    met = [row[index] for row in on_candidates]
    known = [value for value in met if value is not None]
    if category is None or reference is None or not known:
      continue
    yield item_memory.Item(
      category=category,
      text=criterion.text,
      points=criterion.points,
      check=criterion.check,
      reward=item_memory.item_reward(criterion.points, reference, known),
    )


def memory_block(memory: Sequence[item_memory.Item]) -> str:
  """What the item writer is shown: the best of each category, a line each."""
  return "\n".join(
    f"{item.category} | {item.reward:+.2f} | {' '.join(item.text.split())}"
    for category in item_writer.CATEGORIES
    for item in item_memory.top_items(memory, category, item_memory.TOP)
  )


def sibyl_sense(
  config: Config,
  *,
  roles: Roles,
  store: EventStore,
  checks: CheckRegistry,
  verifiers: str = "",
  reference: CorpusStatistics | None = None,
  passages: PassageSource | None = None,
) -> GenerationService:
  """The generation service of the arm."""
  workshop = Workshop(
    config=config,
    roles=roles,
    checks=checks,
    verifiers=verifiers,
    reference=reference,
    passages=passages,
  )
  return GenerationService(
    config,
    store=store,
    writer=MemoryWriter(
      tasks=workshop.writer(),
      items=roles.item_writer,
      checks=checks,
      verifiers=verifiers,
      seed=config.seed,
    ),
    assessor=workshop.assessor(),
    refereeing=(
      workshop.refereeing() if config.method.measure_exploits else None
    ),
    evolution=Remembering(
      honest=roles.honest,
      assessor=workshop.assessor(),
      interval=config.evolution.interval,
      seed=config.seed,
    ),
  )
