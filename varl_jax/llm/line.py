"""One event loop's way to an endpoint: slot, gate, rates, request.

    slot    at most `concurrency` attempts are under way
    gate    waits while the server is down or asked for a pause (`breaker`)
    rates   requests and tokens a minute (`limits`)

Connections live in a task of their own, which the loop's end cancels: nobody
has to close them.
"""

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable

from varl_jax.config import EndpointConfig
from varl_jax.llm import failures
from varl_jax.llm.api_key import ApiKey
from varl_jax.llm.breaker import Gate
from varl_jax.llm.chat import ChatReply, ChatRequest
from varl_jax.llm.failures import Problem
from varl_jax.llm.limits import Bucket
from varl_jax.llm.retries import Backoff
from varl_jax.llm.transport import (
  RawReply,
  Transport,
  TransportError,
  TransportName,
  open_transport,
)
from varl_jax.llm.usage import Usage
from varl_jax.llm.wire import (
  Asked,
  BadReply,
  Choices,
  read_body,
  read_replies,
  states_usage,
)

_CHARS_A_TOKEN = 4
# Of a failure, in a notice.
_MOST_REASON = 200


@dataclasses.dataclass(eq=False, kw_only=True)
class Call:
  """A call in progress.

  Attributes:
    request: what is asked.
    samples: replies wanted from one request.
    failures: attempts that count against the endpoint's limit.
    spent_s: seconds in attempts and in pauses between them.
    waited_s: seconds at the gate.
  """

  request: ChatRequest
  samples: int = 1
  failures: int = 0
  spent_s: float = 0.0
  waited_s: float = 0.0


