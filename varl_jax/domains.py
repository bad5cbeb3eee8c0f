"""What a run's domain supplies: models for the roles, verifiers, validation."""

import dataclasses
from collections.abc import Callable
from typing import Final

from varl_jax.config import Config, ConfigError
from varl_jax.llm.chat import ChatModel
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.trainer import Validator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
  """One domain.

  Attributes:
    chat: the frozen model behind every role.
    checks: programmatic verifiers by name.
    verifiers: what prompts tell writers of rubrics about them.
    description: of the target, for the proposer.
    make_validator: builds the held-out tasks, only where they are wanted.
  """

  chat: ChatModel
  checks: CheckRegistry
  verifiers: str
  description: str
  make_validator: Callable[[], Validator]


def _story(config: Config) -> Domain:
  from varl_jax.story import world  # a domain loads only its own parts

  def make_validator() -> Validator:
    from varl_jax.story import validation

    return validation.make_validator(config.eval.tasks, seed=config.seed)

  return Domain(
    chat=world.CHAT,
    checks=world.CHECKS,
    verifiers=world.VERIFIERS,
    description=world.DESCRIPTION,
    make_validator=make_validator,
  )


DOMAINS: Final[dict[str, Callable[[Config], Domain]]] = {"story": _story}


def load_domain(config: Config) -> Domain:
  """Builds the domain a config names.

  Raises:
    ConfigError: there is no such domain.
  """
  if config.domain not in DOMAINS:
    raise ConfigError(
      f"Unknown domain {config.domain!r}; choose {', '.join(DOMAINS)}."
    )
  return DOMAINS[config.domain](config)
