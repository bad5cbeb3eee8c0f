"""Chat models behind OpenAI-compatible servers.

A call goes attempt by attempt through a `Line`; this module decides whether
another one follows.

`deadline_s` bounds the attempts of a call and the pauses between them. Waiting
for a slot, a rate or the gate is not counted in it: an outage has its own
limit, `outage_s`. An attempt that the server itself put off (status 429, or a
Retry-After), or that only found out that it is still down, does not count
against `attempts`.

`ChatRequest.max_tokens` is what a role's text may take; a server also counts
the reasoning before it, so what is sent is the endpoint's `max_tokens`.
"""

import asyncio
import dataclasses
import importlib.util
import logging
import random
import time
import urllib.parse
import weakref
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from varl_jax.config import ConfigError, EndpointConfig
from varl_jax.llm.api_key import ApiKey
from varl_jax.llm.breaker import OutageError
from varl_jax.llm.chat import (
  ChatError,
  ChatReply,
  ChatRequest,
  SamplingChatModel,
)
from varl_jax.llm.failures import Problem
from varl_jax.llm.journal import Journal, JournaledChat
from varl_jax.llm.line import Call, Line
from varl_jax.llm.rejections import Rejections
from varl_jax.llm.retries import Backoff
from varl_jax.llm.transport import TransportName, base_url
from varl_jax.llm.usage import Usage
from varl_jax.llm.wire import Asked, BadReply, Choices, Dialect

_LOG: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff()
# Of a server's own words, in a message.
_MOST_SAID: Final = 400


class EndpointModel(SamplingChatModel, Protocol):
  """A model behind an endpoint."""

  def usage(self) -> dict[str, dict[str, float]]:
    """Counts by role; see `Usage.numbers`."""
    ...


def make_chat(
  endpoint: EndpointConfig,
  *,
  journal: Journal | None = None,
  run_seed: int = 0,
  notify: Callable[[str], None] = _LOG.warning,
  transport: TransportName = "aiohttp",
  backoff: Backoff = _BACKOFF,
) -> EndpointModel:
  """Builds the model of an endpoint.

  Connections are opened by the first call and closed when the event loop's
  tasks are cancelled, as `asyncio.run` does at its end.

  Args:
    endpoint: the server and how it may be used.
    journal: answers finished calls of an earlier start.
    run_seed: for the jitter of pauses; replies do not depend on it.
    notify: is told in a sentence when the server goes down and comes back.
    transport: `aiohttp`, or `sdk` for the openai package.
    backoff: pauses between attempts.

  Raises:
    ConfigError: no model is named, the key is missing, base_url is no address,
      or a package is not installed.
  """
  chat = EndpointChat(
    endpoint,
    run_seed=run_seed,
    notify=notify,
    transport=transport,
    backoff=backoff,
    earlier=journal.has_role if journal is not None else lambda role: False,
  )
  if journal is None:
    return chat
  return JournaledChat(chat, journal, settings=chat.settings())


