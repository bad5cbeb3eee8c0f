"""A local model as a chat model: many conversations in one batch.

A thread draws for all requests under way at once; a request joins when there is
room and leaves when it has ended, whatever the others do. What is drawn depends
on prompt, seed and temperature alone (up to rounding), so a call that is made
again is answered alike.

A reply with a schema is held to it (`constrained`), and then the model does not
reason first. Its texts may be short: room for the reply is shared out among its
fields, so that it ends in time.
"""

import asyncio
import collections
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.usage import Usage
from varl_jax.models.errors import ModelError
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.turns import Turns
from varl_jax.sampling.constrained import (
  Constraint,
  ConstraintError,
  Grammars,
  whole_numbers,
)
from varl_jax.types import Message

_LOG = logging.getLogger(__name__)

# What a decoder of bytes shows of a character that has only begun.
BEGUN: Final = "\ufffd"


class Refused(Exception):
  """A request that is not answered.

  Attributes:
    status: that of HTTP.
    param: the field of the request that is to blame, None for none.
    code: a name for programs.
  """

  def __init__(
    self,
    message: str,
    *,
    status: int = 400,
    param: str | None = None,
    code: str | None = None,
  ):
    super().__init__(message)
    self.status = status
    self.param = param
    self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatAsk:
  """A request for replies to one conversation.

  Attributes:
    messages: the conversation.
    seeds: of the noise, one a reply wanted.
    limit: most tokens of each.
    temperature: 0 for the likeliest tokens.
    stops: texts that end a reply and are not part of it.
    structured: whether a reply is a JSON object.
    schema: of that object, None for any.
    reasoning: whether replies begin with it, None for the template's way.
  """

  messages: tuple[Message, ...]
  seeds: tuple[int, ...]
  limit: int
  temperature: float = 1.0
  stops: tuple[str, ...] = ()
  structured: bool = False
  schema: Mapping[str, Any] | None = None
  reasoning: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Word:
  """One token: its text and its log-probability in nats."""

  text: str
  logprob: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatPiece:
  """What a reply has grown by.

  Attributes:
    index: which of the n replies.
    text: the new text.
    tokens: the new tokens whose text it is.
    drawn: new tokens drawn, those without text (a stop token) included.
    prompt_tokens: tokens of the conversation.
    finish: `stop` or `length` on the last piece of a reply, else None.
  """

  index: int
  text: str
  tokens: tuple[Word, ...]
  drawn: int
  prompt_tokens: int
  finish: str | None


@dataclasses.dataclass(eq=False, kw_only=True)
class Job:
  """One reply that is being drawn; the decoder's unit.

  Attributes:
    prompt: token ids.
    limit: most tokens.
    temperature: 0 for the likeliest tokens, whose log-probabilities are then
      those at 1.
    seed: of its noise, 32 bits.
    constraint: what it is held to, None for nothing.
  """

  prompt: tuple[int, ...]
  limit: int
  temperature: float
  seed: int
  constraint: Constraint | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
  """Tokens that a job has grown by.

  Attributes:
    job: which.
    tokens: ids; a stop token is the last.
    logprobs: one a token, in nats.
    finish: `stop` or `length` when it has ended, else None.
  """

  job: Job
  tokens: Sequence[int]
  logprobs: Sequence[float]
  finish: str | None


class Decoder(Protocol):
  """Draws for many jobs at once. All calls come from one thread."""

  def add(self, jobs: Sequence[Job]) -> None:
    """Takes jobs of one prompt, which wait inside until there is room."""
    ...

  def drop(self, job: Job) -> None:
    """Ends a job early; nothing more is told of it."""
    ...

  def advance(self) -> list[Drawn]:
    """Draws some tokens of the jobs under way; [] without any."""
    ...


