"""The solver's tools as the settings name them, for both sides of a run.

The policy's side needs what a model is told of them (`tool_specs`), the
service's side what runs them (`open_tools`).
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Final

from varl_jax.config import Config, ConfigError
from varl_jax.domains import STORY
from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import load_prompts
from varl_jax.retrieval.collection import SOLVER_SEARCH
from varl_jax.retrieval.opening import make_embedder, open_index
from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.web_engines import ENGINES
from varl_jax.retrieval.web_search import EngineSearch, RecordedSearch
from varl_jax.roles.summarizer import Summarizer
from varl_jax.service.solver_tools import (
  CLINICAL_SEARCH,
  WEB_SEARCH,
  ClinicalSearch,
  Tool,
  ToolRunner,
  WebSearch,
)
from varl_jax.types import ToolSpec

SPECS: Final = {spec.name: spec for spec in (CLINICAL_SEARCH, WEB_SEARCH)}


def tool_specs(config: Config) -> tuple[ToolSpec, ...]:
  """What the model is told of its tools; () without any.

  Raises:
    ConfigError: there is no tool of a name.
  """
  known = SPECS | _own_specs(config)
  for name in config.tools.chosen:
    if name not in known:
      raise ConfigError(
        f"tools.names: domain {config.domain!r} has no tool {name!r}; choose"
        f" {', '.join(known)}."
      )
  return tuple(known[name] for name in config.tools.chosen)


def _own_specs(config: Config) -> dict[str, ToolSpec]:
  """The tools of the domain alone."""
  if config.domain != STORY:
    return {}
  from varl_jax.story.lookup import LOOKUP  # a domain loads its own parts

  return {LOOKUP.name: LOOKUP}


def open_tools(
  config: Config,
  *,
  chat: ChatModel,
  own: Mapping[str, Tool],
  notify: Callable[[str], None],
  stack: contextlib.ExitStack,
) -> ToolRunner | None:
  """What runs the tools of the settings, None without any.

  Args:
    config: the run's settings.
    chat: the frozen model that summarizes.
    own: the domain's tools.
    notify: told why calls failed.
    stack: closes what was opened.

  Raises:
    ConfigError: a tool cannot be used.
  """
  made: dict[str, Tool] = {}
  for spec in tool_specs(config):
    if spec.name in own:
      made[spec.name] = own[spec.name]
    elif spec is CLINICAL_SEARCH:
      made[spec.name] = _clinical_search(config, chat, stack)
    else:
      assert spec is WEB_SEARCH
      made[spec.name] = _web_search(config)
  if not made:
    return None
  return ToolRunner(tools=made, timeout_s=config.tools.timeout_s, notify=notify)


def _clinical_search(
  config: Config, chat: ChatModel, stack: contextlib.ExitStack
) -> ClinicalSearch:
  folder = config.retrieval.index
  if not folder:
    raise ConfigError(
      "clinical_search needs an index; name its folder by retrieval.index, or"
      " take the tool out of tools.names."
    )
  try:
    index = open_index(
      pathlib.Path(folder).expanduser(),
      embedder=make_embedder(config.retrieval.encoder),
      lexical_only=config.retrieval.lexical_only,
    )
  except RetrievalError as error:
    raise ConfigError(f"retrieval.index cannot be used: {error}") from error
  stack.callback(index.close)
  held = set(index.counts()) & set(SOLVER_SEARCH)
  return ClinicalSearch(
    index=index,
    summarizer=Summarizer(chat=chat, prompts=load_prompts(config.domain)),
    passages=config.tools.passages,
    seed=config.seed,
    # An index of one's own texts has no source of the paper's collection.
    sources=SOLVER_SEARCH if held else None,
  )


def _web_search(config: Config) -> WebSearch:
  tools = config.tools
  engine = ENGINES[tools.web_engine]
  asking = None
  if tools.web_mode == "record":
    key = os.environ.get(tools.web_key_env, "") if tools.web_key_env else ""
    if engine.keyed and not key:
      raise ConfigError(
        f"{engine.name} wants a key; name the environment variable that holds"
        " it by tools.web_key_env."
      )
    if not (key.isascii() and key.isprintable()):
      raise ConfigError(
        f"The key in {tools.web_key_env} has characters that no header carries;"
        " use the one that the service gave you."
      )
    if not (tools.web_url or engine.url):
      raise ConfigError(
        f"{engine.name} has no address of its own; give yours as tools.web_url."
      )
    if tools.web_url and not tools.web_url.startswith(("http://", "https://")):
      raise ConfigError(
        f"tools.web_url is an http address, got {tools.web_url!r}."
      )
    asking = EngineSearch(engine=engine, url=tools.web_url, key=key)
  if not tools.web_recordings:
    raise ConfigError(
      "web_search keeps its answers in a file; name it by tools.web_recordings."
    )
  try:
    searcher = RecordedSearch(
      tools.web_recordings, engine=engine.name, ask=asking
    )
  except RetrievalError as error:
    raise ConfigError(str(error)) from error
  return WebSearch(searcher=searcher, results=tools.web_results)
