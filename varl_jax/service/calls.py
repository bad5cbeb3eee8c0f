"""Failures of the service and of its calls to frozen models."""

from collections.abc import Awaitable
from typing import TypeVar

from varl_jax.llm.chat import ChatError
from varl_jax.llm.journal import JournalError

Value = TypeVar("Value")


class ServiceFailure(Exception):
  """The service cannot go on; its state is saved, the run may be resumed."""


class Stopped(ServiceFailure):
  """The run was asked to stop while it waited for a server."""


async def attempt(call: Awaitable[Value]) -> Value | ChatError:
  """Waits for a call; a failed reply comes back as a value, with its kind.

  Raises:
    ServiceFailure: no later call could succeed: the quota is used up, or the
      server rejects the key, the model or the form of the request, or replies
      cannot be recorded.
  """
  try:
    return await call
  except JournalError as error:
    raise ServiceFailure(str(error)) from error
  except ChatError as error:
    if not error.fatal:
      return error
    said = str(error).rstrip(".")
    if error.kind == "quota":
      raise ServiceFailure(
        f"A model's quota is used up ({said}); raise it and resume the run."
      ) from error
    raise ServiceFailure(
      f"A model's server rejects calls ({said}); mend the endpoint's settings"
      " and resume the run."
    ) from error
