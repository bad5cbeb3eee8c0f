"""Evolution of the guidance for proposer and generator (paper appendix D).

Every `interval` reports, an analyst reads sampled cases, code counts what it
says and measures the tasks, and one call of the meta-optimizer rewrites both
guidance blocks. (The paper's overview speaks of every step, its appendix of the
evaluation interval: the interval, as a setting.) What goes in is training data
only: no validation score has a way here.

All that a round read and wrote is returned as a snapshot for the event log.
"""

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from varl_jax.config import EvolutionConfig, RewardConfig
from varl_jax.llm.chat import ChatError
from varl_jax.llm.seeds import derive_seed
from varl_jax.llm.together import together
from varl_jax.roles.analyst import Analyst
from varl_jax.roles.meta_optimizer import MetaOptimizer
from varl_jax.service.calls import attempt
from varl_jax.service.evolution_stats import (
  CorpusStatistics,
  corpus_statistics,
  count_diagnoses,
  drift,
  sample_cases,
)
from varl_jax.service.failpoints import failpoint
from varl_jax.types import (
  Diagnosis,
  GradedAnswer,
  GradedGroup,
  Task,
  from_json,
  to_json,
)

_EARNED: Final = (
  "score = (points of all met criteria) / (sum of the positive points); a met"
  " negative criterion subtracts."
)
_UNFINISHED: Final = {
  "zero": "scores 0",
  "group_min": "scores as low as the worst answer to its task, at most 0",
  "unscorable": "has no score",
}
_TRAINED: Final = (
  "The solver trains on score minus the mean score of the answers to the same"
  " task, so a task on which all answers score alike teaches nothing."
)
EXCERPT_CHARS: Final = 600
# Roles that make a round, and those that the new guidance is for.
PROMPTED: Final = ("analyst", "meta_optimizer", "proposer", "generator")

Sample = Mapping[str, Any]  # {"task": Task, "answer": GradedAnswer} as JSON


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One rewriting.

  Attributes:
    proposer: guidance for the proposer, cut to the word limit.
    generator: guidance for the generator, likewise.
    summary: what the optimizer says it changed.
    snapshot: everything that was assembled for it, as plain values.
  """

  proposer: str
  generator: str
  summary: str
  snapshot: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
  """What a round reads, apart from the sampled cases.

  Attributes:
    tasks: recent tasks.
    exploits: confirmed cases, as in `state.ServiceState.exploits`.
    patches: accepted criteria, as in `state.ServiceState.patches`.
    train_mean: mean training score under the present guidance.
    proposer: present guidance of the proposer.
    generator: present guidance of the generator.
    history: a version's number, train mean and summary each, oldest first.
    hackability: what probes measured, "" without them.
  """

  tasks: Sequence[Task]
  exploits: Sequence[Mapping[str, Any]]
  patches: Sequence[Mapping[str, Any]]
  train_mean: float | None
  proposer: str
  generator: str
  history: Sequence[Mapping[str, Any]]
  hackability: str


class GuidanceSource(Protocol):
  """What the report of a step needs of a method; see `Evolution`."""

  def due(self, reports: int) -> bool: ...

  def keep(
    self, groups: Sequence[GradedGroup], *, step: int
  ) -> list[Sample]: ...

  async def evolve(
    self, samples: Sequence[Sample], material: Material, *, op: str
  ) -> Round | ChatError: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolution:
  """Rewrites guidance.

  Attributes:
    analyst: diagnoses cases.
    optimizer: writes the guidance.
    config: interval and sampling.
    reward: how answers are scored.
    reference: statistics of the target benchmark, None when unknown.
    seed: the run's seed.
  """

  analyst: Analyst
  optimizer: MetaOptimizer
  config: EvolutionConfig
  reward: RewardConfig
  reference: CorpusStatistics | None
  seed: int

  def due(self, reports: int) -> bool:
    """Whether the report of that number (from 1) ends an interval."""
    return reports % self.config.interval == 0

  def keep(self, groups: Sequence[GradedGroup], *, step: int) -> list[Sample]:
    """The answers of a step that a later round may draw, as plain values.

    The worst and the best of an interval are among the worst and the best of
    its steps, so keeping a round's worth of each step is enough. The random
    ones come from a fair sample of each step, marked `uniform`.
    """
    cases = [
      (group.task, answer) for group in groups for answer in group.answers
    ]
    scores = [answer.score for _, answer in cases]
    extremes = self._draw(scores, op=f"keep/{step}")
    scored = [i for i, score in enumerate(scores) if score is not None]
    rng = random.Random(derive_seed(self.seed, f"keep/{step}/uniform"))
    fair = rng.sample(scored, min(len(scored), self.config.cases))
    return [
      {
        "task": to_json(cases[i][0]),
        "answer": to_json(cases[i][1]),
        "uniform": i in fair,
      }
      for i in dict.fromkeys([*extremes, *fair])
    ]

  async def evolve(
    self, samples: Sequence[Sample], material: Material, *, op: str
  ) -> Round | ChatError:
    """Runs one round; a failed optimizer leaves the guidance as it is."""
    drawn = self._draw(
      [s["answer"]["score"] for s in samples],
      op=op,
      uniform=[i for i, s in enumerate(samples) if s["uniform"]],
    )
    cases = [samples[index] for index in drawn]
    replies = await together(
      self._diagnose(case, op=f"{op}/analyst/{index}")
      for index, case in enumerate(cases)
    )
    failpoint("evolve/diagnosed")
    diagnoses = [d for d in replies if isinstance(d, Diagnosis)]
    inputs = self._inputs(diagnoses, material)
    written = await attempt(
      self.optimizer.rewrite(**inputs, op=f"{op}/optimizer", seed=self.seed)
    )
    if isinstance(written, ChatError):
      return written
    return Round(
      proposer=_words(written.proposer, self.config.max_words),
      generator=_words(written.generator, self.config.max_words),
      summary=written.summary,
      snapshot={
        "inputs": inputs,
        "system": self._system_texts(),
        "cases": cases,
        "diagnoses": to_json(diagnoses),
        "failed": len(replies) - len(diagnoses),
      },
    )

  def _system_texts(self) -> dict[str, str]:
    """The texts around the blocks: of the round's roles and its readers."""
    return {
      role: self.optimizer.prompts.system(role).content for role in PROMPTED
    }

  def _draw(
    self,
    scores: Sequence[float | None],
    *,
    op: str,
    uniform: Sequence[int] | None = None,
  ) -> list[int]:
    return sample_cases(
      scores,
      self.config.cases,
      rng=random.Random(derive_seed(self.seed, op)),
      worst_share=self.config.worst_share,
      best_share=self.config.best_share,
      uniform=uniform,
    )

  async def _diagnose(self, case: Sample, *, op: str) -> Diagnosis | ChatError:
    return await attempt(
      self.analyst.diagnose(
        task=from_json(Task, case["task"]),
        answer=from_json(GradedAnswer, case["answer"]),
        op=op,
        seed=self.seed,
      )
    )

  def _inputs(
    self, diagnoses: Sequence[Diagnosis], material: Material
  ) -> dict[str, Any]:
    """The optimizer's blocks."""
    measured = corpus_statistics(material.tasks) if material.tasks else None
    statistics = to_json(measured)
    if measured is not None and self.reference is not None:
      statistics["minus_reference"] = drift(measured, self.reference)
    counts = dataclasses.asdict(count_diagnoses(diagnoses))
    return {
      "formula": score_formula(self.reward),
      "statistics": _lines(statistics),
      "reference": _lines(to_json(self.reference)),
      "diagnoses": _lines(counts),
      "exploits": exploit_text(material.exploits),
      "patches": patch_text(material.patches),
      "train_mean": material.train_mean,
      "proposer_guidance": material.proposer,
      "generator_guidance": material.generator,
      "history": "\n".join(json.dumps(entry) for entry in material.history),
      "hackability": material.hackability,
    }