class EndpointChat:
  """One endpoint; see the module's docstring."""

  def __init__(
    self,
    endpoint: EndpointConfig,
    *,
    run_seed: int,
    notify: Callable[[str], None],
    transport: TransportName,
    backoff: Backoff,
    earlier: Callable[[str], bool],
  ):
    if not endpoint.model:
      raise ConfigError("The endpoint's model is empty; name a model.")
    package = "openai" if transport == "sdk" else "aiohttp"
    if importlib.util.find_spec(package) is None:
      raise ConfigError(
        f"Endpoints need the package {package}. Install the extra: pip install"
        " -c constraints.txt -e '.[openai]'."
      )
    address = urllib.parse.urlsplit(base_url(endpoint))
    self._title = f"{endpoint.model} at {address.netloc}"
    self._endpoint = endpoint
    self._key = ApiKey(endpoint.api_key_env)
    self._rng = random.Random(f"backoff-{run_seed}-{self._title}")
    self._notify = notify
    self._transport: TransportName = transport
    self._backoff = backoff
    self._dialect = Dialect(endpoint)
    self._rejections = Rejections(earlier=earlier)
    self._usage = Usage(clock=time.monotonic)
    self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = (
      weakref.WeakKeyDictionary()
    )

  @property
  def name(self) -> str:
    """The model's name."""
    return self._endpoint.model

  def usage(self) -> dict[str, dict[str, float]]:
    """Counts by role; see `Usage.numbers`."""
    return self._usage.numbers()

  @property
  def away(self) -> bool:
    """Whether calls wait for a server that is down; for any thread."""
    return any(line.away for line in list(self._lines.values()))

  def settings(self) -> dict[str, object]:
    """What decides a reply beside the request itself."""
    return self._dialect.settings()

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Answers, or raises `ChatError`."""
    self._usage.called(request.role)
    choice = (await self._call(request))[0]
    assert isinstance(choice, ChatReply)
    return choice

  async def complete_samples(
    self, requests: Sequence[ChatRequest]
  ) -> list[ChatReply | ChatError]:
    """Answers requests that differ only in operation and seed.

    The first one's seed is sent. Samples that the server leaves out, or spoils,
    are asked for one by one.
    """
    if not requests:
      return []
    first = requests[0]
    for other in requests[1:]:
      same = dataclasses.replace(
        other, operation=first.operation, seed=first.seed
      )
      if same != first:
        raise ValueError("Samples differ in operation and seed alone.")
    count = len(requests)
    choices: Choices = []
    if count > 1 and self._dialect.samples:
      self._usage.called(first.role, calls=count)
      try:
        choices = await self._call(first, samples=count)
      except ChatError as error:
        return [error] * count
      good = sum(isinstance(choice, ChatReply) for choice in choices)
      self._usage.called(first.role, calls=good - count)
    choices += [BadReply("not drawn")] * (count - len(choices))
    return list(
      await asyncio.gather(
        *(
          self._settle(request, choice)
          for request, choice in zip(requests, choices, strict=True)
        )
      )
    )

  async def _settle(
    self, request: ChatRequest, choice: ChatReply | BadReply
  ) -> ChatReply | ChatError:
    if isinstance(choice, ChatReply):
      return choice
    try:
      return await self.complete(request)
    except ChatError as error:
      return error

  async def _call(self, request: ChatRequest, *, samples: int = 1) -> Choices:
    """Attempts until there are replies.

    Returns:
      For one sample, one good reply; for several, at least one, or nothing when
      the server draws one at a time.

    Raises:
      ChatError: no attempt is left, or none can succeed.
    """
    line = self._line()
    call = Call(request=request, samples=samples)
    while True:
      try:
        asked, outcome = await line.attempt(
          call, lambda: self._dialect.ask(request, samples=samples)
        )
      except OutageError as error:
        outage = str(error)
        break
      if not isinstance(outcome, Problem):
        self._dialect.accepted(asked)
        self._rejections.answered(request)
        return self._priced(request, outcome)
      if self._gives_way(asked, outcome):
        if samples > 1 and not self._dialect.samples:
          return []
        continue
      if await self._rejections.one_call_alone(
        request, outcome, still_refused=self._still_refused
      ):
        outcome = dataclasses.replace(outcome, kind="refusal")
      if not await self._pause(line, call, outcome):
        raise self._failed(call, outcome)
    problem = Problem(kind="unavailable", message=outage, retry=False)
    raise self._failed(call, problem)

  async def _pause(self, line: Line, call: Call, problem: Problem) -> bool:
    """Waits before another attempt; False when there is none."""
    if not problem.retry or call.failures >= self._endpoint.attempts:
      return False
    # Of a server that is down or rests, the gate knows when to go on.
    pause = 0.0
    if not line.shut:
      pause = self._backoff.delay(max(1, call.failures), self._rng)
    call.spent_s += pause
    if call.spent_s >= self._endpoint.deadline_s:
      return False
    self._usage.retried(call.request.role, problem.kind)
    await asyncio.sleep(pause)
    return True

  def _gives_way(self, asked: Asked, problem: Problem) -> bool:
    # What is known to be about the content may name parameters in passing.
    return (
      problem.kind == "rejected"
      and problem.code in (400, 422)
      and self._dialect.gives_way(asked, problem.message, problem.param)
    )

  async def _still_refused(self, request: ChatRequest) -> bool:
    """Whether a request that was answered before is refused by now."""
    self._usage.called(request.role)
    try:
      _, outcome = await self._line().attempt(
        Call(request=request), lambda: self._dialect.ask(request)
      )
    except OutageError:
      return False
    if not isinstance(outcome, Problem):
      self._priced(request, outcome)
      return False
    self._usage.failed(request.role, outcome.kind)
    return outcome.kind == "rejected"

  def _failed(self, call: Call, problem: Problem) -> ChatError:
    request = call.request
    self._usage.failed(request.role, problem.kind, calls=call.samples)
    tries = f" after {call.failures} attempts" if call.failures > 1 else ""
    said = self._key.quote(problem.message, most=_MOST_SAID).rstrip(". ")
    if problem.astray:
      said = f"{said} (check base_url)"
    message = f"The {request.role} had no reply from {self._title}{tries}"
    return ChatError(problem.kind, f"{message}: {said}.")

  def _priced(self, request: ChatRequest, choices: Choices) -> Choices:
    """Replies with their cost, and without the key should one hold it."""
    endpoint = self._endpoint
    done: Choices = []
    for choice in choices:
      if isinstance(choice, ChatReply):
        cost = (
          choice.prompt_tokens * endpoint.price_in
          + choice.reply_tokens * endpoint.price_out
        ) / 1e6
        text = self._key.hide(choice.text)
        model = self._key.hide(choice.model)
        if cost or (text, model) != (choice.text, choice.model):
          choice = dataclasses.replace(
            choice, cost=cost, text=text, model=model
          )
      done.append(choice)
    self._usage.replied(
      request.role, [reply for reply in done if isinstance(reply, ChatReply)]
    )
    return done

  def _line(self) -> Line:
    loop = asyncio.get_running_loop()
    line = self._lines.get(loop)
    if line is None:
      line = self._lines[loop] = Line(
        self._endpoint,
        key=self._key,
        title=self._title,
        transport=self._transport,
        backoff=self._backoff,
        rng=self._rng,
        usage=self._usage,
        notify=self._notify,
      )
    return line
