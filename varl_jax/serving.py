"""Puts the generation service of a config together; loads no jax.

endpoints -> chat models (journal) -> roles --+
domain -> checks (process pool) --------------+-> service -> HostedService
service.store_env -> store -------------------+
retrieval.index -> passages ------------------+
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, Final

from varl_jax.config import Config, ConfigError
from varl_jax.domains import Domain, load_domain
from varl_jax.frozen_models import (
  check_endpoints,
  open_models,
  validates_here,
)
from varl_jax.judge_gate import pass_gate
from varl_jax.llm.chat import ChatModel
from varl_jax.methods import METHODS
from varl_jax.roles.bundle import judge_template, make_roles
from varl_jax.roles.judge_template import with_hash
from varl_jax.run_folder import (
  RunError,
  check_claim,
  claim,
  disk_error,
  run_id,
)
from varl_jax.service import http_process
from varl_jax.service.grounding import open_passages
from varl_jax.service.hosting import HostedService, Notices
from varl_jax.service.http_server import Door, make_app
from varl_jax.service.store import Store
from varl_jax.solver_tools import open_tools

STORE: Final = "service.sqlite"
OWNER: Final = "service_owner"


def make_service(
  config: Config,
  domain: Domain,
  path: pathlib.Path,
  *,
  notices: Notices,
  local: ChatModel | None = None,
) -> HostedService:
  """Opens the generation service of the config's method.

  Args:
    config: the run's settings.
    domain: what `config.domain` names.
    path: of the store; the journal of calls lies beside it. A PostgreSQL
      store needs the folder alone.
    notices: told when a model's server is away, and when it is back.
    local: the frozen weights of this process, for endpoints named `self`.

  Raises:
    ConfigError: no such method, no model for the roles, no such index or tool,
      or a judge that `config.gate` refuses.
    PromptError: the domain's prompts cannot be loaded.
    StoreError: the store is in use or damaged.
    JournalError: the journal of calls is.
  """
  if config.method.name not in METHODS:
    raise ConfigError(
      f"Unknown method {config.method.name!r}; choose {', '.join(METHODS)}."
    )
  described = dataclasses.replace(
    config, description=config.description or domain.description
  )
  with contextlib.ExitStack() as stack:
    store = stack.enter_context(contextlib.closing(make_store(config, path)))
    models = open_models(
      config,
      domain.chat,
      path.parent,
      local=local,
      notify=notices.say,
      stack=stack,
    )
    roles = make_roles(
      models.chat,
      config.domain,
      config.judge,
      domain.checks,
      judge_chat=models.judge,
      registry=domain.registry,
      language=domain.rubric_language,
      verifiers=domain.verifiers,
    )
    stack.callback(roles.close)
    pass_gate(config, roles, path.parent, say=notices.say)
    passages = open_passages(config.retrieval)
    if passages is not None:
      stack.callback(passages.close)
    tools = open_tools(
      config,
      chat=models.chat,
      own=domain.tools,
      notify=notices.say,
      stack=stack,
    )
    service = METHODS[config.method.name](
      described,
      roles=roles,
      store=store,
      checks=domain.checks,
      verifiers=domain.verifiers,
      reference=domain.reference,
      passages=passages,
    )
    return HostedService(
      service,
      notices=notices,
      meter=models.usage,
      away=models.away,
      canary=config.judge.canary,
      tools=tools,
      closing=stack.pop_all(),
    )


def pinned(config: Config) -> Config:
  """The config with the hash of the judge's template in it.

  It is thus part of what a resumed run is compared with: an edited template is
  another judge.

  Raises:
    ConfigError: the template cannot be used.
  """
  return dataclasses.replace(config, judge=with_hash(config.judge))


def check_models(config: Config, *, service: bool) -> None:
  """Checks keys, addresses and the judge's template; opens and asks nothing.

  Args:
    config: the run's settings.
    service: whether the service runs here; else only what validation asks for
      is needed.

  Raises:
    ConfigError: one of them cannot be used.
  """
  check_endpoints(config, service=service)
  if service or validates_here(config):
    judge_template(config.judge)


def make_store(config: Config, path: pathlib.Path) -> Any:
  """The store that `service.store_env` asks for, by default a file.

  In a database the run goes by the name in its folder's `run_id`, so that a
  folder never finds another's state there.

  Raises:
    ConfigError: the variable is not set.
    StoreError: the store is in use or damaged.
  """
  name = config.service.store_env
  if not name:
    return Store(path)
  address = os.environ.get(name, "")
  if not address:
    raise ConfigError(
      f"service.store_env names {name}, which is not set; give it a PostgreSQL"
      " address, or leave service.store_env empty."
    )
  from varl_jax.service.postgres_store import PostgresStore

  return PostgresStore(address, run=f"{config.name}-{run_id(path.parent)}")


def serve(
  config: Config, workdir: pathlib.Path, *, host: str, port: int
) -> int:
  """Serves the config's service over HTTP until a signal comes.

  Returns:
    The process's exit code.

  Raises:
    RunError: the folder is another run's, the address cannot be used, or the
      extra is missing.
    ConfigError, PromptError, StoreError, JournalError: see `make_service`.
  """
  secret = token(config)
  config = pinned(config)
  try:
    http_process.check_exposure(
      host, secret, token_env=config.service.token_env
    )
    check_claim(config, workdir)
    domain = load_domain(config)
    check_models(config, service=True)
    workdir.mkdir(parents=True, exist_ok=True)
    notices = Notices(lambda sentence: print(sentence, file=sys.stderr))
    with contextlib.ExitStack() as stack:
      listening = stack.enter_context(http_process.listen(host, port))
      hosted = make_service(config, domain, workdir / STORE, notices=notices)
      stack.enter_context(contextlib.closing(hosted))
      check_claim(config, workdir)
      claim(config, workdir)
      door = Door(
        fingerprint=config.fingerprint(),
        token=secret,
        owner=workdir / OWNER,
      )
      url = http_process.address(listening)
      server = http_process.make_server(
        make_app(hosted, door=door),
        ready=lambda: print(f"Serving {config.name} at {url}", flush=True),
      )
      http_process.serve_until_signal(server, listening)
  except http_process.ListenError as error:
    raise RunError(str(error)) from error
  except ModuleNotFoundError as error:
    raise RunError(
      f"{error.name} is not installed; pip install -e '.[server]'."
    ) from error
  except OSError as error:
    raise disk_error(error, workdir) from error
  print("Stopped, state saved. The same command goes on from here.")
  return 0


def token(config: Config, environment: Mapping[str, str] = os.environ) -> str:
  """The token of the service, "" for none.

  Raises:
    ConfigError: it cannot be sent in a header.
  """
  found = environment.get(config.service.token_env, "")
  if not (found.isascii() and found.isprintable() and " " not in found):
    raise ConfigError(
      f"The token in {config.service.token_env} has characters that no header"
      " carries; use letters and digits."
    )
  return found
