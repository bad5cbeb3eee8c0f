"""Verifiers in processes of their own, with a deadline each.

A check is code that reads untrusted text, and may hang in a regular expression
or die. Each worker is a fresh interpreter that loads the registry and nothing
else: no fork of a process that runs jax, and no second import of its main
module, as the `spawn` method of multiprocessing would do.

A rubric's checks travel together, one round trip an answer. A check past its
deadline costs its worker and its own verdict; the checks after it go to the
replacement. What was not decided says why: `timeout`, `unavailable` (the check
or its worker broke), `malformed` (the check cannot be run).
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from varl_jax.rubrics.check_worker import import_registry
from varl_jax.rubrics.checks import CheckError

# Loading Python and a registry on a busy machine.
START_S: Final = 60.0
WORKER: Final = "varl_jax.rubrics.check_worker"
_CLOSED: Final = "The pool of verifiers is closed."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
  """What a check found.

  Attributes:
    met: the verdict, None when there is none.
    failure: why there is none, a kind of failure; "" when there is one.
    reason: the failure in words.
  """

  met: bool | None
  failure: str = ""
  reason: str = ""


def _undecided(failure: str, reason: str) -> CheckResult:
  return CheckResult(met=None, failure=failure, reason=reason)


class _Lost(Exception):
  """A worker is gone or late; `kind` says which."""

  def __init__(self, kind: str, reason: str):
    super().__init__(reason)
    self.kind = kind


class _Worker:
  """One process and the socket to it; started at once, ready later."""

  def __init__(self, registry: str, timeout_s: float):
    self._link, theirs = socket.socketpair()
    self._rest = b""
    self._ready = False
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, "-m", WORKER, registry, repr(timeout_s)],
        stdin=theirs.fileno(),
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
      )

  def wait_ready(self) -> None:
    """Raises `_Lost` when the process does not get ready."""
    if not self._ready:
      first = self._read(time.monotonic() + START_S)
      if "problem" in first:
        raise _Lost("unavailable", first["problem"])
      self._ready = True

  def order(self, answer: str, checks: Sequence[str], seconds: float) -> None:
    """Sends work."""
    line = json.dumps({"answer": answer, "checks": list(checks)}) + "\n"
    try:
      self._link.settimeout(seconds)
      self._link.sendall(line.encode())
    except TimeoutError as error:
      raise _Lost("timeout", "A verifier's process reads nothing.") from error
    except OSError as error:
      raise _Lost("unavailable", f"A verifier broke: {error}.") from error

  def result(self, seconds: float) -> CheckResult:
    """The next check's result."""
    reply = self._read(time.monotonic() + seconds)
    if "met" in reply:
      return CheckResult(met=reply["met"])
    if "malformed" in reply:
      return _undecided("malformed", reply["malformed"])
    return _undecided("unavailable", reply["broken"])

  def _read(self, deadline: float) -> dict[str, Any]:
    while b"\n" not in self._rest:
      try:
        self._link.settimeout(max(1e-3, deadline - time.monotonic()))
        data = self._link.recv(1 << 16)
      except TimeoutError as error:
        raise _Lost("timeout", "A verifier took too long.") from error
      except OSError as error:
        raise _Lost("unavailable", f"A verifier broke: {error}.") from error
      if not data:
        raise _Lost("unavailable", "A verifier's process ended.")
      self._rest += data
    line, _, self._rest = self._rest.partition(b"\n")
    return json.loads(line)

  def kill(self) -> None:
    """Ends the process and waits for its end."""
    self._link.close()
    self._process.kill()
    self._process.wait()


class CheckPool:
  """Runs checks in worker processes; safe to use from any event loop."""

  def __init__(self, registry: str, *, workers: int, timeout_s: float):
    """Starts the workers, without waiting for them.

    Args:
      registry: importable name of the registry, `module:NAME`.
      workers: processes, at least 1.
      timeout_s: most seconds a check may take.

    Raises:
      CheckError: the registry cannot be imported.
      ValueError: no workers, or no time.
    """
    if workers < 1 or not timeout_s > 0:
      raise ValueError(f"{workers} workers with {timeout_s} s cannot check.")
    import_registry(registry)
    self._registry, self._timeout_s = registry, timeout_s
    self._threads = concurrent.futures.ThreadPoolExecutor(
      workers, thread_name_prefix="verifier"
    )
    self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    self._closed = False
    self.replaced = 0
    for _ in range(workers):
      self._idle.put(self._start())

  async def run(
    self, answer: str, checks: Sequence[str]
  ) -> tuple[CheckResult, ...]:
    """Runs a rubric's checks on one answer.

    Raises:
      CheckError: the pool is closed.
    """
    if self._closed:
      raise CheckError(_CLOSED)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(
      self._threads, self._run, answer, tuple(checks)
    )

  def close(self) -> None:
    """Finishes what runs, drops what waits, ends the workers; may be repeated.

    It takes at most the deadlines of the checks in progress.
    """
    self._closed = True
    self._threads.shutdown(cancel_futures=True)
    while not self._idle.empty():
      self._idle.get().kill()

  def _start(self) -> _Worker:
    return _Worker(self._registry, self._timeout_s)

  def _run(
    self, answer: str, checks: tuple[str, ...]
  ) -> tuple[CheckResult, ...]:
    """In one of the threads, of which there are as many as workers."""
    worker = self._idle.get()
    results: list[CheckResult] = []
    try:
      while len(results) < len(checks) and not self._closed:
        try:
          self._run_rest(worker, answer, checks, results)
        except _Lost as lost:
          results.append(_undecided(lost.kind, str(lost)))
          worker.kill()
          worker = self._start()
          self.replaced += 1
    finally:
      self._idle.put(worker)
    missing = len(checks) - len(results)
    return (*results, *[_undecided("unavailable", _CLOSED)] * missing)

  def _run_rest(
    self,
    worker: _Worker,
    answer: str,
    checks: tuple[str, ...],
    results: list[CheckResult],
  ) -> None:
    worker.wait_ready()
    rest = checks[len(results) :]
    worker.order(answer, rest, self._timeout_s)
    for _ in rest:
      results.append(worker.result(self._timeout_s))
