"""Probe and repair of a new task before it is served (paper appendix C).

Every task enters the pool, the still exploitable ones too: what a rewrite has
to prove is that it is better than the task it replaces, by a fresh adversary
and a fresh honest answer. A probe that could not be taken (a failed reply, an
answer too short, an undetermined verdict) changes nothing, and an adversary
that earned nothing proves nothing.

Reconstructed: the second round rewrites the round before it where that one had
already brought the margin down, the original task otherwise.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from varl_jax.config import AdmissionConfig
from varl_jax.llm.chat import ChatError
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.repairer import Repairer
from varl_jax.rubrics import scoring, shape
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.service import probe as probes
from varl_jax.service.assessment import Assessor
from varl_jax.service.calls import attempt
from varl_jax.types import Criterion, GradedAnswer, Message, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
  """A probe with the answers it was taken with.

  Attributes:
    outcome: see `probe.probe_outcome`.
    exploit: the adversary's graded answer, None when there is none.
    honest: the honest graded answer, None likewise.
    earned: whether the exploit met a positive criterion.
    problem: why it is unusable, "" when it is usable.
  """

  outcome: str
  exploit: GradedAnswer | None = None
  honest: GradedAnswer | None = None
  earned: bool = False
  problem: str = ""

  @property
  def probe(self) -> probes.Probe:
    """The numbers alone."""
    return probes.Probe(
      exploit_score=self.exploit.score if self.exploit else None,
      honest_score=self.honest.score if self.honest else None,
      exploit_met_positive=self.earned,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One rewrite: the task it proposed and the probe of it.

  `task` and `measured` are None when there was no usable proposal, and
  `problem` then says why.
  """

  task: Task | None = None
  measured: Measurement | None = None
  problem: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
  """What became of a task.

  Attributes:
    task: as it enters the pool, with the honest answer it was probed by.
    first: the probe of the task as it was written.
    rounds: the repair rounds.
    adopted: index of the round whose rewrite was taken, None when none was.
  """

  task: Task
  first: Measurement
  rounds: tuple[Round, ...] = ()
  adopted: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admitter:
  """Probes tasks and repairs those that fail.

  Attributes:
    adversary: writes the exploit answer.
    honest: writes the honest answer.
    repairer: rewrites task and rubric.
    assessor: grades both, strictly.
    checks: verifiers a rewrite may use.
    verifiers: their description for the prompt.
    config: thresholds and rounds.
    seed: the run's seed.
  """

  adversary: Adversary
  honest: HonestAnswerer
  repairer: Repairer
  assessor: Assessor
  checks: CheckRegistry
  verifiers: str
  config: AdmissionConfig
  seed: int

  async def admit(self, task: Task) -> Admission:
    """Runs the probe and up to `config.rounds` repairs of one task."""
    op = f"admit/{task.task_id}"
    first = await self._measure(task, op=f"{op}/probe/0")
    if first.outcome not in probes.REPAIRABLE:
      return Admission(task=_with_honest(task, first), first=first)
    rounds: list[Round] = []
    for number in range(1, self.config.rounds + 1):
      base, measured = task, first
      best = self._choose(first, rounds)
      if best is not None:
        base, measured = _usable(rounds[best])
      made = await self._rewrite(base, measured, op=op, number=number)
      rounds.append(made)
      if made.measured and probes.rewrite_accepted(
        first.probe,
        made.measured.probe,
        min_drop=self.config.min_drop,
        honest_low=self.config.honest_low,
        honest_high=self.config.honest_high,
      ):
        break
    adopted = self._choose(first, rounds)
    if adopted is None:
      taken = _with_honest(task, first)
    else:
      taken = _with_honest(*_usable(rounds[adopted]))
    return Admission(
      task=taken, first=first, rounds=tuple(rounds), adopted=adopted
    )

  def _choose(self, first: Measurement, rounds: Sequence[Round]) -> int | None:
    nothing = probes.Probe(exploit_score=None, honest_score=None)
    return probes.choose_rewrite(
      first.probe,
      [r.measured.probe if r.measured else nothing for r in rounds],
      honest_low=self.config.honest_low,
      honest_high=self.config.honest_high,
    )

  async def _rewrite(
    self, task: Task, measured: Measurement, *, op: str, number: int
  ) -> Round:
    """Asks for a rewrite of `task`, salvages it and probes it afresh."""
    name = f"{op}/repair/{number}"
    assert measured.exploit and measured.honest
    reply = await attempt(
      self.repairer.rewrite(
        prompt=task.prompt,
        rubric=task.rubric,
        exploit=measured.exploit.answer or "",
        honest=measured.honest.answer or "",
        verifiers=self.verifiers,
        op=name,
        seed=self.seed,
      )
    )
    if isinstance(reply, ChatError):
      return Round(problem=reply.kind)
    runnable = [c for c in reply.criteria if not check_problems(c, self.checks)]
    # A red-team task keeps few positives: its trap has to outweigh them.
    most = max(shape.RED_TEAM_COUNTS) if task.red_team else None
    rubric = probes.salvage(task.rubric, runnable, max_positives=most)
    problems = rubric_problems(rubric, patched=True)
    if not reply.question.strip():
      problems.append("The task is empty.")
    if problems:
      return Round(problem=problems[0])
    prompt = (*task.prompt[:-1], Message(role="user", content=reply.question))
    rewritten = dataclasses.replace(task, prompt=prompt, rubric=rubric)
    fresh = await self._measure(rewritten, op=f"{op}/probe/{number}")
    return Round(task=rewritten, measured=fresh)

  async def _measure(self, task: Task, *, op: str) -> Measurement:
    """Takes one probe with a fresh exploit and a fresh honest answer."""
    exploit, honest = await asyncio.gather(
      self._answered(
        task,
        functools.partial(
          self.adversary.attack,
          prompt=task.prompt,
          rubric=task.rubric,
          op=f"{op}/attack",
          seed=self.seed,
        ),
        op=f"{op}/exploit",
      ),
      self._answered(
        task,
        functools.partial(
          self.honest.answer,
          prompt=task.prompt,
          op=f"{op}/answer",
          seed=self.seed,
        ),
        op=f"{op}/honest",
      ),
    )
    problem = _problem("exploit", exploit) or _problem("honest", honest)
    known = [
      a if isinstance(a, GradedAnswer) else None for a in (exploit, honest)
    ]
    if problem:
      return Measurement(
        outcome="unusable", exploit=known[0], honest=known[1], problem=problem
      )
    assert known[0] and known[1]
    earned = scoring.met_positive(task.rubric, known[0].verdicts)
    outcome = probes.probe_outcome(
      known[0].score,
      known[1].score,
      exploit_met_positive=earned,
      margin=self.config.margin,
      honest_low=self.config.honest_low,
      honest_high=self.config.honest_high,
    )
    return Measurement(
      outcome=outcome, exploit=known[0], honest=known[1], earned=earned
    )

  async def _answered(
    self, task: Task, call: Callable[[], Awaitable[str]], *, op: str
  ) -> GradedAnswer | str:
    """The answer graded strictly, or in a word why there is none."""
    answer = await attempt(call())
    if isinstance(answer, ChatError):
      return answer.kind
    if len(answer.strip()) < self.config.min_answer_chars:
      return "too_short"
    return await self.assessor.assess(
      task.prompt, answer, task.rubric, strict=True, op=op
    )


