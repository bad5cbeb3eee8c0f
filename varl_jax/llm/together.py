"""Calls made at once, none of which outlives the failure of another."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Value = TypeVar("Value")


async def together(
  calls: Iterable[Coroutine[Any, Any, Value]],
) -> list[Value]:
  """Runs `calls` concurrently and returns their values in order.

  Unlike `asyncio.gather`, the first failure cancels the other calls and waits
  for their end before it is raised, so that nothing goes on being paid for.
  """
  tasks = [asyncio.ensure_future(call) for call in calls]
  try:
    return await asyncio.gather(*tasks)
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