class LocalModel:
  """Answers conversations with a `Decoder`, in a thread of its own."""

  def __init__(
    self,
    *,
    decoder: Decoder,
    tokenizer: Tokenizer,
    name: str,
    max_prompt: int,
    max_new: int,
    grammars: Callable[[], Grammars],
    most_waiting: int = 4096,
    turns: Turns | None = None,
  ):
    """Starts the thread.

    Args:
      decoder: draws.
      tokenizer: of the model.
      name: of the model.
      max_prompt: longest conversation in tokens.
      max_new: longest reply in tokens.
      grammars: makes what holds replies to schemas, when first needed.
      most_waiting: replies under way or waiting, above which requests are
        refused.
      turns: shared with others who use the device.
    """
    self.name = name
    self.max_new = max_new
    self._decoder = decoder
    self._tokenizer = tokenizer
    self._max_prompt = max_prompt
    self._make_grammars = grammars
    self._grammars: Grammars | None = None
    self._making = threading.Lock()
    self._most = most_waiting
    self._turns = turns or Turns()
    self._inbox: collections.deque[Callable[[], None]] = collections.deque()
    self._wake = threading.Condition()
    self._tell: dict[Job, Callable[[Drawn | Exception], None]] = {}
    self._stopping = False
    self._failure: Exception | None = None
    self._thread = threading.Thread(
      target=self._serve, name=f"chat-{name}", daemon=True
    )
    self._thread.start()

  @property
  def running(self) -> int:
    """Replies that are being drawn or wait for room."""
    return len(self._tell)

  @property
  def waiting(self) -> int:
    """Requests that the thread has not looked at yet."""
    return len(self._inbox)

  def close(self) -> None:
    """Ends the thread; requests under way fail."""
    with self._wake:
      self._stopping = True
      self._wake.notify()
    self._thread.join()

  async def stream(self, ask: ChatAsk) -> AsyncIterator[ChatPiece]:
    """Pieces of the replies as they grow, mixed.

    Raises:
      Refused: before the first piece, the request cannot be answered; later,
        the model failed.
    """
    jobs, prompt = await asyncio.to_thread(self._jobs, ask)
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[tuple[int, Drawn | Exception]] = asyncio.Queue()
    writers = [
      _Writer(self._tokenizer, ask.stops, drops=self._tokenizer.stop_ids)
      for _ in jobs
    ]

    def told(index: int) -> Callable[[Drawn | Exception], None]:
      def tell(what: Drawn | Exception) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, (index, what))

      return tell

    self._post(jobs, [told(index) for index in range(len(jobs))])
    open_ones = set(range(len(jobs)))
    try:
      while open_ones:
        index, what = await inbox.get()
        if isinstance(what, Exception):
          raise Refused(f"The model failed: {what}.", status=500) from what
        if index not in open_ones:
          continue  # ended by a stop text before this came
        piece = writers[index].take(what)
        if piece.finish is not None:
          open_ones.discard(index)
          if what.finish is None:
            self._forget([jobs[index]])
        yield dataclasses.replace(piece, index=index, prompt_tokens=prompt)
    finally:
      self._forget([jobs[index] for index in open_ones])

  def _jobs(self, ask: ChatAsk) -> tuple[list[Job], int]:
    """The jobs of a request, and its prompt's length."""
    if ask.schema is not None or ask.structured:
      reasoning = False if self._can_reason() else None
    else:
      reasoning = ask.reasoning
    try:
      prompt = tuple(
        self._tokenizer.encode_chat(ask.messages, reasoning=reasoning)
      )
    except ModelError as error:
      raise Refused(str(error), param="messages") from error
    if len(prompt) > self._max_prompt:
      raise Refused(
        f"The conversation has {len(prompt)} tokens; {self._max_prompt} is the"
        " most. Shorten it, or serve the model with a larger --max_prompt.",
        param="messages",
        code="context_length_exceeded",
      )
    if not 1 <= ask.limit <= self.max_new:
      raise Refused(
        f"A reply has 1 to {self.max_new} tokens, {ask.limit} were asked for.",
        param="max_completion_tokens",
      )
    return [
      Job(
        prompt=prompt,
        limit=ask.limit,
        temperature=ask.temperature,
        seed=seed & 0xFFFFFFFF,
        constraint=self._constraint(ask),
      )
      for seed in ask.seeds
    ], len(prompt)

  def _can_reason(self) -> bool:
    return "enable_thinking" in str(self._tokenizer.backend.chat_template)

  def _constraint(self, ask: ChatAsk) -> Constraint | None:
    if not ask.structured:
      return None
    with self._making:
      try:
        self._grammars = self._grammars or self._make_grammars()
        # A token is left for the one that stops.
        return self._grammars.start(ask.schema, room=ask.limit - 1)
      except ModuleNotFoundError as error:
        raise Refused(str(error), status=500) from error
      except ConstraintError as error:
        raise Refused(str(error), param="response_format") from error

  def _post(
    self,
    jobs: Sequence[Job],
    tellers: Iterable[Callable[[Drawn | Exception], None]],
  ) -> None:
    with self._wake:
      if self._stopping or self._failure is not None:
        raise Refused(
          f"The model is no longer served ({self._failure or 'it stops'}).",
          status=503,
        )
      if len(self._tell) + len(jobs) > self._most:
        raise Refused(
          f"{len(self._tell)} replies are under way or waiting; try again"
          " later.",
          status=503,
          code="overloaded",
        )
      self._tell |= dict(zip(jobs, tellers, strict=True))
      self._inbox.append(lambda: self._decoder.add(jobs))
      self._wake.notify()

  def _forget(self, jobs: Sequence[Job]) -> None:
    with self._wake:
      for job in jobs:
        if self._tell.pop(job, None) is not None:
          self._inbox.append(lambda job=job: self._decoder.drop(job))
      self._wake.notify()

  def _serve(self) -> None:
    try:
      while True:
        with self._wake:
          self._wake.wait_for(
            lambda: self._inbox or self._tell or self._stopping
          )
          if self._stopping:
            raise RuntimeError("it was closed")
          orders = list(self._inbox)
          self._inbox.clear()
        with self._turns:
          for order in orders:
            order()
          drawn = self._decoder.advance()
        self._hand_out(drawn)
    # Whatever it is, those who wait have to hear of it.
    except Exception as error:  # noqa: BLE001
      with self._wake:
        self._failure = error
        tellers = list(self._tell.values())
        self._tell.clear()
      if not self._stopping:
        _LOG.exception("The local model %s failed.", self.name)
      for tell in tellers:
        _safely(tell, error)

  def _hand_out(self, drawn: Iterable[Drawn]) -> None:
    for what in drawn:
      with self._wake:
        if what.finish is None:
          tell = self._tell.get(what.job)
        else:
          tell = self._tell.pop(what.job, None)
      if tell is not None:
        _safely(tell, what)


