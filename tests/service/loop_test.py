"""Work in the loop's thread, and when it is given up."""

import asyncio
import contextlib

import pytest

from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.service.loop import LoopThread


@pytest.fixture(name="loop")
def made_loop():
  with contextlib.closing(LoopThread("test")) as made:
    yield made


def test_work_that_is_given_up_is_cancelled(loop):
  seen = []

  async def endless():
    try:
      await asyncio.Event().wait()
    except asyncio.CancelledError:
      seen.append("cancelled")
      raise

  looks = iter([False, False, True])
  loop.give_up_when(lambda: next(looks))
  with pytest.raises(Stopped) as caught:
    loop.run(endless())
  assert isinstance(caught.value, ServiceFailure)
  loop.give_up_when(lambda: False)
  loop.run(asyncio.sleep(0))
  assert seen == ["cancelled"]


def test_work_that_ends_by_itself_is_not(loop):
  async def value():
    return 3

  async def late():
    raise TimeoutError("Late.")

  loop.give_up_when(lambda: True)
  assert loop.run(value()) == 3
  with pytest.raises(TimeoutError, match="Late"):
    loop.run(late())
