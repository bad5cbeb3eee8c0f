"""The calls of the methods beside RRI, as `plan_lines` has RRI's."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from varl_jax.config import Config
from varl_jax.methods.rar import static_list
from varl_jax.plan_lines import Planner
from varl_jax.plan_terms import Assumptions, Line
from varl_jax.rubrics import checklists
from varl_jax.rubrics.validation import MAX_CRITERIA
from varl_jax.service.writing import RETRIES

# Items of a checklist that its author is expected to write.
ITEMS: Final = 10.0


class RarPlanner(Planner):
  """RaR: a static list of smaller tasks, rated or judged by checklists."""

  def __init__(self, config: Config, assume: Assumptions):
    # Nothing leaves the list.
    super().__init__(
      static_list(config), dataclasses.replace(assume, share_evicted=0.0)
    )
    self.criteria = ITEMS
    self.most_criteria = checklists.MAX_ITEMS

  def writing(self) -> list[Line]:
    """Requests and their parts, tasks, references and checklists."""
    assume, parts = self.assume, self.config.rar.parts
    proposer, *others = super().writing()
    attempts = self.fresh * (1 + assume.share_invalid)
    most = self.most_fresh * (1 + RETRIES)
    formula = (
      f"{self.fresh:.1f} new tasks x {1 + assume.share_invalid:g} attempts"
    )
    checklist = self._rubric(self.criteria)
    return [
      dataclasses.replace(
        proposer,
        reply=proposer.reply / parts,
        formula=f"{proposer.formula}, split into {parts}",
      ),
      *others,
      self.line(
        "decomposer",
        "smaller tasks",
        self.fresh / parts,
        self.most_fresh,
        reads=self._blocks(assume.tokens_request),
        writes=parts * assume.tokens_request,
        formula=f"{self.fresh:.1f} new tasks / {parts} a request",
      ),
      self.line(
        "honest",
        "references",
        attempts,
        most,
        reads=assume.tokens_task,
        writes=assume.tokens_answer,
        formula=formula,
        text="solver",
      ),
      self.line(
        "checklist",
        "checklists",
        attempts,
        most,
        reads=self._blocks(assume.tokens_task, assume.tokens_answer),
        writes=checklist,
        formula=formula,
      ),
    ]

  def grading(self) -> list[Line]:
    """One rating an answer, or a verdict an item."""
    lines = super().grading()
    if self.config.rar.aggregation == "explicit":
      return lines
    train, assume = self.config.train, self.assume
    answers = train.tasks_per_step * train.samples
    rating = self.line(
      "rater",
      "training",
      answers,
      answers,
      reads=self._blocks(
        assume.tokens_task, assume.tokens_answer, self._rubric(self.criteria)
      ),
      writes=assume.tokens_verdict,
      formula=f"{train.tasks_per_step} tasks x {train.samples} answers",
    )
    return [rating, *(line for line in lines if line.purpose != "training")]


class SibylSensePlanner(Planner):
  """SibylSense: rubrics by the item writer, and a memory of what held."""

  def writing(self) -> list[Line]:
    """Requests, tasks and rubrics."""
    assume = self.assume
    return [
      *super().writing(),
      self.line(
        "item_writer",
        "rubrics",
        self.fresh * (1 + assume.share_invalid),
        self.most_fresh * (1 + RETRIES),
        reads=self._blocks(assume.tokens_task, assume.tokens_memo),
        writes=self._rubric(self.written),
        formula=(
          f"{self.fresh:.1f} new tasks x {1 + assume.share_invalid:g} attempts"
        ),
      ),
    ]

  def evolution(self) -> list[Line]:
    """References of a round and their verdicts, spread over its steps."""
    interval = self.config.evolution.interval
    tasks = self.config.train.tasks_per_step
    formula = f"{tasks} tasks every {interval} steps"
    return [
      self.line(
        "honest",
        "references",
        tasks / interval,
        tasks / interval,
        reads=self.assume.tokens_task,
        writes=self.assume.tokens_answer,
        formula=formula,
        text="solver",
      ),
      self.judging(
        "references",
        tasks * self.criteria / interval,
        tasks * self.most_criteria / interval,
        f"{formula} x {self.criteria:g} criteria",
        strict=False,
      ),
    ]


class EvoRubricsPlanner(Planner):
  """EvoRubrics: every answer under every rubric set, and revisions.

  The sets are written by the trained generator and cost no call.
  """

  def __init__(self, config: Config, assume: Assumptions):
    super().__init__(config, assume)
    # Distinct ones, if no two sets ask for the same.
    self.criteria = self.written * config.evo.sets
    self.most_criteria = MAX_CRITERIA * config.evo.sets

  def grading(self) -> list[Line]:
    """Answers, then the middle one of each task revised with each set."""
    lines = super().grading()
    if not self.config.evo.reflect:
      return lines
    assume, tasks = self.assume, self.config.train.tasks_per_step
    sets = self.config.evo.sets
    revised, others = tasks * sets, max(1, sets - 1)
    formula = f"{tasks} tasks x {sets} sets"
    return [
      *lines,
      self.line(
        "reviser",
        "revisions",
        revised,
        revised,
        reads=self._blocks(
          assume.tokens_task, assume.tokens_answer, self._rubric(self.written)
        ),
        writes=assume.tokens_answer,
        formula=formula,
      ),
      self.judging(
        "revisions",
        revised * others * self.written,
        revised * others * MAX_CRITERIA,
        f"{formula} x {others * self.written:g} criteria of the others",
        strict=False,
      ),
    ]


PLANNERS: Final[Mapping[str, type[Planner]]] = {
  "rar": RarPlanner,
  "sibyl_sense": SibylSensePlanner,
  "evo_rubrics": EvoRubricsPlanner,
}
