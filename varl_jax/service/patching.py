"""Repair of a rubric during training (paper appendix C).

A case's first round starts from the pair the referee disagreed about. Each
proposed criterion is graded under the strict note on both answers and kept only
if it separates them (`acceptance`). After an accepted patch the adversary
attacks the repaired rubric; reconstructed: it succeeds when its fresh answer
scores at least epsilon above the honest answer of admission, and that pair
opens the case's second round; an attack that finds nothing seals this version
of the rubric. The attack after the last round can only seal.

Nothing here changes any state: a `Repair` says what happened.
"""

import asyncio
import dataclasses

from varl_jax.config import PatchConfig
from varl_jax.llm.chat import ChatError
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.patcher import NO_EXPLOIT, Patcher
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import MAX_PATCHED_CRITERIA
from varl_jax.service import acceptance
from varl_jax.service.assessment import Assessor, mean_of
from varl_jax.service.calls import attempt
from varl_jax.types import (
  Criterion,
  ExploitCase,
  GradedAnswer,
  GradedGroup,
  Patch,
  PatchItem,
  Rubric,
  Task,
  Verdict,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repair:
  """What became of one case.

  Attributes:
    task: with the rubric after all rounds.
    cases: cases the adversary's attacks opened.
    patches: one a round, accepted or not.
    attacks: `found`, `none` or `failed`, one an attack.
    sealed: the rubric version an attack could not break, None without one.
    failures: kinds of failed replies of the patcher.
  """

  task: Task
  cases: tuple[ExploitCase, ...] = ()
  patches: tuple[Patch, ...] = ()
  attacks: tuple[str, ...] = ()
  sealed: int | None = None
  failures: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patching:
  """Repairs cases.

  Attributes:
    patcher: proposes criteria.
    adversary: attacks repaired rubrics.
    assessor: grades.
    checks: verifiers a criterion may use.
    verifiers: their description for the prompt.
    config: thresholds.
    seed: the run's seed.
  """

  patcher: Patcher
  adversary: Adversary
  assessor: Assessor
  checks: CheckRegistry
  verifiers: str
  config: PatchConfig
  seed: int

  def repairable(self, task: Task) -> bool:
    """Whether the task may still be patched."""
    return (
      task.patches < self.config.max_patches_per_task
      and len(task.rubric.criteria) < MAX_PATCHED_CRITERIA
    )

  async def repair(self, case: ExploitCase) -> Repair:
    """Runs the rounds of a case found in training."""
    repair = Repair(task=case.task)
    opened: ExploitCase | None = case
    for number in range(1, self.config.rounds + 1):
      if opened is None or not self.repairable(repair.task):
        break
      patch = await self._propose(opened, number=number)
      if isinstance(patch, ChatError):
        failures = (*repair.failures, patch.kind)
        return dataclasses.replace(repair, failures=failures)
      repair = dataclasses.replace(repair, patches=(*repair.patches, patch))
      if patch.after is None:
        break
      task = dataclasses.replace(
        repair.task, rubric=patch.after, patches=repair.task.patches + 1
      )
      repair = dataclasses.replace(repair, task=task)
      if not self.config.re_attack:
        break
      name = f"{case.case_id}-a{number}"
      outcome, opened = await self._attack(case, task, name=name)
      repair = dataclasses.replace(
        repair,
        attacks=(*repair.attacks, outcome),
        sealed=task.rubric.version if outcome == "none" else None,
        cases=(*repair.cases, *([opened] if opened else [])),
      )
    return repair

  async def _propose(
    self, case: ExploitCase, *, number: int
  ) -> Patch | ChatError:
    """One round: asks for criteria and keeps those that stand every test."""
    op = f"patch/{case.case_id}"
    proposal = await attempt(
      self.patcher.propose(
        prompt=case.task.prompt,
        rubric=case.task.rubric,
        exploit=case.exploit.answer or "",
        honest=case.honest.answer or "",
        verifiers=self.verifiers,
        op=op,
        seed=self.seed,
      )
    )
    if isinstance(proposal, ChatError):
      return proposal
    criteria = proposal.criteria if proposal.label != NO_EXPLOIT else ()
    items = await self._judged(case, tuple(criteria), op=op)
    items = _select(items, case.task.rubric, self.config)
    accepted = [item for item in items if not item.rejected]
    before = case.task.rubric
    after = gap_after = None
    if accepted:
      after = Rubric(
        criteria=(*before.criteria, *(item.criterion for item in accepted)),
        version=before.version + 1,
      )
      gap_after = self._gap(case, after, accepted)
    return Patch(
      case_id=case.case_id,
      task_id=case.task.task_id,
      step=case.step,
      round=number,
      label=proposal.label,
      items=items,
      before=before,
      after=after,
      gap_before=case.gap,
      gap_after=gap_after,
    )

  async def _judged(
    self, case: ExploitCase, criteria: tuple[Criterion, ...], *, op: str
  ) -> tuple[PatchItem, ...]:
    """Grades, under the strict note, the criteria whose form is in order."""
    items = []
    for index, proposed in enumerate(criteria):
      criterion = dataclasses.replace(proposed, source="patch")
      rejected = "over_limit"
      if index < self.config.max_criteria:
        rejected = acceptance.form_problem(
          criterion, case.task.rubric, self.config, self.checks
        )
      items.append(
        PatchItem(
          criterion=criterion,
          on_exploit=None,
          on_honest=None,
          rejected=rejected,
        )
      )
    graded = [item.criterion for item in items if not item.rejected]
    negatives = [criterion for criterion in graded if criterion.points < 0]
    exploit, honest, cached = await asyncio.gather(
      self._verdicts(case, case.exploit.answer, graded, op=f"{op}/exploit"),
      self._verdicts(case, case.honest.answer, graded, op=f"{op}/honest"),
      self._verdicts(
        case, case.task.cached_honest or None, negatives, op=f"{op}/cached"
      ),
    )
    given = iter(zip(exploit, honest, strict=True))
    kept = iter(cached)
    judged = []
    for item in items:
      if not item.rejected:
        on_exploit, on_honest = next(given)
        negative = item.criterion.points < 0
        item = dataclasses.replace(
          item,
          on_exploit=on_exploit,
          on_honest=on_honest,
          on_cached=next(kept, None) if negative else None,
        )
      judged.append(item)
    return tuple(judged)

  async def _verdicts(
    self,
    case: ExploitCase,
    answer: str | None,
    criteria: list[Criterion],
    *,
    op: str,
  ) -> tuple[Verdict, ...]:
    if not criteria or answer is None:
      return ()
    rubric = Rubric(criteria=tuple(criteria))
    return await self.assessor.verdicts(
      case.task.prompt, answer, rubric, strict=True, op=op
    )

  def _gap(
    self, case: ExploitCase, after: Rubric, accepted: list[PatchItem]
  ) -> float | None:
    """The pair's gap under the repaired rubric, by the verdicts there are."""
    scores = []
    for answer, added in (
      (case.exploit, [item.on_exploit for item in accepted]),
      (case.honest, [item.on_honest for item in accepted]),
    ):
      verdicts = (*answer.verdicts, *(v for v in added if v is not None))
      scores.append(
        self.assessor.scored(after, answer.answer or "", verdicts).score
      )
    exploit, honest = scores
    return None if exploit is None or honest is None else exploit - honest

  async def _attack(
    self, case: ExploitCase, task: Task, *, name: str
  ) -> tuple[str, ExploitCase | None]:
    """Attacks a repaired rubric; `found` comes with the case it opens.

    Where admission kept no honest answer, the case's better one stands in.
    """
    op = f"attack/{name}"
    answer = await attempt(
      self.adversary.attack(
        prompt=task.prompt,
        rubric=task.rubric,
        op=op,
        seed=self.seed,
      )
    )
    if isinstance(answer, ChatError) or not answer.strip():
      return "failed", None
    cached = task.cached_honest or case.honest.answer or ""
    exploit, honest = await asyncio.gather(
      self.assessor.assess(
        task.prompt, answer, task.rubric, strict=True, op=f"{op}/exploit"
      ),
      self.assessor.assess(
        task.prompt, cached, task.rubric, strict=True, op=f"{op}/honest"
      ),
    )
    if exploit.score is None or honest.score is None:
      return "failed", None
    gap = exploit.score - honest.score
    if gap < self.config.epsilon - acceptance.TOLERANCE:
      return "none", None
    return "found", ExploitCase(
      case_id=name,
      task=task,
      step=case.step,
      source="re_attack",
      exploit=exploit,
      honest=honest,
      gap=gap,
    )

  async def rescore(
    self, group: GradedGroup, after: Rubric
  ) -> tuple[float, float] | None:
    """The same answers' mean score before and after a repair.

    Only the added criteria are graded, as in training (not strictly); answers
    that lack a score under either rubric are left out of both means.

    Args:
      group: graded under the rubric before the repair.
      after: that rubric with criteria added at its end.
    """
    added = after.criteria[len(group.task.rubric.criteria) :]
    answers = [a for a in group.answers if a.score is not None and a.answer]
    verdicts = await asyncio.gather(
      *(self._added(group, answer, added, after) for answer in answers)
    )
    pairs = []
    for answer, new in zip(answers, verdicts, strict=True):
      scored = self.assessor.scored(
        after, answer.answer or "", (*answer.verdicts, *new)
      )
      if answer.score is not None and scored.score is not None:
        pairs.append((answer.score, scored.score))
    means = [mean_of(list(column)) for column in zip(*pairs)]
    if len(means) < 2 or means[0] is None or means[1] is None:
      return None
    return means[0], means[1]

  async def _added(
    self,
    group: GradedGroup,
    answer: GradedAnswer,
    added: tuple[Criterion, ...],
    after: Rubric,
  ) -> tuple[Verdict, ...]:
    task = group.task
    op = f"rescore/{task.task_id}/{group.step}/{after.version}/{answer.sample}"
    return await self.assessor.verdicts(
      task.prompt,
      answer.answer or "",
      Rubric(criteria=added),
      strict=False,
      op=op,
    )


def _select(
  items: tuple[PatchItem, ...],
  rubric: Rubric,
  config: PatchConfig,
) -> tuple[PatchItem, ...]:
  """Decides on the graded items in order, each against those before it."""
  grown = rubric
  decided = []
  for item in items:
    if not item.rejected and item.on_exploit and item.on_honest:
      reason = acceptance.verdict_problem(
        item.criterion, item.on_exploit, item.on_honest, item.on_cached
      )
      if not reason:
        reason = acceptance.growth_problem(item.criterion, grown, config)
      item = dataclasses.replace(item, rejected=reason)
      if not reason:
        grown = dataclasses.replace(
          grown, criteria=(*grown.criteria, item.criterion)
        )
    decided.append(item)
  return tuple(decided)