def check_problems(criterion: Criterion, checks: CheckRegistry) -> list[str]:
  """Lists why a criterion's verifier cannot be run; empty without one."""
  return checks.problems(criterion.check) if criterion.check else []


def admission_record(admission: Admission) -> dict[str, Any]:
  """What the event log keeps of an admission, as plain values.

  `lead` and `honest` are the first probe's D and honest score, `lead_after`
  the adopted rewrite's D; None where nothing was measured.
  """
  first = admission.first
  record: dict[str, Any] = {
    "outcome": first.outcome,
    "problem": first.problem,
    "lead": first.probe.margin,
    "honest": first.honest.score if first.honest else None,
    "exploit": first.exploit.answer if first.exploit else None,
    "rounds": [
      {
        "problem": made.problem,
        "outcome": made.measured.outcome if made.measured else None,
        "lead": made.measured.probe.margin if made.measured else None,
      }
      for made in admission.rounds
    ],
    "adopted": admission.adopted,
    "lead_after": None,
    "outcome_after": first.outcome,
  }
  if admission.adopted is not None:
    measured = _usable(admission.rounds[admission.adopted])[1]
    record["lead_after"] = measured.probe.margin
    record["outcome_after"] = measured.outcome
  return record


def _usable(made: Round) -> tuple[Task, Measurement]:
  """A round's task and probe; only rounds that have both are ever chosen."""
  assert made.task is not None and made.measured is not None
  return made.task, made.measured


def _with_honest(task: Task, measured: Measurement) -> Task:
  if measured.honest is None or measured.honest.answer is None:
    return task
  return dataclasses.replace(task, cached_honest=measured.honest.answer)


def _problem(name: str, answer: GradedAnswer | str) -> str:
  if isinstance(answer, str):
    return f"{name}: {answer}"
  return f"{name}: undetermined" if answer.score is None else ""