def score_formula(reward: RewardConfig) -> str:
  """How training scores an answer, in words (`scoring.training_score`)."""
  parts = [_EARNED]
  if reward.length_adjusted:
    parts.append(
      f"Length costs: {reward.length_weight:g} * max(0, characters of the final"
      f" answer - {reward.length_center}) / {reward.length_unit} is taken off"
      " the score, which is not clipped."
    )
  parts.append(
    "An answer whose reasoning never ended"
    f" {_UNFINISHED[reward.truncated_score]}."
  )
  return " ".join([*parts, _TRAINED])


def exploit_text(exploits: Sequence[Mapping[str, Any]]) -> str:
  """Exploits for an optimizer's prompt, one paragraph each."""
  return "\n\n".join(
    "\n".join(
      (
        f"Lead {item['gap']:+.2f} ({item['source']})",
        f"Request: {_excerpt(item['request'])}",
        "Criteria: "
        + "; ".join(f"{c['points']:+g} {c['text']}" for c in item["criteria"]),
        f"Overpaid answer: {_excerpt(item['exploit'] or '')}",
      )
    )
    for item in exploits
  )


def patch_text(patches: Sequence[Mapping[str, Any]]) -> str:
  """Accepted criteria for an optimizer's prompt, one paragraph a patch."""
  return "\n\n".join(
    "\n".join(
      [f"Exploit {item['label']}, lead {_change(item)}"]
      + [f"{c['points']:+g} {c['text']}" for c in item["criteria"]]
    )
    for item in patches
  )


def _change(patch: Mapping[str, Any]) -> str:
  after = patch["gap_after"]
  known = "unknown" if after is None else f"{after:+.2f}"
  return f"{patch['gap_before']:+.2f} -> {known}"


def _excerpt(text: str) -> str:
  if len(text) <= EXCERPT_CHARS:
    return text
  return f"{text[:EXCERPT_CHARS]} [cut]"


def _lines(values: Mapping[str, Any] | None) -> str:
  """One `name: value` line an entry; `unknown` for nothing."""
  if values is None:
    return "unknown"
  return "\n".join(
    f"{name}: {json.dumps(_rounded(value))}" for name, value in values.items()
  )


def _rounded(value: Any) -> Any:
  if isinstance(value, float):
    return round(value, 4)
  if isinstance(value, Mapping):
    return {name: _rounded(item) for name, item in value.items()}
  return value


def _words(text: str, limit: int) -> str:
  words = text.split()
  return text if len(words) <= limit else " ".join(words[:limit])
