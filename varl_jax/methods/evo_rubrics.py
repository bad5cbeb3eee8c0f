"""EvoRubrics (arXiv 2606.23038) as an arm beside RRI: two learners, one trunk.

The policy and a generator of rubrics are two adapters of one frozen model, and
both are updated by GRPO in every step. For each task the policy writes its
answers and the generator its rubric sets; `methods.co_grading` pays both.

Reconstructed: M is the answers a task of all methods; embeddings are of hashed
words; tasks are those that other arms are served, their rubrics left aside.
"""

import dataclasses
from typing import Final

from varl_jax.config import Config
from varl_jax.methods.co_grading import GENERATOR, CoGrading
from varl_jax.methods.learners import POLICY, LearnerSpec
from varl_jax.methods.parts import Workshop
from varl_jax.retrieval.embedder import HashingEmbedder
from varl_jax.roles.bundle import Roles
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.event_log import EventStore
from varl_jax.service.evolution_stats import CorpusStatistics
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.passages import PassageSource

# The authors' rank, where `lora.rank` names none; their alpha is its default.
RANK: Final = 32


def learners(config: Config) -> tuple[LearnerSpec, LearnerSpec]:
  """The policy's adapter and the generator's."""
  evo, train = config.evo, config.train
  lora = dataclasses.replace(config.lora, rank=config.lora.rank or RANK)
  policy = dataclasses.replace(
    train, learning_rate=evo.learning_rate or train.learning_rate
  )
  generator = dataclasses.replace(
    train,
    samples=evo.sets,
    min_graded=min(train.min_graded, evo.sets),
    learning_rate=evo.generator_learning_rate or train.learning_rate,
  )
  return (
    LearnerSpec(
      name=POLICY,
      lora=lora,
      train=policy,
      max_response=config.model.max_response,
    ),
    LearnerSpec(
      name=GENERATOR,
      lora=lora,
      train=generator,
      max_response=evo.max_set or config.model.max_response,
      start=evo.generator_start,
    ),
  )


def evo_rubrics(
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
    writer=workshop.writer(),
    assessor=workshop.assessor(),
    refereeing=(
      workshop.refereeing() if config.method.measure_exploits else None
    ),
    co_training=CoGrading(
      language=roles.rubric_language,
      assessor=workshop.assessor(),
      reviser=roles.reviser if config.evo.reflect else None,
      checks=checks,
      embedder=HashingEmbedder(),
      reference=config.evo.reference,
      seed=config.seed,
    ),
  )
