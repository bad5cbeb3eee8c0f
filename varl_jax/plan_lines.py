"""The formulas of a plan: calls and tokens, part by part of the service.

Calls follow from the config; where they depend on what models will do,
`Assumptions` says what is expected, and `most` is what the settings allow.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

from varl_jax.config import Config, MethodConfig
from varl_jax.judged_validation import held_out
from varl_jax.methods import rri
from varl_jax.plan_terms import Assumptions, Line
from varl_jax.prompts.loader import PromptSet, load_prompts
from varl_jax.rubrics import shape
from varl_jax.rubrics.validation import MAX_CRITERIA, MAX_PATCHED_CRITERIA
from varl_jax.service.memo_keeping import PROBES
from varl_jax.service.refereeing import REVERSED_GROUPS
from varl_jax.service.writing import PROPOSALS_PER_CALL, RETRIES

CHARS_PER_TOKEN: Final = 4.0
# The parts of each method; None for those that the config switches.
PARTS: Final[Mapping[str, MethodConfig | None]] = {
  "generation_only": rri.GENERATION_ONLY,
  "co_evolve_only": rri.CO_EVOLVE_ONLY,
  "rri": None,
  "rar": dataclasses.replace(rri.GENERATION_ONLY, name="rar"),
  "sibyl_sense": dataclasses.replace(rri.GENERATION_ONLY, name="sibyl_sense"),
  "evo_rubrics": dataclasses.replace(rri.GENERATION_ONLY, name="evo_rubrics"),
}


def fresh_tasks(config: Config, *, evicted: float, replayed: float) -> float:
  """New tasks a step, averaged over the run.

  As in `service.pool.shortfall`: a batch is filled with tasks that were never
  served, after `replayed` repaired ones, as far as the pool has room and at
  least to its floor; the share `evicted` of the served ones leaves it.
  """
  count = config.train.tasks_per_step
  wanted = count - min(replayed, config.pool.replay_share * count)
  floor = config.pool.floor or count
  size = total = 0.0
  for _ in range(config.train.steps):
    room = min(wanted, config.pool.capacity - size)
    new = max(room, wanted - size, floor - size, 0.0)
    total += new
    size = max(0.0, size + new - evicted * count)
  return total / config.train.steps


class Planner:
  """The formulas, part by part of the service."""

  def __init__(self, config: Config, assume: Assumptions):
    self.config = config
    self.assume = assume
    self.on = PARTS[config.method.name] or config.method
    self.prompts: PromptSet = load_prompts(config.domain)
    roles, judge = config.endpoints.roles, config.endpoints.judge
    self.endpoints = {"roles": roles, "judge": judge if judge.model else roles}
    judged = config.judge
    self.votes = 1 if judged.one_request else judged.votes
    self.repairs = self.on.admission_repair or self.on.training_patches
    written = (
      (1 - assume.share_red_team) * config.rubric.positive_mean
      + assume.share_red_team
      * sum(shape.RED_TEAM_COUNTS)
      / len(shape.RED_TEAM_COUNTS)
      + config.rubric.negative_share
    )
    self.written = written
    self.criteria = written + (assume.criteria_added if self.repairs else 0.0)
    self.most_criteria = MAX_PATCHED_CRITERIA if self.repairs else MAX_CRITERIA
    tasks = config.train.tasks_per_step
    self.cases = min(
      config.patch.cases_per_step, tasks * assume.share_groups_exploited
    )
    if not self.on.training_patches:
      self.cases = 0.0
    self.fresh = fresh_tasks(
      config,
      evicted=assume.share_evicted,
      replayed=self.cases * assume.share_patches_accepted,
    )
    # The batch after the last step is begun on too.
    steps = config.train.steps
    ahead = 0 if config.admission.barrier else 1
    self.most_fresh = max(tasks, config.pool.floor) * (steps + ahead) / steps

  def derived(self) -> dict[str, float]:
    """What follows from the config and the assumptions, for the reader."""
    return {
      "criteria of a written task": self.written,
      "criteria of a served task": self.criteria,
      "criteria of a task at most": self.most_criteria,
      "new tasks a step": self.fresh,
      "cases repaired a step": self.cases,
      "judge calls a criterion": self.votes,
    }

  def line(
    self,
    role: str,
    purpose: str,
    calls: float,
    most: float,
    *,
    reads: float,
    writes: float,
    formula: str,
    text: str = "",
  ) -> Line:
    """A line; `reads` are the blocks' tokens, `text` the prompt's name."""
    endpoint = self.endpoints[
      "judge" if role in ("judge", "rater") else "roles"
    ]
    system = self.prompts.texts[text or role]
    return Line(
      role=role,
      purpose=purpose,
      calls=calls,
      most=most,
      prompt=len(system) / CHARS_PER_TOKEN + reads,
      reply=writes + (self.assume.tokens_reasoning if endpoint.effort else 0.0),
      formula=formula,
      endpoint=endpoint,
    )

  def judging(
    self,
    purpose: str,
    verdicts: float,
    most: float,
    formula: str,
    *,
    strict: bool,
  ) -> Line:
    """The judge's calls for so many verdicts."""
    note = len(self.prompts.strict_note) / CHARS_PER_TOKEN if strict else 0.0
    # Votes in one request are written apart and read once.
    replies = self.config.judge.votes / self.votes
    return self.line(
      "judge",
      purpose,
      verdicts * self.votes,
      most * self.votes,
      reads=self._blocks(self.assume.tokens_task, self.assume.tokens_answer)
      + self._blocks(self.assume.tokens_criterion)
      + note,
      writes=self.assume.tokens_verdict * replies,
      formula=f"{formula} x {self.votes} votes",
    )

  def writing(self) -> list[Line]:
    """Requests and tasks."""
    assume = self.assume
    guidance = assume.tokens_guidance if self.on.evolve_guidance else 0.0
    memo = (
      assume.tokens_memo if self.on.memo and self.on.admission_repair else 0.0
    )
    calls = math.ceil(self.fresh / PROPOSALS_PER_CALL)
    batches = math.ceil(
      max(self.config.train.tasks_per_step, self.config.pool.floor)
      / PROPOSALS_PER_CALL
    )
    each = self.fresh / max(1, calls)
    return [
      self.line(
        "proposer",
        "requests",
        calls,
        # Several small orders may make up a batch.
        max(self.most_fresh, batches) * 1.0,
        reads=self._blocks(200, guidance),
        writes=each * assume.tokens_request,
        formula=f"{self.fresh:.1f} new tasks / {PROPOSALS_PER_CALL} a call",
      ),
      self.line(
        "generator",
        "tasks and rubrics",
        self.fresh * (1 + assume.share_invalid),
        self.most_fresh * (1 + RETRIES),
        reads=self._blocks(assume.tokens_request, guidance, memo),
        writes=assume.tokens_task + self._rubric(self.written),
        formula=(
          f"{self.fresh:.1f} new tasks x {1 + assume.share_invalid:g} attempts"
        ),
      ),
    ]

  def admission(self) -> list[Line]:
    """Probes of new tasks and their repairs."""
    if not self.on.admission_repair:
      return []
    assume, rounds = self.assume, self.config.admission.rounds
    repairs = assume.share_probes_failing * (
      1 + assume.share_repaired_twice * (1 if rounds > 1 else 0)
    )
    probes, most = self.fresh * (1 + repairs), self.most_fresh * (1 + rounds)
    probing = f"{self.fresh:.1f} new tasks x {1 + repairs:g} probes"
    rubric = self._rubric(self.criteria)
    return [
      self.line(
        "adversary",
        "probes",
        probes,
        most,
        reads=self._blocks(assume.tokens_task, rubric),
        writes=assume.tokens_exploit,
        formula=probing,
      ),
      self.line(
        "honest",
        "probes",
        probes,
        most,
        reads=assume.tokens_task,
        writes=assume.tokens_answer,
        formula=probing,
        text="solver",
      ),
      self.judging(
        "probes",
        probes * 2 * self.criteria,
        most * 2 * self.most_criteria,
        f"{probing} x 2 answers x {self.criteria:g} criteria",
        strict=True,
      ),
      self.line(
        "repairer",
        "rewrites",
        self.fresh * repairs,
        self.most_fresh * rounds,
        reads=self._blocks(
          assume.tokens_task,
          rubric,
          assume.tokens_exploit,
          assume.tokens_answer,
        ),
        writes=assume.tokens_task + rubric + 2 * assume.tokens_reason,
        formula=f"{self.fresh:.1f} new tasks x {repairs:g} rounds",
      ),
    ]

  def grading(self) -> list[Line]:
    """The solver's answers, and what is compared with them."""
    train, assume = self.config.train, self.assume
    answers = train.tasks_per_step * train.samples
    lines = [
      self.judging(
        "training",
        answers * self.criteria,
        answers * self.most_criteria,
        f"{train.tasks_per_step} tasks x {train.samples} answers x"
        f" {self.criteria:g} criteria",
        strict=False,
      )
    ]
    if self.config.judge.canary:
      steps = train.steps
      lines.append(
        self.judging(
          "canary",
          self.criteria / steps,
          self.most_criteria / steps,
          f"{self.criteria:g} criteria once in {steps} steps",
          strict=False,
        )
      )
    if self.on.training_patches or self.config.method.measure_exploits:
      shown = train.tasks_per_step + REVERSED_GROUPS
      lines.append(
        self.line(
          "referee",
          "rankings",
          shown,
          shown,
          reads=self._blocks(
            assume.tokens_task, *[assume.tokens_answer] * train.samples
          ),
          writes=2 * assume.tokens_reason + 4 * train.samples,
          formula=(
            f"{train.tasks_per_step} groups + {REVERSED_GROUPS} in reversed"
            " order"
          ),
        )
      )
    return lines

  def patching(self) -> list[Line]:
    """Repairs of exploit cases."""
    if not self.on.training_patches:
      return []
    patch, assume = self.config.patch, self.assume
    again = (
      assume.share_patches_accepted * assume.share_attacks_found
      if patch.re_attack and patch.rounds > 1
      else 0.0
    )
    rounds = self.cases * (1 + again)
    most = patch.cases_per_step * (patch.rounds if patch.re_attack else 1)
    accepted = rounds * assume.share_patches_accepted
    attacks = accepted if patch.re_attack else 0.0
    most_attacks = most if patch.re_attack else 0
    said = f"{self.cases:g} cases x {1 + again:.2f} rounds"
    rubric = self._rubric(self.criteria)
    samples = self.config.train.samples
    return [
      self.line(
        "patcher",
        "repairs",
        rounds,
        most,
        reads=self._blocks(
          assume.tokens_task, rubric, assume.tokens_answer, assume.tokens_answer
        ),
        writes=assume.criteria_proposed
        * (assume.tokens_criterion + assume.tokens_reason),
        formula=said,
      ),
      self.judging(
        "proposed criteria",
        rounds
        * assume.criteria_proposed
        * (2 + assume.share_proposed_negative),
        most * patch.max_criteria * 3,
        f"{said} x {assume.criteria_proposed:g} criteria x"
        f" {2 + assume.share_proposed_negative:g} answers",
        strict=True,
      ),
      self.line(
        "adversary",
        "attacks on patches",
        attacks,
        most_attacks,
        reads=self._blocks(assume.tokens_task, rubric),
        writes=assume.tokens_exploit,
        formula=f"{said} x {assume.share_patches_accepted:g} accepted",
      ),
      self.judging(
        "attacks on patches",
        attacks * 2 * (self.criteria + assume.criteria_kept),
        most_attacks * 2 * MAX_PATCHED_CRITERIA,
        f"{attacks:.2f} attacks x 2 answers x"
        f" {self.criteria + assume.criteria_kept:g} criteria",
        strict=True,
      ),
      self.judging(
        "re-scored groups",
        accepted * samples * assume.criteria_kept,
        patch.cases_per_step * samples * MAX_PATCHED_CRITERIA,
        f"{accepted:.2f} accepted rounds x {samples} answers x"
        f" {assume.criteria_kept:g} criteria",
        strict=False,
      ),
    ]

  def evolution(self) -> list[Line]:
    """Guidance and memo, spread over the steps of an interval."""
    lines, assume = [], self.assume
    interval, cases = (
      self.config.evolution.interval,
      self.config.evolution.cases,
    )
    rubric = self._rubric(self.criteria)
    if self.on.evolve_guidance:
      lines += [
        self.line(
          "analyst",
          "diagnoses",
          cases / interval,
          cases / interval,
          reads=self._blocks(assume.tokens_task, assume.tokens_answer, rubric),
          writes=assume.tokens_verdict,
          formula=f"{cases} cases every {interval} steps",
        ),
        self.line(
          "meta_optimizer",
          "guidance",
          1 / interval,
          1 / interval,
          reads=self._blocks(
            assume.tokens_evidence, 2 * assume.tokens_guidance
          ),
          writes=2 * assume.tokens_guidance + 2 * assume.tokens_reason,
          formula=f"once every {interval} steps",
        ),
      ]
    if self.on.memo and self.on.admission_repair:
      needed = self.config.memo.observations
      seen = min(1.0, self.fresh / PROBES)
      lines.append(
        self.line(
          "memo_optimizer",
          "memo",
          seen / needed,
          1.0,
          reads=self._blocks(assume.tokens_evidence, assume.tokens_memo),
          writes=assume.tokens_memo,
          formula=(f"{seen:g} observations a step / {needed} a version"),
        )
      )
    return lines

  def validation(self) -> list[Line]:
    """The judge on held-out tasks, which are counted in their file."""
    settings, steps = self.config.eval, self.config.train.steps
    if not settings.interval or not settings.tasks_path:
      return []
    benchmark, tasks = held_out(self.config)
    # Programs of a benchmark cost no call; the project's own tasks name those
    # of their domain, which a plan does not load.
    free = benchmark.checks.checks
    criteria = sum(
      item.check is None or not free for task in tasks for item in task.criteria
    )
    # Before the first step, at every interval, and after the last step.
    times = 1 + math.ceil(steps / settings.interval)
    verdicts = criteria * settings.samples * times / steps
    return [
      self.judging(
        "validation",
        verdicts,
        verdicts,
        f"{criteria} criteria of {len(tasks)} tasks x {settings.samples}"
        f" answers x {times} times in {steps} steps",
        strict=False,
      )
    ]

  def _rubric(self, criteria: float) -> float:
    return criteria * self.assume.tokens_criterion

  def _blocks(self, *sizes: float) -> float:
    return math.fsum(sizes) + self.assume.tokens_block_marks * len(sizes)