class Line:
  """See the module's docstring; belongs to the loop it is made in."""

  def __init__(
    self,
    endpoint: EndpointConfig,
    *,
    key: ApiKey,
    title: str,
    transport: TransportName,
    backoff: Backoff,
    rng: random.Random,
    usage: Usage,
    notify: Callable[[str], None],
  ):
    self._endpoint = endpoint
    self._key = key
    self._usage = usage
    self._backoff = backoff
    self._rng = rng
    self._slots = asyncio.Semaphore(endpoint.concurrency)
    self._requests = Bucket(endpoint.requests_per_minute, clock=time.monotonic)
    self._tokens = Bucket(endpoint.tokens_per_minute, clock=time.monotonic)
    self._gate = Gate(
      name=title,
      outage_s=endpoint.outage_s,
      backoff=backoff,
      rng=rng,
      notify=notify,
      clock=time.monotonic,
    )
    self._limited_in_a_row = 0
    self._transport: Transport | None = None
    self._opened: asyncio.Future[Transport] = (
      asyncio.get_running_loop().create_future()
    )
    self._keeper = asyncio.create_task(self._keep(transport, key))

  async def attempt(
    self, call: Call, ask: Callable[[], Asked]
  ) -> tuple[Asked, Choices | Problem]:
    """Sends a call once and takes note of what it says of the server.

    Raises:
      OutageError: the server is down for longer than calls wait.
    """
    async with self._slots:
      await self._enter(call)
      try:
        asked = ask()
        outcome = await self._send(call, asked)
      except BaseException:
        self._gate.left(call)
        raise
      self._take_note(call, outcome)
      return asked, outcome

  @property
  def shut(self) -> bool:
    """Whether calls wait for the server."""
    return self._gate.shut

  @property
  def away(self) -> bool:
    """Whether they do, and for long."""
    return self._gate.away

  async def _enter(self, call: Call) -> None:
    if not self._gate.shut:
      return
    patience = self._endpoint.outage_s - call.waited_s
    begun = time.monotonic()
    with self._usage.pausing(call.request.role):
      try:
        await self._gate.enter(call, patience_s=patience)
      finally:
        call.waited_s += time.monotonic() - begun

  async def _send(self, call: Call, asked: Asked) -> Choices | Problem:
    transport = self._transport or await asyncio.shield(self._opened)
    guess = self._token_guess(call)
    wait = max(self._requests.reserve(1), self._tokens.reserve(guess))
    used, sent = 0, False
    try:
      if wait > 0:
        await asyncio.sleep(wait)
      sent = True
      outcome = await self._request(call, asked, transport)
      if isinstance(outcome, list):
        used = sum(
          reply.prompt_tokens + reply.reply_tokens
          for reply in outcome
          if isinstance(reply, ChatReply)
        )
        used = used or guess
      return outcome
    finally:
      self._tokens.settle(used - guess)
      self._requests.settle(sent - 1)

  async def _request(
    self, call: Call, asked: Asked, transport: Transport
  ) -> Choices | Problem:
    self._usage.attempted(call.request.role)
    left = self._endpoint.deadline_s - call.spent_s
    limit = max(0.001, min(self._endpoint.timeout_s, left))
    begun = time.monotonic()
    try:
      async with asyncio.timeout(limit):
        raw = await transport.post(asked.body)
    except TimeoutError:
      return failures.timed_out(limit)
    except TransportError as error:
      return failures.lost(error)
    finally:
      call.spent_s += time.monotonic() - begun
    return self._interpret(call, asked, raw)

  def _interpret(
    self, call: Call, asked: Asked, raw: RawReply
  ) -> Choices | Problem:
    if not 200 <= raw.status < 300:
      return failures.refused(raw, now=time.time())
    try:
      found = read_body(raw.body)
      inside = failures.error_inside(found)
      if inside is not None:
        return inside
      choices = read_replies(found, asked, name=self._endpoint.model)
      choices = choices[: call.samples]
    except BadReply as error:
      return failures.malformed(error)
    bad = [choice for choice in choices if isinstance(choice, BadReply)]
    if len(bad) == len(choices):
      return failures.malformed(bad[0])
    if not states_usage(found):
      self._usage.lacked_usage(call.request.role)
    return choices

  def _take_note(self, call: Call, outcome: Choices | Problem) -> None:
    """Tells the gate, and counts the failure against the call if it counts."""
    if isinstance(outcome, list):
      self._limited_in_a_row = 0
      self._gate.succeeded()
      return
    counts = True
    if outcome.pauses:
      counts = False
      # Of a burst of refusals only the first lengthens the next pause.
      self._limited_in_a_row += not self._gate.shut
      seconds = outcome.after_s
      if seconds is None:
        longest = self._backoff.longest(max(1, self._limited_in_a_row))
        seconds = self._rng.uniform(longest / 2, longest)
      self._gate.pause(call, seconds, f"status {outcome.code}")
    elif outcome.health is not None:
      reason = self._key.quote(_reason(outcome), most=_MOST_REASON)
      self._gate.failed(call, outcome.health, reason, astray=outcome.astray)
      # Nobody is there: the call waits for the gate instead.
      counts = not (outcome.health == "down" and self._gate.shut)
    elif outcome.kind == "quota":
      self._gate.left(call)
    else:
      # A server that refuses a request is there.
      self._gate.succeeded()
    call.failures += counts

  def _token_guess(self, call: Call) -> int:
    if not self._endpoint.tokens_per_minute:
      return 0
    request = call.request
    read = sum(len(turn.content) for turn in request.messages)
    written = min(request.max_tokens, self._endpoint.max_tokens)
    return read // _CHARS_A_TOKEN + 1 + written * call.samples

  async def _keep(self, kind: TransportName, key: ApiKey) -> None:
    """Holds the connections until the loop's tasks are cancelled."""
    try:
      async with open_transport(kind, self._endpoint, key) as transport:
        self._transport = transport
        self._opened.set_result(transport)
        await asyncio.Event().wait()
    except Exception as error:
      if self._opened.done():
        raise
      self._opened.set_exception(error)
    finally:
      self._transport = None
      # Closed sockets leave the loop in its next two rounds.
      await asyncio.sleep(0)
      await asyncio.sleep(0)


def _reason(outcome: Problem) -> str:
  """Without the server's own words."""
  return f"status {outcome.code}" if outcome.code else outcome.message
