"""A process that runs verifiers: `python -m ... MODULE:NAME SECONDS`.

It talks JSON lines over the socket that is its standard input. The first line
out is `{"ready": true}` or `{"problem": "..."}`; then each line in, of the form
`{"answer": text, "checks": [text, ...]}`, is answered by one line a check, as
soon as the check is done: `{"met": bool}`, `{"malformed": "..."}` for a check
that cannot be run, or `{"broken": "..."}` for one that failed.

The parent kills a worker whose check takes too long. In case the parent is gone
by then, the worker has an alarm of its own, which the kernel delivers even
while a regular expression holds the interpreter.
"""

import importlib
import json
import signal
import socket
import sys
from typing import Any, Final

from varl_jax.rubrics.checks import CheckError, CheckRegistry

# The alarm leaves the parent this much longer than a check may take.
ALARM_FACTOR: Final = 2.0
ALARM_EXTRA_S: Final = 1.0


def import_registry(name: str) -> CheckRegistry:
  """The registry called `module:NAME`.

  Raises:
    CheckError: there is no such registry.
  """
  module, _, attribute = name.partition(":")
  try:
    found = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise CheckError(
      f"The verifiers {name!r} cannot be imported ({error}); name them as"
      " module:NAME."
    ) from error
  if not isinstance(found, CheckRegistry):
    raise CheckError(f"{name!r} is a {type(found).__name__}, no CheckRegistry.")
  return found


def run_check(registry: CheckRegistry, check: str, answer: str) -> dict:
  """One reply line; whatever a check raises is told, not passed on."""
  try:
    return {"met": registry.run(check, answer)}
  except CheckError as error:
    return {"malformed": str(error)}
  except Exception as error:  # noqa: BLE001 - the parent has to hear of it
    return {"broken": f"{type(error).__name__}: {error}"[:500]}


def serve(
  link: socket.socket, registry: CheckRegistry, *, timeout_s: float
) -> None:
  """Answers until the other end is closed."""
  limit = ALARM_FACTOR * timeout_s + ALARM_EXTRA_S
  with link.makefile("rb") as lines:
    for line in lines:
      order = json.loads(line)
      for check in order["checks"]:
        signal.setitimer(signal.ITIMER_REAL, limit)
        reply = run_check(registry, check, order["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(link, reply)


def _send(link: socket.socket, value: dict[str, Any]) -> None:
  link.sendall(json.dumps(value).encode() + b"\n")


def main(name: str, seconds: str) -> None:
  """Runs the process."""
  # Ctrl-C is for the parent, which then closes the link.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  with socket.socket(fileno=0) as link:
    try:
      registry = import_registry(name)
    except CheckError as error:
      _send(link, {"problem": str(error)})
      return
    _send(link, {"ready": True})
    try:
      serve(link, registry, timeout_s=float(seconds))
    except OSError:
      return  # the parent closed the link while it was being answered


if __name__ == "__main__":
  main(*sys.argv[1:])
