"""What a response that is no reply means: its kind, and what to do next.

status                        kind         then
402, insufficient_quota       quota        no other call can succeed
400 of an over-long prompt    length       this call fails
400 of a content policy       refusal      this call fails
other 3xx and 4xx             rejected     no other call can succeed
408, 425, 429, 5xx            unavailable  again, after a pause if it says so
no answer in time             timeout      again
connection lost               unavailable  again
200 that is no reply          malformed    again
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from varl_jax.llm.breaker import Health
from varl_jax.llm.chat import FailureKind
from varl_jax.llm.retries import retry_after_s
from varl_jax.llm.transport import RawReply
from varl_jax.llm.wire import BadReply, read_body

_QUOTA: Final = frozenset(
  {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_balance",
    "credit_balance_too_low",
  }
)
_TOO_LONG: Final = ("context_length", "context length", "maximum context")
_POLICY: Final = ("content_filter", "content_policy", "content management")
_PASSING: Final = frozenset({408, 409, 425, 429})
# Behind a proxy these say that there is no server.
_NO_SERVER: Final = frozenset({502, 503, 504, 521, 522, 523, 524, 529})
_MENDS: Final[Mapping[int, str]] = {
  401: "check the key",
  403: "check the key and what it may use",
  404: "check base_url and the model's name",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """A failed attempt.

  Attributes:
    kind: of the call's failure, if it is not tried again.
    message: what happened, not scrubbed yet.
    retry: whether another attempt may succeed.
    health: what it says of the server's state, None for nothing.
    pauses: whether the server asks all calls to slow down.
    after_s: how long, None when it does not say.
    code: the status, 0 without a response.
    param: the parameter that a refused request was refused for.
  """

  kind: FailureKind
  message: str
  retry: bool
  health: Health | None = None
  pauses: bool = False
  after_s: float | None = None
  code: int = 0
  param: str = ""


def timed_out(seconds: float) -> Problem:
  """No whole reply in time."""
  message = f"no whole reply within {seconds:.3g} s"
  return Problem(kind="timeout", message=message, retry=True, health="ill")


def lost(reason: str) -> Problem:
  """The connection failed."""
  return Problem(kind="unavailable", message=reason, retry=True, health="down")


def malformed(error: BadReply) -> Problem:
  """A response of status 200 that is no reply."""
  return Problem(kind="malformed", message=str(error), retry=True, health="ill")


def refused(raw: RawReply, *, now: float) -> Problem:
  """A response of another status than success.

  Args:
    raw: the response.
    now: seconds since 1970.
  """
  try:
    error = read_body(raw.body).get("error")
  except BadReply:
    error = None
  return _problem(
    raw.status, error, after_s=retry_after_s(raw.headers, now=now)
  )


def error_inside(found: Mapping[str, Any]) -> Problem | None:
  """An error that came with status 200, as some gateways send it."""
  error = found.get("error")
  if not error or found.get("choices"):
    return None
  code = error.get("code") if isinstance(error, dict) else None
  status = code if isinstance(code, int) and code >= 400 else 502
  return _problem(status, error, after_s=None)


def _problem(status: int, error: Any, *, after_s: float | None) -> Problem:
  message, codes, param = _read(error)
  said = f"status {status}{': ' if message else ''}{message}"
  words = " ".join((message, *sorted(codes))).lower()
  if status == 402 or codes & _QUOTA:
    return Problem(kind="quota", message=said, retry=False, code=status)
  if status in _PASSING or status >= 500:
    return Problem(
      kind="unavailable",
      message=said,
      retry=True,
      # 429 is the answer of a server in good health.
      health=None if status in _PASSING else _health(status),
      pauses=status == 429 or after_s is not None,
      after_s=after_s,
      code=status,
    )
  kind: FailureKind = "rejected"
  if status in (400, 413, 422):
    if any(word in words for word in _TOO_LONG):
      kind = "length"
    elif any(word in words for word in _POLICY):
      kind = "refusal"
  mend = _MENDS.get(status, "check the endpoint's settings")
  if kind == "rejected":
    said = f"{said} ({mend})"
  return Problem(kind=kind, message=said, retry=False, code=status, param=param)


def _health(status: int) -> Health:
  return "down" if status in _NO_SERVER else "ill"


def _read(error: Any) -> tuple[str, frozenset[str], str]:
  """Message, codes and parameter of an error object."""
  if isinstance(error, str):
    return error, frozenset(), ""
  if not isinstance(error, dict):
    return "", frozenset(), ""
  words = [error.get(name) for name in ("message", "code", "type", "param")]
  message, code, kind, param = (
    word if isinstance(word, str) else "" for word in words
  )
  return message, frozenset({code, kind} - {""}), param
