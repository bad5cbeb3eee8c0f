"""Failures of the service and of its calls to frozen models."""

from collections.abc import Awaitable
from typing import TypeVar

from varl_jax.llm.chat import ChatError

Value = TypeVar("Value")


class ServiceFailure(Exception):
  """The service cannot go on; its state is saved, the run may be resumed."""


async def attempt(call: Awaitable[Value]) -> Value | ChatError:
  """Waits for a call; a failed reply comes back as a value, with its kind.

  Raises:
    ServiceFailure: the quota is used up, so that every later call would fail.
  """
  try:
    return await call
  except ChatError as error:
    if error.kind == "quota":
      raise ServiceFailure(
        f"A model's quota is used up ({error}); raise it and resume the run."
      ) from error
    return error
