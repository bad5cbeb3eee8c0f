"""Ways to improve the reward, by name.

`METHODS[config.method.name](config, roles=..., store=..., checks=...)` builds
the generation service of a run, and `learners(config)` says what it trains.
"""

from collections.abc import Callable
from typing import Final

from varl_jax.config import Config
from varl_jax.methods import evo_rubrics, rar, rri, sibyl_sense
from varl_jax.methods.learners import LearnerSpec, policy_alone
from varl_jax.service.generation_service import GenerationService

METHODS: Final[dict[str, Callable[..., GenerationService]]] = {
  "generation_only": rri.generation_only,
  "co_evolve_only": rri.co_evolve_only,
  "rri": rri.rri,
  "rar": rar.rar,
  "sibyl_sense": sibyl_sense.sibyl_sense,
  "evo_rubrics": evo_rubrics.evo_rubrics,
}
# Of methods that train more than the policy, or otherwise.
LEARNERS: Final[dict[str, Callable[[Config], tuple[LearnerSpec, ...]]]] = {
  "evo_rubrics": evo_rubrics.learners,
}


def learners(config: Config) -> tuple[LearnerSpec, ...]:
  """What the config's method trains, the policy first."""
  return LEARNERS.get(config.method.name, policy_alone)(config)
