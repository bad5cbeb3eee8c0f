"""The models behind the roles: the endpoints of a config, or the domain's own.

Calls to endpoints are written to a journal, so that a run which goes on pays
for none twice, and counted by role.
"""

import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Final

from varl_jax.config import (
  SELF,
  Config,
  ConfigError,
  EndpointConfig,
  EndpointsConfig,
)
from varl_jax.llm.chat import ChatModel
from varl_jax.llm.journal import Journal, JournaledChat
from varl_jax.llm.openai_chat import make_chat
from varl_jax.llm.transport import TransportName

JOURNAL: Final = "calls.sqlite"
# Validation asks from the trainer's process, and one file has one owner.
VALIDATION_JOURNAL: Final = "validation_calls.sqlite"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenModels:
  """The models of a run.

  Attributes:
    chat: fills the roles.
    judge: fills the judge's; often the same.
    endpoints: those of the two that are behind a server.
  """

  chat: ChatModel
  judge: ChatModel
  endpoints: tuple[JournaledChat, ...] = ()

  def usage(self) -> dict[str, float]:
    """Totals so far.

    Returns:
      `calls/ROLE/...`, the counts of `llm.usage.Usage.numbers` (`cost` in US
      dollars); `calls/cost` over all roles and `calls/journaled`, calls that
      the journal answered. Nothing without endpoints.
    """
    return total_usage(self.endpoints)

  def away(self) -> bool:
    """Whether calls wait for a server that is down."""
    return any(endpoint.away for endpoint in self.endpoints)


def total_usage(endpoints: Sequence[JournaledChat]) -> dict[str, float]:
  """See `FrozenModels.usage`."""
  totals: dict[str, float] = collections.defaultdict(float)
  for endpoint in endpoints:
    totals["calls/journaled"] += endpoint.answered
    for role, numbers in endpoint.usage().items():
      totals["calls/cost"] += numbers["cost"]
      for name, number in numbers.items():
        totals[f"calls/{role}/{name}"] += number
  return dict(totals)


def open_models(
  config: Config,
  own: ChatModel | None,
  folder: pathlib.Path,
  *,
  local: ChatModel | None = None,
  notify: Callable[[str], None],
  stack: contextlib.ExitStack,
) -> FrozenModels:
  """Opens the models of the roles and the judge.

  Args:
    config: the run's settings; `endpoints` says which servers.
    own: the domain's own model, which an endpoint replaces.
    folder: of the journal.
    local: the frozen weights of this process, for endpoints named `self`.
    notify: told when a server is away, and when it is back.
    stack: closes the journal.

  Raises:
    ConfigError: no model fills the roles, or an endpoint cannot be used.
    JournalError: the journal cannot be used.
  """
  settings = config.endpoints
  opener = _Opener(
    config, folder / JOURNAL, local=local, notify=notify, stack=stack
  )
  chat = own
  if settings.roles.model:
    chat = opener.open(settings.roles, transport=_roles_transport(settings))
  if chat is None:
    raise ConfigError(
      f"Domain {config.domain!r} has no model of its own; name one by"
      " endpoints.roles.model."
    )
  judge = opener.open(settings.judge) if settings.judge.model else chat
  return FrozenModels(chat=chat, judge=judge, endpoints=tuple(opener.opened))


def open_validation_judge(
  config: Config,
  folder: pathlib.Path,
  *,
  local: ChatModel | None = None,
  notify: Callable[[str], None],
  stack: contextlib.ExitStack,
) -> JournaledChat | None:
  """The judge of held-out tasks; None when the domain's own model judges.

  Raises:
    ConfigError: the endpoint cannot be used.
    JournalError: the journal cannot be used.
  """
  endpoint = _judging(config.endpoints)
  if not endpoint.model:
    return None
  opener = _Opener(
    config,
    folder / VALIDATION_JOURNAL,
    local=local,
    notify=notify,
    stack=stack,
  )
  return opener.open(endpoint)


def validates_here(config: Config) -> bool:
  """Whether the trainer's process asks a judge about held-out tasks."""
  return bool(config.eval.interval and config.eval.tasks_path)


def check_endpoints(config: Config, *, service: bool) -> None:
  """Checks the endpoints that this process will open.

  Args:
    config: the run's settings.
    service: whether the service runs in it; else validation alone asks.

  Raises:
    ConfigError: a key is missing, an address cannot be used, or a package is
      not installed.
  """
  settings = config.endpoints
  needed: list[tuple[EndpointConfig, TransportName]] = []
  if service:
    needed.append((settings.roles, _roles_transport(settings)))
    needed.append((settings.judge, "aiohttp"))
  elif validates_here(config):
    needed.append((_judging(settings), "aiohttp"))
  for endpoint, transport in needed:
    if endpoint.model not in ("", SELF):
      make_chat(endpoint, transport=transport)


def wants_self(config: Config) -> bool:
  """Whether the frozen weights fill a role in this process."""
  settings = config.endpoints
  return SELF in (settings.roles.model, settings.judge.model)


def _judging(settings: EndpointsConfig) -> EndpointConfig:
  """The judge's endpoint, the roles' where it has none of its own."""
  return settings.judge if settings.judge.model else settings.roles


def _roles_transport(settings: EndpointsConfig) -> TransportName:
  """Roles call seldom; without a judge of its own they are the judge too."""
  return "sdk" if settings.judge.model else "aiohttp"


class _Opener:
  """Opens endpoints on one journal, which is made for the first."""

  def __init__(
    self,
    config: Config,
    path: pathlib.Path,
    *,
    local: ChatModel | None,
    notify: Callable[[str], None],
    stack: contextlib.ExitStack,
  ):
    self._config = config
    self._path = path
    self._local = local
    self._notify = notify
    self._stack = stack
    self._journal: Journal | None = None
    self.opened: list[JournaledChat] = []

  def open(
    self, endpoint: EndpointConfig, *, transport: TransportName = "aiohttp"
  ) -> JournaledChat:
    """A model whose finished calls are kept."""
    if self._journal is None:
      self._journal = self._stack.enter_context(Journal(self._path))
    if endpoint.model == SELF:
      return self._keep(JournaledChat(_found(self._local), self._journal))
    chat = make_chat(
      endpoint,
      journal=self._journal,
      run_seed=self._config.seed,
      notify=self._notify,
      transport=transport,
    )
    assert isinstance(chat, JournaledChat)
    return self._keep(chat)

  def _keep(self, chat: JournaledChat) -> JournaledChat:
    self.opened.append(chat)
    return chat


def _found(local: ChatModel | None) -> ChatModel:
  """The frozen weights.

  Raises:
    ConfigError: this process has none.
  """
  if local is None:
    raise ConfigError(
      "endpoints: the model `self` is the frozen weights in the trainer's own"
      " process; for a service of its own, serve them with python -m"
      " varl_jax.model_server and give that address as base_url."
    )
  return local
