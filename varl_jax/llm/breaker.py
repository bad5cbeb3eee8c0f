"""The gate in front of an endpoint: shut while its server is down or resting.

Shut for one of two reasons:

  paused   the server said when to come back (Retry-After); then all may go
  down     too many failures in a row; every so often one call goes through as
           a probe, and its success opens the gate for all

Calls wait in front of it, so that a server's outage stops a run for a while
rather than failing everything that it asks for. An address at which no such
server was ever seen (an unknown name, no trusted TLS, web pages) is more likely
a mistake than an outage and is waited for only shortly.
"""

import asyncio
import random
from collections.abc import Callable, Hashable
from typing import Final, Literal

from varl_jax.llm.retries import Backoff

# `down`: no server there (refused, reset, 502 to 504). `ill`: a failure that
# the request itself may have caused (500, no answer in time, nonsense).
Health = Literal["down", "ill"]

# Failures in a row that shut the gate; ill ones count when they come from
# several calls, since one request alone may be what the server stumbles over.
DOWN_IN_A_ROW: Final = 3
ILL_IN_A_ROW: Final = 5
ILL_CALLS: Final = 3
# Most seconds to wait for what has never been there.
UNSEEN_S: Final = 60.0
# Shorter pauses are ordinary business and not worth a sentence.
QUIET_S: Final = 5.0


class OutageError(Exception):
  """The server will not be back within the time that calls wait for it."""


class Gate:
  """Lets calls through while the server answers.

  Args:
    name: how the server is called in sentences.
    outage_s: how long an outage may last before calls fail.
    backoff: waits between probes.
    rng: for their jitter.
    notify: is told in a sentence when the gate shuts and opens.
    clock: seconds.
  """

  def __init__(
    self,
    *,
    name: str,
    outage_s: float,
    backoff: Backoff,
    rng: random.Random,
    notify: Callable[[str], None],
    clock: Callable[[], float],
  ):
    self._name = name
    self._outage_s = outage_s
    self._backoff = backoff
    self._rng = rng
    self._notify = notify
    self._clock = clock
    self._changed = asyncio.Event()
    self._shut: Literal["", "paused", "down"] = ""
    self._reason = ""
    self._answered = self._astray = False
    self._said = False
    self._since: float | None = None
    self._opens_at = 0.0
    self._probing: Hashable | None = None
    self._probes = 0
    self._down_run = 0
    self._ill_run = 0
    self._ill_calls: set[Hashable] = set()

  @property
  def shut(self) -> bool:
    """Whether calls wait."""
    return bool(self._shut)

  @property
  def away(self) -> bool:
    """Whether calls wait, and for longer than is ordinary business."""
    if self._shut == "paused":
      return self._opens_at - self._clock() > QUIET_S
    return self.shut

  @property
  def _longest_s(self) -> float:
    """How long calls wait in all."""
    unseen = self._astray and not self._answered
    return min(self._outage_s, UNSEEN_S) if unseen else self._outage_s

  async def enter(self, call: Hashable, *, patience_s: float) -> None:
    """Waits until `call` may be sent, be it as a probe.

    Whoever gets through tells the outcome by `succeeded`, `failed`, `pause` or
    `left`.

    Args:
      call: identity of the call.
      patience_s: most seconds to wait.

    Raises:
      OutageError: waiting is in vain, or has lasted long enough.
    """
    latest = self._clock() + patience_s
    while self._shut:
      now = self._clock()
      if now >= self._opens_at and self._probing is None:
        if self._shut == "paused":
          # An outage is over with a success, not with the end of a pause.
          self._change("")
        else:
          self._probing = call
        return
      since = now if self._since is None else self._since
      limit = min(latest, since + self._longest_s)
      if max(now, self._opens_at) >= limit:
        mend = "" if self._answered else "; check base_url"
        raise OutageError(
          f"it is not available ({self._reason}{mend}); calls waited up to"
          f" {self._longest_s:g} s for it"
        )
      until = limit if self._probing is not None else self._opens_at
      await self._wait(until - now)

  def succeeded(self) -> None:
    """The server answered sensibly."""
    self._answered = True
    self._down_run = self._ill_run = 0
    self._ill_calls.clear()
    if self._shut == "paused":
      return  # Sent before the server asked for the pause, which still holds.
    if self._shut:
      self._change("")
    if self._said and self._since is not None:
      self._said = False
      lasted = self._clock() - self._since
      self._notify(f"{self._name} is back after {lasted:.0f} s.")
    self._probes = 0
    self._since = None

  def failed(
    self, call: Hashable, health: Health, reason: str, *, astray: bool = False
  ) -> None:
    """An attempt of `call` failed through the server's state.

    Args:
      call: identity of the call.
      health: what the failure says of the server.
      reason: the same in words.
      astray: whether it looks as if no such server were at the address.
    """
    self._astray = astray
    if self._probing == call:
      self._probing = None
      self._shut_down(reason)
      return
    if self._shut == "down":
      return
    if health == "down" or (astray and not self._answered):
      self._down_run += 1
    self._ill_run += 1
    self._ill_calls.add(call)
    if self._down_run >= DOWN_IN_A_ROW or (
      self._ill_run >= ILL_IN_A_ROW and len(self._ill_calls) >= ILL_CALLS
    ):
      self._shut_down(reason)

  def pause(self, call: Hashable, seconds: float, reason: str) -> None:
    """The server asked for a pause; it holds for every call."""
    if self._probing == call:
      self._probing = None
    now = self._clock()
    opens_at = now + seconds
    if self._shut == "paused" and self._opens_at >= opens_at:
      return
    self._begin(now, reason)
    self._opens_at = opens_at
    self._change("paused")
    if seconds >= QUIET_S:
      self._say(f"asked to wait {seconds:.0f} s ({reason})")

  def left(self, call: Hashable) -> None:
    """A call ended without saying anything about the server."""
    if self._probing == call:
      self._probing = None
      self._wake()

  def _shut_down(self, reason: str) -> None:
    now = self._clock()
    self._begin(now, reason)
    self._probes += 1
    # At least half of the longest wait, so that probes stay rare.
    longest = self._backoff.longest(self._probes)
    self._opens_at = now + self._rng.uniform(longest / 2, longest)
    self._change("down")
    self._say(f"does not answer ({reason})")

  def _begin(self, now: float, reason: str) -> None:
    self._reason = reason
    if self._since is None:
      self._since = now

  def _say(self, what: str) -> None:
    if self._said:
      return
    self._said = True
    self._notify(
      f"{self._name} {what}; calls to it wait up to {self._longest_s:g} s and"
      " go on by themselves when it is back."
    )

  def _change(self, state: Literal["", "paused", "down"]) -> None:
    self._shut = state
    if not state:
      self._probing = None
    self._wake()

  def _wake(self) -> None:
    self._changed.set()
    self._changed = asyncio.Event()

  async def _wait(self, seconds: float) -> None:
    try:
      async with asyncio.timeout(max(0.0, seconds)):
        await self._changed.wait()
    except TimeoutError:
      pass
