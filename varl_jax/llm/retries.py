"""When to try again: full jitter, and what a server says itself."""

import dataclasses
import email.utils
import math
import random
from collections.abc import Mapping
from typing import Final

# Longer pauses than a day are taken for nonsense and cut to it.
_LONGEST_S: Final = 86400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backoff:
  """Waits between attempts.

  Attributes:
    first_s: most seconds before the second attempt; doubled with every other.
    cap_s: most seconds before any attempt.
  """

  first_s: float = 0.5
  cap_s: float = 30.0

  def longest(self, failures: int) -> float:
    """Most seconds after that many failures, at least one."""
    return min(self.cap_s, self.first_s * 2.0 ** min(failures - 1, 30))

  def delay(self, failures: int, rng: random.Random) -> float:
    """Seconds to wait, uniform between 0 and `longest`.

    Calls that failed together thus come back spread out.
    """
    return rng.uniform(0.0, self.longest(failures))


def retry_after_s(headers: Mapping[str, str], *, now: float) -> float | None:
  """Seconds that a server asks to wait, None when it does not say.

  Args:
    headers: of the response, looked up without regard to case.
    now: seconds since 1970, for a Retry-After that names a date.
  """
  values = {
    name.lower(): value.strip()
    for name, value in headers.items()
    if name.lower() in ("retry-after", "retry-after-ms")
  }
  seconds = _number(values.get("retry-after-ms", ""))
  if seconds is not None:
    return min(seconds / 1000.0, _LONGEST_S)
  text = values.get("retry-after", "")
  seconds = _number(text)
  if seconds is None and text:
    try:
      date = email.utils.parsedate_to_datetime(text)
      seconds = max(0.0, date.timestamp() - now)
    except (ValueError, OverflowError):
      return None
  return None if seconds is None else min(seconds, _LONGEST_S)


def _number(text: str) -> float | None:
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) and value >= 0 else None
