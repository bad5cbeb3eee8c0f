"""The trainer's side of a generation service in another process.

`HttpService` has the methods of a service in a thread. A lost connection is
tried again; the service neither repeats nor drops the work (`http_server`), so
a restart of the service in mid-call is no more than a pause. Only a service
that stays away for `patience_s` ends the run.
"""

import dataclasses
import os
import pathlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from varl_jax.service import evidence, wire
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.service.co_training import Groups, Rewards
from varl_jax.types import (
  GradedGroup,
  GroupRanking,
  Task,
  ToolCall,
  ToolResult,
  from_json,
)

# Seconds that one request waits for its job; a signal to stop is only taken
# note of after it.
WAIT_S: Final = 5.0
# Longest pause between two tries.
PAUSE_S: Final = 10.0
# Answers of a service that is on its way up or down, or of a proxy before it.
_PASSING: Final = (502, 503, 504)


class Unreachable(ServiceFailure):
  """No service, or none that answers this run, is at the address."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpService:
  """A service at an address.

  Attributes:
    url: such as http://127.0.0.1:8700.
    fingerprint: of the run's config, which the service's must equal.
    run_id: name of the run's folder.
    token: "" for a service without.
    token_env: where the token came from, for messages.
    notify: told what the service says while it works, and of pauses.
    patience_s: how long a service may stay away.
    clock: seconds that never go back.
    sleep: waits that many seconds.
  """

  url: str
  fingerprint: str
  run_id: str
  token: str = dataclasses.field(default="", repr=False)
  token_env: str = ""
  notify: Callable[[str], None] = lambda sentence: None
  patience_s: float = 900.0
  clock: Callable[[], float] = time.monotonic
  sleep: Callable[[float], None] = time.sleep
  _client: Any = dataclasses.field(init=False, repr=False)
  _asked: Callable[[], bool] = dataclasses.field(
    init=False, repr=False, default_factory=lambda: lambda: False
  )

  def __post_init__(self):
    """Opens connections as they are needed; none yet.

    Raises:
      ServiceFailure: the extra is missing, or the address is none.
    """
    try:
      import httpx
    except ImportError as error:
      raise Unreachable(
        "A service elsewhere needs the extra `server`:"
        " pip install -e '.[server]'."
      ) from error
    headers = {
      wire.FINGERPRINT_HEADER: self.fingerprint,
      wire.RUN_HEADER: self.run_id,
    }
    if self.token:
      headers["Authorization"] = f"Bearer {self.token}"
    try:
      client = httpx.Client(
        base_url=self.url,
        headers=headers,
        timeout=httpx.Timeout(60.0 + WAIT_S, connect=10.0),
        # A proxy of the environment knows no service of this machine.
        trust_env=httpx.URL(self.url).host not in wire.LOOPBACK,
      )
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
      raise Unreachable(
        f"service.url {self.url!r} or its token cannot be used ({error})."
      ) from error
    object.__setattr__(self, "_client", client)

  def check(self, *, patience_s: float = 30.0) -> dict[str, Any]:
    """Asks whether this run is welcome; returns the service's health.

    Raises:
      Unreachable: no service is there, or it is another config's, or the
        token is wrong.
    """
    return self._value(
      self._persist(lambda: self._client.get("/health"), patience_s)
    )

  def poll(self, step: int, count: int) -> list[Task]:
    """See `GenerationService.poll`."""
    return list(self._call(wire.Poll(step=step, count=count)))

  def prompts_for(self, step: int, learner: str) -> list[Task]:
    """See `GenerationService.prompts_for`."""
    return list(self._call(wire.PromptsFor(step=step, learner=learner)))

  def grade(
    self, step: int, groups: Groups, others: Mapping[str, Groups] | None = None
  ) -> list[GradedGroup]:
    """See `GenerationService.grade`."""
    beside = tuple(
      wire.LearnerAnswers(learner=name, groups=_answers(own))
      for name, own in (others or {}).items()
    )
    call = wire.Grade(step=step, groups=_answers(groups), others=beside)
    return list(self._call(call))

  def rewards_for(self, step: int, learner: str) -> Rewards:
    """See `GenerationService.rewards_for`."""
    return self._call(wire.RewardsFor(step=step, learner=learner))

  def run_tools(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """See `HostedService.run_tools`."""
    return list(self._call(wire.RunTools(calls=tuple(calls))))

  def report(
    self,
    step: int,
    groups: Sequence[GradedGroup],
    suspicion: Sequence[float | None] | None = None,
  ) -> dict[str, float]:
    """See `GenerationService.report`."""
    given = None if suspicion is None else tuple(suspicion)
    return self._call(
      wire.Report(step=step, groups=tuple(groups), suspicion=given)
    )

  def rankings(self, step: int) -> list[GroupRanking]:
    """See `GenerationService.rankings`."""
    return list(self._call(wire.Rankings(step=step)))

  def measures(self, step: int) -> dict[str, float]:
    """See `HostedService.measures`."""
    return self._call(wire.Measures(step=step))

  def event_number(self) -> int:
    """See `GenerationService.event_number`."""
    return self._value(self._ask("GET", "/event_number"))

  def rewind(self, seq: int) -> None:
    """See `GenerationService.rewind`; waits for work left behind before."""
    self._call(wire.Rewind(seq=seq))

  def cases(
    self, limit: int | None = None, *, repaired: bool = False
  ) -> list[evidence.CaseRecord]:
    """See `GenerationService.cases`."""
    found = self._ask("GET", "/cases", params=_given(limit, repaired=repaired))
    return list(from_json(tuple[evidence.CaseRecord, ...], self._value(found)))

  def history(self, limit: int | None = None) -> evidence.History:
    """See `GenerationService.history`."""
    found = self._ask("GET", "/history", params=_given(limit))
    return from_json(evidence.History, self._value(found))

  def export_evidence(self, path: str | os.PathLike[str]) -> int:
    """Writes all cases as JSON lines; returns how many."""
    target = pathlib.Path(path)
    partial = target.with_name(target.name + ".partial")

    def fetch() -> Any:
      with (
        self._client.stream("GET", "/evidence") as reply,
        open(partial, "wb") as file,
      ):
        if reply.status_code != 200:
          reply.read()
          return reply
        for piece in reply.iter_bytes():
          file.write(piece)
        return reply

    self._refuse_errors(self._persist(fetch))
    os.replace(partial, target)
    with open(target, "rb") as lines:
      return sum(1 for _ in lines)

  def give_up_when(self, asked: Callable[[], bool]) -> None:
    """See `HostedService.give_up_when`; also for an absent service."""
    object.__setattr__(self, "_asked", asked)

  def close(self) -> None:
    """Lets go of the connections; the service goes on."""
    self._client.close()

  def _call(self, call: Any) -> Any:
    """Submits a call and waits for it, through restarts of the service."""
    body, name, seen = wire.pack(call), uuid.uuid4().hex, 0
    pauses = _pauses()
    while True:
      submitted = self._value(
        self._ask(
          "POST",
          f"/jobs/{call.NAME}",
          content=body,
          headers={
            wire.CALL_HEADER: name,
            "Content-Type": "application/json",
          },
        )
      )
      while True:
        reply = self._ask(
          "GET",
          f"/jobs/{submitted['job']}",
          params={"wait": WAIT_S, "notices": seen},
        )
        if (_packed_error(reply) or {}).get("type") == "UnknownJob":
          self.sleep(next(pauses))
          break  # the service began anew and knows no job: submit it again
        state = self._value(reply)
        for number, sentence in state["notices"]:
          self.notify(sentence)
          seen = number
        if "error" in state:
          raise wire.unpack_error(state["error"])
        if state["done"]:
          return from_json(call.RESULT, state["value"])
        if self._asked() and self._value(self._ask("GET", "/health"))["away"]:
          raise Stopped("Stopped while waiting for a model's server.")

  def _ask(self, method: str, path: str, **parts: Any) -> Any:
    return self._persist(lambda: self._client.request(method, path, **parts))

  def _persist(
    self, send: Callable[[], Any], patience_s: float | None = None
  ) -> Any:
    """Sends until there is an answer.

    Raises:
      Unreachable: there was none within `patience_s`.
    """
    patience = self.patience_s if patience_s is None else patience_s
    import httpx

    begun, pauses, told = self.clock(), _pauses(), False
    while True:
      try:
        reply = send()
        if reply.status_code not in _PASSING:
          if told:
            self.notify(f"The generation service at {self.url} is back.")
          return reply
        why = f"it answers with status {reply.status_code}"
      except httpx.TransportError as error:
        why = str(error) or type(error).__name__
      if self.clock() - begun >= patience:
        raise Unreachable(
          f"The generation service at {self.url} cannot be reached ({why});"
          " start it with `python -m varl_jax.serve` or mend service.url."
        )
      if self._asked():
        raise Stopped("Stopped while waiting for the generation service.")
      if not told:
        self.notify(
          f"Waiting for the generation service at {self.url} ({why})."
        )
        told = True
      self.sleep(next(pauses))

  def _value(self, reply: Any) -> Any:
    """What a good answer holds."""
    self._refuse_errors(reply)
    try:
      return reply.json()
    except ValueError as error:
      raise Unreachable(
        f"What answers at {self.url} is no generation service; mend"
        " service.url."
      ) from error

  def _refuse_errors(self, reply: Any) -> None:
    """Raises what an answer says went wrong."""
    if reply.status_code in (200, 202):
      return
    packed = _packed_error(reply)
    if packed is None:
      raise Unreachable(
        f"What answers at {self.url} is no generation service (status"
        f" {reply.status_code}); mend service.url."
      )
    if packed["type"] == "Unauthorized":
      raise Unreachable(
        f"The generation service at {self.url} refuses this run's token; set"
        f" {self.token_env or 'the token'} to the service's."
      )
    if packed["type"] == "Mismatch":
      raise Unreachable(packed["message"])
    raise wire.unpack_error(packed)


def _answers(groups: Groups) -> tuple[wire.Answers, ...]:
  return tuple(wire.Answers.of(*group) for group in groups)


def _packed_error(reply: Any) -> dict[str, str] | None:
  """What a service says went wrong; None when it is none of ours."""
  try:
    error = reply.json()["error"]
    return {"type": error["type"], "message": error["message"]}
  except (ValueError, KeyError, TypeError):
    return None


def _given(limit: int | None, **others: Any) -> dict[str, Any]:
  return others if limit is None else {"limit": limit, **others}


def _pauses() -> Iterator[float]:
  """Growing pauses with full jitter, so that clients do not come at once."""
  longest = 0.25
  while True:
    yield random.uniform(longest / 2, longest)
    longest = min(2 * longest, PAUSE_S)