def _safely(
  tell: Callable[[Drawn | Exception], None], what: Drawn | Exception
) -> None:
  try:
    tell(what)
  except RuntimeError:
    # The event loop of the one who asked is closed: nobody waits for this.
    _LOG.debug("A reply came when its loop had closed.")


class _Writer:
  """Text of one reply from its tokens, piece by piece."""

  def __init__(
    self, tokenizer: Tokenizer, stops: Sequence[str], *, drops: frozenset[int]
  ):
    self._tokenizer = tokenizer
    self._stops = stops
    self._drops = drops
    self._ids: list[int] = []
    # Text of ids before `_read` is out; decoding goes back to `_from`, since
    # how a token is written may depend on the one before.
    self._from = self._read = 0
    self._held = ""
    self._words: list[Word] = []

  def take(self, drawn: Drawn) -> ChatPiece:
    """What new tokens add; `index` and `prompt_tokens` are not known here."""
    text, finish, words = "", drawn.finish, []
    for token, logprob in zip(drawn.tokens, drawn.logprobs, strict=True):
      if token in self._drops:
        continue
      self._ids.append(token)
      new = self._grown()
      self._words.append(
        Word(text=self._tokenizer.decode([token]), logprob=float(logprob))
      )
      self._held += new
      cut = self._stop_at()
      if cut is not None:
        text += self._held[:cut]
        words += self._words
        self._held, self._words = "", []
        return self._piece(text, words, drawn, "stop")
      ready = len(self._held) - self._maybe_stop()
      text, self._held = text + self._held[:ready], self._held[ready:]
      if not self._held:
        words += self._words
        self._words = []
    if finish is not None:
      text += self._held + self._grown(last=True)
      words += self._words
      self._held, self._words = "", []
    return self._piece(text, words, drawn, finish)

  @staticmethod
  def _piece(
    text: str, words: Sequence[Word], drawn: Drawn, finish: str | None
  ) -> ChatPiece:
    return ChatPiece(
      index=0,
      text=text,
      tokens=tuple(words),
      drawn=len(drawn.tokens),
      prompt_tokens=0,
      finish=finish,
    )

  def _grown(self, *, last: bool = False) -> str:
    """Text that has become certain; a character that has begun is not."""
    before = self._tokenizer.decode(self._ids[self._from : self._read])
    now = self._tokenizer.decode(self._ids[self._from :])
    if now.endswith(BEGUN) and not last:
      return ""
    self._from, self._read = self._read, len(self._ids)
    return now[len(before) :]

  def _stop_at(self) -> int | None:
    places = [self._held.find(stop) for stop in self._stops]
    found = [place for place in places if place >= 0]
    return min(found) if found else None

  def _maybe_stop(self) -> int:
    """Letters at the end of what is held that may begin a stop text."""
    most = max((len(stop) - 1 for stop in self._stops), default=0)
    for size in range(min(most, len(self._held)), 0, -1):
      tail = self._held[-size:]
      if any(stop.startswith(tail) for stop in self._stops):
        return size
    return 0


