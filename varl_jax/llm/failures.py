"""What a response that is no reply means: its kind, and what to do next.

status                        kind         then
402, insufficient_quota       quota        no other call can succeed
413, 400 of a long prompt     length       this call fails
400, 403 of a content policy  refusal      this call fails
400, 403, 422 of no known     rejected     as `rejections` decides
reason
other 3xx and 4xx             rejected     no other call can succeed
408, 425, 429, 5xx            unavailable  again, after a pause if it says so
no answer in time             timeout      again
connection lost               unavailable  again
200 that is no reply          malformed    again

Servers put the reason into `error`, an object or a text, at the top level of
the body (SGLang, older vLLM), into `detail` (FastAPI), into the first item of
an array (Gemini), or send plain text.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from varl_jax.llm.breaker import Health
from varl_jax.llm.chat import FailureKind
from varl_jax.llm.retries import retry_after_s
from varl_jax.llm.transport import RawReply, TransportError
from varl_jax.llm.wire import BadReply, NoObject

_QUOTA: Final = frozenset(
  {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_balance",
    "credit_balance_too_low",
  }
)
_TOO_LONG: Final = (
  "context_length",
  "context length",
  "context size",
  "context_size",
  "maximum context",
  "maximum model length",
  "prompt is too long",
  "input is too long",
)
_POLICY: Final = (
  "content_filter",
  "content_policy",
  "content policy",
  "content management",
  "content exists risk",
  "data_inspection",
  "flagged",
  "invalid_prompt",
  "moderation",
  "usage policies",
  "usage policy",
)
# Refusals that may be a matter of one request alone.
OF_A_REQUEST: Final = frozenset({400, 403, 413, 422})
# Of a body that is plain text.
_MOST_TEXT: Final = 2000
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
    astray: whether it looks as if no such server were at the address, not as
      if it were down.
  """

  kind: FailureKind
  message: str
  retry: bool
  health: Health | None = None
  pauses: bool = False
  after_s: float | None = None
  code: int = 0
  param: str = ""
  astray: bool = False


def timed_out(seconds: float) -> Problem:
  """No whole reply in time."""
  message = f"no whole reply within {seconds:.3g} s"
  return Problem(kind="timeout", message=message, retry=True, health="ill")


def lost(error: TransportError) -> Problem:
  """The connection failed."""
  return Problem(
    kind="unavailable",
    message=str(error),
    retry=True,
    health="down",
    astray=error.astray,
  )


def malformed(error: BadReply) -> Problem:
  """A response of status 200 that is no reply."""
  return Problem(
    kind="malformed",
    message=str(error),
    retry=True,
    health="ill",
    astray=isinstance(error, NoObject),
  )


def refused(raw: RawReply, *, now: float) -> Problem:
  """A response of another status than success.

  Args:
    raw: the response.
    now: seconds since 1970.
  """
  return _problem(
    raw.status, _error(raw.body), after_s=retry_after_s(raw.headers, now=now)
  )


def error_inside(found: Mapping[str, Any]) -> Problem | None:
  """An error that came with status 200, as some gateways send it."""
  error = found if found.get("object") == "error" else found.get("error")
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
  if status in OF_A_REQUEST:
    if status == 413 or any(word in words for word in _TOO_LONG):
      kind = "length"
    elif any(word in words for word in _POLICY):
      kind = "refusal"
  mend = _MENDS.get(status, "check the endpoint's settings")
  if kind == "rejected":
    said = f"{said} ({mend})"
  return Problem(kind=kind, message=said, retry=False, code=status, param=param)


def _health(status: int) -> Health:
  return "down" if status in _NO_SERVER else "ill"


def _error(body: bytes) -> Any:
  """Where a body says what went wrong: a text, an object, or nothing."""
  try:
    found = json.loads(body)
  except (ValueError, RecursionError):
    text = body[:_MOST_TEXT].decode("utf-8", "replace").strip()
    return None if text.startswith("<") else text
  if isinstance(found, list):
    found = found[0] if found else None
  if not isinstance(found, dict):
    return found
  error = found.get("error")
  # Where `error` is but a title, the reason stands beside it.
  if isinstance(error, dict) and error:
    return error
  if isinstance(error, str) and not isinstance(found.get("message"), str):
    return error
  return found


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
  message = message or _detail(error.get("detail"))
  return message, frozenset({code, kind} - {""}), param


def _detail(detail: Any) -> str:
  """FastAPI's `detail`: a text, or a list of what is wrong where."""
  if isinstance(detail, str):
    return detail
  if not isinstance(detail, list):
    return ""
  found = []
  for item in detail:
    if isinstance(item, dict) and isinstance(item.get("msg"), str):
      place = item.get("loc")
      where = place if isinstance(place, list) else []
      found.append(": ".join([".".join(map(str, where)), item["msg"]]))
  return "; ".join(found)
