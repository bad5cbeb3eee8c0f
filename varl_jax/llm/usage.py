"""What calls cost: counted by role, handed out as plain numbers."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from varl_jax.llm.chat import ChatReply


@dataclasses.dataclass
class _RoleUsage:
  calls: int = 0
  attempts: int = 0
  prompt_tokens: int = 0
  reply_tokens: int = 0
  cost: float = 0.0
  without_usage: int = 0
  paused_s: float = 0.0
  waiting: int = 0
  waiting_since: float = 0.0
  failed: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  retried: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  modes: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )


class Usage:
  """Counts of one endpoint, by role.

  Args:
    clock: seconds.
  """

  def __init__(self, *, clock: Callable[[], float]):
    self._clock = clock
    self._roles: dict[str, _RoleUsage] = collections.defaultdict(_RoleUsage)

  def called(self, role: str, *, calls: int = 1) -> None:
    """Calls began."""
    self._roles[role].calls += calls

  def attempted(self, role: str) -> None:
    """A request was sent."""
    self._roles[role].attempts += 1

  def replied(self, role: str, replies: list[ChatReply]) -> None:
    """Replies of one request arrived."""
    counted = self._roles[role]
    for reply in replies:
      counted.prompt_tokens += reply.prompt_tokens
      counted.reply_tokens += reply.reply_tokens
      counted.cost += reply.cost
      counted.modes[reply.mode] += 1

  def lacked_usage(self, role: str) -> None:
    """A reply came without its numbers of tokens."""
    self._roles[role].without_usage += 1

  def retried(self, role: str, kind: str) -> None:
    """An attempt failed and another follows."""
    self._roles[role].retried[kind] += 1

  def failed(self, role: str, kind: str, *, calls: int = 1) -> None:
    """Calls failed for good."""
    self._roles[role].failed[kind] += calls

  @contextlib.contextmanager
  def pausing(self, role: str) -> Iterator[None]:
    """Measures a wait for a server that is down or asked for a pause.

    Waits of one role that overlap count once: it is the time that the role
    stood still for some of its calls.
    """
    counted = self._roles[role]
    if not counted.waiting:
      counted.waiting_since = self._clock()
    counted.waiting += 1
    try:
      yield
    finally:
      counted.waiting -= 1
      if not counted.waiting:
        counted.paused_s += self._clock() - counted.waiting_since

  def numbers(self) -> dict[str, dict[str, float]]:
    """All counts so far.

    Returns:
      By role: `calls`, `attempts` (requests sent), `prompt_tokens`,
      `reply_tokens`, `cost` (US dollars), `without_usage` (replies that did not
      state their tokens), `paused_s`, and for every kind and mode that occurred
      `failed_KIND` (calls), `retried_KIND` (attempts), `mode_MODE` (replies).
    """
    # Lists first: another thread may ask while calls go on.
    return {role: _plain(found) for role, found in list(self._roles.items())}


def _plain(counted: _RoleUsage) -> dict[str, float]:
  named = {
    f"{name}_{key}": float(count)
    for name, counts in (
      ("failed", counted.failed),
      ("retried", counted.retried),
      ("mode", counted.modes),
    )
    for key, count in list(counts.items())
  }
  return {
    "calls": float(counted.calls),
    "attempts": float(counted.attempts),
    "prompt_tokens": float(counted.prompt_tokens),
    "reply_tokens": float(counted.reply_tokens),
    "cost": counted.cost,
    "without_usage": float(counted.without_usage),
    "paused_s": counted.paused_s,
    **named,
  }