class LocalChat:
  """A `ChatModel` over a `LocalModel`, for the roles."""

  def __init__(self, model: LocalModel, *, hold_schema: bool = True):
    """Wraps a model.

    Args:
      model: answers.
      hold_schema: hold replies to the schema of a request.
    """
    self._model = model
    self._hold = hold_schema
    self._usage = Usage(clock=time.monotonic)

  @property
  def name(self) -> str:
    """The model's name."""
    return self._model.name

  def usage(self) -> dict[str, dict[str, float]]:
    """Counts of calls by role."""
    return self._usage.numbers()

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Answers, or raises `ChatError`."""
    found = await self.complete_samples([request])
    if isinstance(found[0], ChatError):
      raise found[0]
    return found[0]

  async def complete_samples(
    self, requests: Sequence[ChatRequest]
  ) -> list[ChatReply | ChatError]:
    """See `SamplingChatModel`; the conversation is read once."""
    first = requests[0]
    for request in requests:
      if (
        dataclasses.replace(request, operation=first.operation, seed=first.seed)
        != first
      ):
        raise ValueError("The requests differ in more than operation and seed.")
    self._usage.called(first.role, calls=len(requests))
    try:
      replies = await self._answer(first, [r.seed for r in requests])
    except ChatError as error:
      self._usage.failed(first.role, error.kind, calls=len(requests))
      return [error] * len(requests)
    self._usage.replied(first.role, replies)
    return list(replies)

  async def _answer(
    self, request: ChatRequest, seeds: Sequence[int]
  ) -> list[ChatReply]:
    if request.images:
      raise ChatError("rejected", f"{self.name} takes no images.")
    structured = self._hold and request.schema is not None
    ask = ChatAsk(
      messages=request.messages,
      seeds=tuple(seeds),
      limit=min(request.max_tokens, self._model.max_new),
      temperature=request.temperature,
      structured=structured,
      schema=whole_numbers(request.schema) if structured else None,
    )
    parts: list[list[ChatPiece]] = [[] for _ in seeds]
    try:
      async for piece in self._model.stream(ask):
        parts[piece.index].append(piece)
    except Refused as error:
      kind = "rejected"
      if error.code == "context_length_exceeded":
        kind = "length"
      elif error.status >= 500:
        kind = "unavailable"
      raise ChatError(kind, str(error)) from error
    return [
      ChatReply(
        text="".join(piece.text for piece in pieces),
        finish=pieces[-1].finish or "length",
        model=self.name,
        prompt_tokens=pieces[-1].prompt_tokens,
        reply_tokens=sum(piece.drawn for piece in pieces),
        mode="json_schema" if structured else "text",
      )
      for pieces in parts
    ]
