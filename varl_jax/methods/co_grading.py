"""Grades answers and rubric sets by one another (EvoRubrics).

Every answer of a task is graded under every rubric set that a trained generator
wrote for it, and `methods.rubric_rewards` pays each side for what it wrote:

    an answer  the mean of its scores under the sets that parsed
    a set      the mean of discrimination, diversity, what an answer gains when
               it is revised with the set, and likeness to a reference rubric
               where one is asked for; -1 when it does not parse

Reconstructed: the answer that is revised is the middle one by reward, the same
for all sets of a task; its gain is measured under the other sets, as under its
own every set would praise itself (under its own where it is alone); a frozen
role revises. An item that several sets have is judged once an answer. The
length term of the reward is the run's, for all methods alike.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.methods import rubric_rewards
from varl_jax.methods.rubric_sets import (
  Criteria,
  Known,
  Parts,
  distinct,
  key_of,
  mean_of_known,
  middle_answer,
  praising,
  set_score,
  text_of,
)
from varl_jax.retrieval.embedder import Embedder
from varl_jax.roles.reviser import Reviser
from varl_jax.roles.rubric_author import RubricLanguage
from varl_jax.rubrics import scoring
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service.admission import check_problems
from varl_jax.service.assessment import Assessor, score_truncated
from varl_jax.service.calls import attempt
from varl_jax.service.co_training import CoGraded, Groups
from varl_jax.types import (
  GradedAnswer,
  GradedGroup,
  Message,
  Rollout,
  Rubric,
  Task,
  Verdict,
)

GENERATOR: Final = "rubric_generator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdicts:
  """Who met what of a task's items.

  Attributes:
    answers: of the policy's answers; None for one that was not judged.
    revised: of the middle answer revised with each set; None where it was not.
  """

  answers: tuple[Known | None, ...]
  revised: tuple[Known | None, ...]

  @property
  def every(self) -> Iterable[Verdict]:
    """All verdicts that were asked for."""
    for known in (*self.answers, *self.revised):
      yield from (known or {}).values()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskGraded:
  """One task's grading: the policy's group, what sets earned, and why."""

  group: GradedGroup
  sets: tuple[Criteria | None, ...]
  rewards: tuple[float | None, ...]
  parts: tuple[Parts, ...]
  verdicts: tuple[Verdict, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoGrading:
  """Grades answers and rubric sets by one another; a `co_training.CoTraining`.

  Attributes:
    language: how sets are asked for and read.
    assessor: has items judged; its reward has the length term.
    reviser: revises answers, None where that part is left out.
    checks: verifiers that a set may use.
    embedder: of sets.
    reference: whether likeness to the task's own rubric is rewarded.
    seed: the run's seed.
  """

  language: RubricLanguage
  assessor: Assessor
  reviser: Reviser | None
  checks: CheckRegistry
  embedder: Embedder
  reference: bool
  seed: int

  def prompts(self, learner: str, tasks: Sequence[Task]) -> list[Task]:
    """See `CoTraining.prompts`; the generator is shown the task alone."""
    assert learner == GENERATOR
    return [
      Task(
        task_id=f"{GENERATOR}/{task.task_id}",
        prompt=self.language.conversation(task.prompt),
        rubric=Rubric(criteria=()),
      )
      for task in tasks
    ]

  async def grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups]
  ) -> CoGraded:
    """See `CoTraining.grade`."""
    written = {task.task_id: sets for task, sets in others.get(GENERATOR, ())}
    graded = await together(
      self._graded(
        step, task, answers, written.get(f"{GENERATOR}/{task.task_id}", ())
      )
      for task, answers in groups
    )
    by_task = {f"{GENERATOR}/{g.group.task.task_id}": g for g in graded}
    rewards = tuple(
      # A task whose answers the trainer left out pays nobody.
      by_task[name].rewards if name in by_task else (None,) * len(sets)
      for name, sets in written.items()
    )
    return CoGraded(
      groups=tuple(g.group for g in graded),
      rewards={GENERATOR: rewards},
      verdicts=tuple(v for g in graded for v in g.verdicts),
      measures=measures(graded),
      record=[_record(g) for g in graded],
    )

  async def _graded(
    self,
    step: int,
    task: Task,
    answers: Sequence[Rollout],
    written: Sequence[Rollout],
  ) -> TaskGraded:
    sets = tuple(self.read(rollout, task.prompt) for rollout in written)
    items = distinct(sets)
    op = f"grade/{step}/{task.task_id}"
    found = await together(
      self._judged(task.prompt, rollout.answer, items, f"{op}/{rollout.sample}")
      for rollout in answers
    )
    scores = tuple(
      tuple(set_score(criteria, known) for criteria in sets) for known in found
    )
    revised = await self._revised(task, answers, scores, sets, op)
    verdicts = Verdicts(answers=tuple(found), revised=tuple(revised))
    parts = self.parts(sets, scores, verdicts, task.rubric)
    measured = iter(parts)
    rewards = tuple(
      rubric_rewards.UNPARSABLE if criteria is None else next(measured).reward
      for criteria in sets
    )
    return TaskGraded(
      group=GradedGroup(
        task=dataclasses.replace(task, rubric=Rubric(criteria=items)),
        step=step,
        answers=score_truncated(
          [
            self._answer(rollout, own, known, items)
            for rollout, own, known in zip(answers, scores, found, strict=True)
          ],
          self.assessor.reward,
        ),
      ),
      sets=sets,
      rewards=rewards,
      parts=tuple(parts),
      verdicts=tuple(verdicts.every),
    )

  def read(
    self, rollout: Rollout, prompt: tuple[Message, ...]
  ) -> Criteria | None:
    """The criteria of a set, None for one that does not parse."""
    if rollout.answer is None or rollout.finish != "stop":
      return None
    try:
      criteria = self.language.read(rollout.answer, prompt)
    except ValueError:
      return None
    problems = rubric_problems(Rubric(criteria=criteria))
    for criterion in criteria:
      problems += check_problems(criterion, self.checks)
    return None if problems else criteria

  async def _judged(
    self,
    prompt: tuple[Message, ...],
    answer: str | None,
    items: Criteria,
    op: str,
  ) -> Known | None:
    """Verdicts on an answer, None where there is nothing to judge."""
    if answer is None or not items:
      return None
    verdicts = await self.assessor.verdicts(
      prompt, answer, Rubric(criteria=items), strict=False, op=op
    )
    return {
      key_of(item): verdict
      for item, verdict in zip(items, verdicts, strict=True)
    }

  async def _revised(
    self,
    task: Task,
    answers: Sequence[Rollout],
    scores: Sequence[Sequence[float | None]],
    sets: Sequence[Criteria | None],
    op: str,
  ) -> list[Known | None]:
    """Verdicts on the middle answer revised with each set, by the others."""
    middle = middle_answer(scores)
    if self.reviser is None or middle is None:
      return [None] * len(sets)
    answer, reviser = answers[middle].answer, self.reviser
    assert answer is not None

    async def one(number: int, criteria: Criteria | None) -> list[Known | None]:
      if criteria is None:
        return [None]
      text = await attempt(
        reviser.revise(
          prompt=task.prompt,
          answer=answer,
          criteria=criteria,
          op=f"{op}/revise{number}",
          seed=self.seed,
        )
      )
      if isinstance(text, ChatError):
        return [None]
      items = distinct(sets[i] for i in praising(sets, number))
      return [
        await self._judged(task.prompt, text, items, f"{op}/revised{number}")
      ]

    found = await together(one(*each) for each in enumerate(sets))
    return [known for [known] in found]

  def parts(
    self,
    sets: Sequence[Criteria | None],
    scores: Sequence[Sequence[float | None]],
    verdicts: Verdicts,
    rubric: Rubric,
  ) -> list[Parts]:
    """What each set that parsed earns.

    Args:
      sets: of a task.
      scores: of each answer under each set.
      verdicts: on the answers and on what became of the middle one.
      rubric: the task's own, for a reference.
    """
    valid = [i for i, criteria in enumerate(sets) if criteria is not None]
    if not valid:
      return []
    texts = [text_of(sets[i] or ()) for i in valid]
    vectors = self.embedder.embed_queries([*texts, text_of(rubric.criteria)])
    *own, model = [[float(x) for x in row] for row in vectors]
    middle = middle_answer(scores)
    found = []
    for place, index in enumerate(valid):
      column = [row[index] for row in scores if row[index] is not None]
      others = praising(sets, index)
      known = verdicts.revised[index] if verdicts.revised else None
      gain = None
      if known is not None and middle is not None:
        before = mean_of_known(scores[middle][i] for i in others)
        after = mean_of_known(set_score(sets[i], known) for i in others)
        if before is not None and after is not None:
          gain = rubric_rewards.reflection(before, after)
      found.append(
        Parts(
          discrimination=rubric_rewards.discrimination(
            [score for score in column if score is not None]
          )
          if column
          else None,
          diversity=rubric_rewards.diversity(
            own[place], [*own[:place], *own[place + 1 :]]
          ),
          reflect=gain,
          reference=rubric_rewards.similarity(own[place], model)
          if self.reference
          else None,
        )
      )
    return found

  def _answer(
    self,
    rollout: Rollout,
    scores: Sequence[float | None],
    known: Known | None,
    items: Criteria,
  ) -> GradedAnswer:
    """An answer with its mean score and one verdict an item."""
    score = raw = None
    if rollout.answer is not None:
      raw = rubric_rewards.policy_reward(scores)
    if rollout.answer is not None and raw is not None:
      score = scoring.training_score(
        raw, len(rollout.answer), self.assessor.reward
      )
    return GradedAnswer(
      sample=rollout.sample,
      answer=rollout.answer,
      verdicts=tuple(known[key_of(item)] for item in items) if known else (),
      score=score,
      raw=raw,
      truncated=rollout.answer is None,
      finish=rollout.finish,
      reasoning_chars=rollout.reasoning_chars,
    )


def measures(graded: Sequence[TaskGraded]) -> dict[str, float]:
  """Metrics of a step's sets; what was not measured is left out."""
  sets = [criteria for g in graded for criteria in g.sets]
  found = {}
  if sets:
    parsed = [criteria for criteria in sets if criteria is not None]
    found["evo/parsed"] = len(parsed) / len(sets)
    if parsed:
      found["evo/items"] = statistics.fmean(map(len, parsed))
  for field in dataclasses.fields(Parts):
    mean = mean_of_known(
      getattr(p, field.name) for g in graded for p in g.parts
    )
    if mean is not None:
      found[f"evo/{field.name}"] = mean
  return found


def _record(graded: TaskGraded) -> dict[str, Any]:
  """What is kept of a task: its sets as lines, and what they earned."""
  return {
    "task_id": graded.group.task.task_id,
    "rewards": list(graded.rewards),
    "sets": [
      None if criteria is None else [[c.points, c.text] for c in criteria]
      for criteria in graded.sets
    ],
  }
