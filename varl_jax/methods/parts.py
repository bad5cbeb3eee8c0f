"""The parts that methods are made of, built from a run's roles."""

import dataclasses

from varl_jax.config import Config
from varl_jax.roles.bundle import Roles
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.admission import Admitter
from varl_jax.service.assessment import Assessor
from varl_jax.service.evolution import Evolution
from varl_jax.service.evolution_stats import CorpusStatistics
from varl_jax.service.memo_keeping import MemoKeeper
from varl_jax.service.pair_check import PairCheck
from varl_jax.service.passages import PassageSource
from varl_jax.service.patching import Patching
from varl_jax.service.refereeing import Refereeing
from varl_jax.service.writing import Writer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
  """What parts are built from.

  Attributes:
    config: the run's settings.
    roles: the frozen roles.
    checks: the domain's verifiers.
    verifiers: their description for prompts, "" for none.
    reference: statistics of the target benchmark, None when unknown.
    passages: what tasks are grounded in, None to write without.
  """

  config: Config
  roles: Roles
  checks: CheckRegistry
  verifiers: str = ""
  reference: CorpusStatistics | None = None
  passages: PassageSource | None = None

  def assessor(self) -> Assessor:
    """Grades under the run's reward."""
    return Assessor(
      grader=self.roles.grader,
      reward=self.config.reward,
      seed=self.config.seed,
    )

  def writer(self) -> Writer:
    """Writes tasks."""
    return Writer(
      proposer=self.roles.proposer,
      generator=self.roles.generator,
      checks=self.checks,
      verifiers=self.verifiers,
      description=self.config.description,
      seed=self.config.seed,
      source=self.passages,
    )

  def admitter(self) -> Admitter:
    """Probes and repairs new tasks."""
    return Admitter(
      adversary=self.roles.adversary,
      honest=self.roles.honest,
      repairer=self.roles.repairer,
      assessor=self.assessor(),
      checks=self.checks,
      verifiers=self.verifiers,
      config=self.config.admission,
      seed=self.config.seed,
    )

  def refereeing(self) -> Refereeing:
    """Finds exploit cases."""
    return Refereeing(
      referee=self.roles.referee,
      config=self.config.patch,
      seed=self.config.seed,
    )

  def patching(self) -> Patching:
    """Repairs exploit cases."""
    return Patching(
      patcher=self.roles.patcher,
      adversary=self.roles.adversary,
      assessor=self.assessor(),
      checks=self.checks,
      verifiers=self.verifiers,
      config=self.config.patch,
      seed=self.config.seed,
    )

  def pair_check(self) -> PairCheck:
    """Checks exploit cases before their repair."""
    return PairCheck(
      checker=self.roles.pair_checker,
      config=self.config.patch,
      seed=self.config.seed,
    )

  def evolution(self) -> Evolution:
    """Rewrites guidance."""
    return Evolution(
      analyst=self.roles.analyst,
      optimizer=self.roles.meta_optimizer,
      config=self.config.evolution,
      reward=self.config.reward,
      reference=self.reference,
      seed=self.config.seed,
    )

  def memo_keeper(self) -> MemoKeeper:
    """Keeps the adversary memo."""
    return MemoKeeper(
      optimizer=self.roles.memo_optimizer,
      config=self.config.memo,
      seed=self.config.seed,
    )
