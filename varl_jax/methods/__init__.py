"""Ways to improve the reward, by name.

`METHODS[config.method.name](config, roles=..., store=..., checks=...)` builds
the generation service of a run.
"""

from collections.abc import Callable
from typing import Final

from varl_jax.methods import rar, rri, sibyl_sense
from varl_jax.service.generation_service import GenerationService

METHODS: Final[dict[str, Callable[..., GenerationService]]] = {
  "generation_only": rri.generation_only,
  "co_evolve_only": rri.co_evolve_only,
  "rri": rri.rri,
  "rar": rar.rar,
  "sibyl_sense": sibyl_sense.sibyl_sense,
}
