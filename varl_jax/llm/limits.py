"""Rates of an endpoint: requests and tokens a minute.

A bucket is kept as the moment from which the next unit is free (the virtual
scheduling form of a token bucket): reserving moves that moment on and says how
long to wait, so waiting calls stay in order and nothing has to be woken.
"""

from collections.abc import Callable
from typing import Final

# A burst of this many seconds' worth may start at once, so that no window of a
# minute sees much more than the limit.
BURST_S: Final = 1.0


class Bucket:
  """One rate.

  Args:
    per_minute: units a minute, 0 for no limit.
    clock: seconds.
  """

  def __init__(self, per_minute: float, *, clock: Callable[[], float]):
    self._interval = 60.0 / per_minute if per_minute else 0.0
    self._clock = clock
    self._free_at = -float("inf")

  def reserve(self, amount: float) -> float:
    """Takes `amount` units; returns the seconds to wait before using them.

    An amount above the burst is let through once the bucket is not in debt
    and paid for by whoever comes next, so no request is too big for it.
    """
    if not self._interval:
      return 0.0
    now = self._clock()
    starts = max(self._free_at, now - BURST_S)
    self._free_at = starts + amount * self._interval
    return max(0.0, starts - now)

  def settle(self, difference: float) -> None:
    """Corrects a reservation by `difference` units: negative gives back."""
    if self._interval:
      self._free_at += difference * self._interval
