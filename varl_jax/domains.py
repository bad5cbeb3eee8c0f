"""What a run's domain supplies: models for the roles, verifiers, validation.

A domain is its prompts (`prompts.loader`), and for the story world a model and
verifiers on top. All other domains, a user's own folder among them, have no
model: endpoints fill their roles. Loads no jax.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Final, Protocol

from varl_jax.config import Config, ConfigError
from varl_jax.judged_validation import JudgedValidator, MakeJudge, judge_maker
from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import (
  PromptError,
  load_description,
  load_prompts,
  load_reference,
)
from varl_jax.protocols import Validator
from varl_jax.roles.rubric_author import RubricLanguage
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.evolution_stats import CorpusStatistics
from varl_jax.service.solver_tools import Tool
from varl_jax.types import from_json

STORY: Final = "story"
STORY_CHECKS: Final = "varl_jax.story.world:CHECKS"
STORY_LOOKUP_CHECKS: Final = "varl_jax.story.lookup:CHECKS"


class MakeValidator(Protocol):
  """Builds the held-out tasks; `make_judge` gives the judge if one is needed.

  Raises:
    ConfigError: there are no held-out tasks or no judge.
  """

  def __call__(self, make_judge: MakeJudge | None = None) -> Validator: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
  """One domain.

  Attributes:
    chat: the frozen model behind every role; None says that endpoints are.
    checks: programmatic verifiers by name.
    registry: importable name of `checks`, as `module:NAME`, for processes that
      run them; "" without any.
    verifiers: what prompts tell writers of rubrics about them.
    description: of the target, for the proposer.
    reference: known statistics of the target, None without any.
    make_validator: builds the held-out tasks, only where they are wanted.
    tools: the solver may call here alone, by name.
    rubric_language: what the policy's model writes rubrics in where it is
      trained to, None for JSON.
  """

  chat: ChatModel | None
  checks: CheckRegistry
  verifiers: str
  description: str
  reference: CorpusStatistics | None
  make_validator: MakeValidator
  registry: str = ""
  tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
  rubric_language: RubricLanguage | None = None


def load_domain(config: Config) -> Domain:
  """Builds the domain a config names, a name or the path of a folder.

  A model named by `endpoints.roles` fills the roles of any domain, the story
  world's too.

  Raises:
    ConfigError: there is no such domain, its files cannot be used, or no model
      fills its roles.
  """
  try:
    load_prompts(config.domain)
    if config.domain == STORY:
      return _story(config)
    return _with_endpoint(config)
  except PromptError as error:
    raise ConfigError(str(error)) from error


def _story(config: Config) -> Domain:
  # A domain loads only its own parts.
  from varl_jax.story import lookup, rubric_words, world

  signs = lookup.LOOKUP.name in config.tools.chosen
  part = lookup if signs else world
  registry = STORY_LOOKUP_CHECKS if signs else STORY_CHECKS
  chat = None if config.endpoints.roles.model else part.CHAT

  def make_validator(make_judge: MakeJudge | None = None) -> Validator:
    if config.eval.tasks_path:
      return JudgedValidator(
        config,
        checks=part.CHECKS,
        registry=registry,
        make_judge=judge_maker(chat, make_judge),
      )
    from varl_jax.story import validation

    return validation.make_validator(config.eval.tasks, seed=config.seed)

  return Domain(
    chat=chat,
    checks=part.CHECKS,
    verifiers=part.VERIFIERS,
    description=world.DESCRIPTION,
    reference=None,
    make_validator=make_validator,
    registry=registry,
    tools=lookup.TOOLS if signs else {},
    rubric_language=(
      rubric_words.LANGUAGE if config.model.path == STORY else None
    ),
  )


def _with_endpoint(config: Config) -> Domain:
  if not config.endpoints.roles.model:
    raise ConfigError(
      f"Domain {config.domain!r} has no model of its own; name the one that"
      " fills its roles by endpoints.roles.model (its server by"
      " endpoints.roles.base_url)."
    )
  return Domain(
    chat=None,
    checks=CheckRegistry(),
    verifiers="",
    description=load_description(config.domain),
    reference=_reference(config.domain),
    make_validator=functools.partial(_validator, config),
  )


def _validator(
  config: Config, make_judge: MakeJudge | None = None
) -> Validator:
  if not config.eval.tasks_path:
    raise ConfigError(
      f"Domain {config.domain!r} draws no held-out tasks; name a file of them"
      " by eval.tasks_path, or set eval.interval to 0."
    )
  return JudgedValidator(
    config, checks=CheckRegistry(), make_judge=judge_maker(None, make_judge)
  )


def _reference(domain: str) -> CorpusStatistics | None:
  known = load_reference(domain)
  if not known:
    return None
  for name, value in known.items():
    shares = value.values() if isinstance(value, dict) else [value]
    if (name == "use_cases") != isinstance(value, dict) or not all(
      type(share) in (int, float) and math.isfinite(share) for share in shares
    ):
      raise ConfigError(
        f"reference.json of domain {domain!r}: {name!r} is no number"
        f"{' a use case' if name == 'use_cases' else ''}, got {value!r}."
      )
  try:
    return from_json(CorpusStatistics, known)
  except ValueError as error:
    raise ConfigError(
      f"reference.json of domain {domain!r}: {error}"
    ) from error
