"""Recursive reward improvement and the two arms it is compared with.

| arm | guidance evolution | admission repair | patches | memo |
|---|---|---|---|---|
| generation_only | - | - | - | - |
| co_evolve_only | yes | - | - | - |
| rri | yes | yes | yes | yes |

The paper says in one place that admission repair belongs to every arm and in
another that Co-evolve Only has no adversary; here only `rri` has it, and each
of its parts is a switch of `config.MethodConfig`.
"""

from collections.abc import Callable
from typing import Final

from varl_jax.config import Config, ConfigError, MethodConfig
from varl_jax.methods.parts import Workshop
from varl_jax.roles.bundle import Roles
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.event_log import EventStore
from varl_jax.service.evolution_stats import CorpusStatistics
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.passages import PassageSource

GENERATION_ONLY: Final = MethodConfig(
  name="generation_only",
  evolve_guidance=False,
  admission_repair=False,
  training_patches=False,
  memo=False,
)
CO_EVOLVE_ONLY: Final = MethodConfig(
  name="co_evolve_only",
  evolve_guidance=True,
  admission_repair=False,
  training_patches=False,
  memo=False,
)


def _method(on: MethodConfig | None) -> Callable[..., GenerationService]:
  """A method with the given parts, or those that `config.method` leaves on."""

  def build(
    config: Config,
    *,
    roles: Roles,
    store: EventStore,
    checks: CheckRegistry,
    verifiers: str = "",
    reference: CorpusStatistics | None = None,
    passages: PassageSource | None = None,
  ) -> GenerationService:
    workshop = Workshop(
      config=config,
      roles=roles,
      checks=checks,
      verifiers=verifiers,
      reference=reference,
      passages=passages,
    )
    return _assemble(workshop, store, on or config.method)

  return build


def _assemble(
  workshop: Workshop, store: EventStore, on: MethodConfig
) -> GenerationService:
  """Puts the parts that are on together.

  The memo is measured by the probes of admission, so it needs that part.

  Raises:
    ConfigError: a setting of the referee or of repairs in a method without.
  """
  config = workshop.config
  look = on.training_patches or config.method.measure_exploits
  for setting, used in (
    ("patch.referee_share below 1", config.patch.referee_share < 1),
    ("discriminator.on", config.discriminator.on),
  ):
    if used and not look:
      raise ConfigError(
        f"{setting} needs a referee, and method {on.name!r} asks none; set"
        " method.measure_exploits or method.training_patches."
      )
  patch = config.patch
  checked = patch.verify_pairs or patch.stop_equal
  if checked and not on.training_patches:
    raise ConfigError(
      "patch.verify_pairs and patch.stop_equal check pairs before their repair,"
      f" and method {on.name!r} repairs none; set method.training_patches."
    )
  return GenerationService(
    workshop.config,
    store=store,
    writer=workshop.writer(),
    assessor=workshop.assessor(),
    admitter=workshop.admitter() if on.admission_repair else None,
    refereeing=workshop.refereeing() if look else None,
    patching=workshop.patching() if on.training_patches else None,
    pair_check=workshop.pair_check() if checked else None,
    evolution=workshop.evolution() if on.evolve_guidance else None,
    memo=workshop.memo_keeper() if on.memo and on.admission_repair else None,
  )


generation_only = _method(GENERATION_ONLY)
co_evolve_only = _method(CO_EVOLVE_ONLY)
rri = _method(None)
