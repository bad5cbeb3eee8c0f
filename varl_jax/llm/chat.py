"""The one interface to every frozen language model, real or scripted."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, runtime_checkable

from varl_jax.types import Message

FailureKind = Literal[
  "timeout",
  "refusal",
  "length",
  "malformed",
  "unavailable",
  "quota",
  "rejected",
]
# No retry mends these, and every later call would fail the same way.
FATAL: Final = frozenset({"quota", "rejected"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatRequest:
  """One call.

  Attributes:
    role: which role calls, for limits, cost and logs (never for content).
    messages: the conversation.
    operation: unique name of this call within a run; a restart that asks for
      the same thing asks under the same name.
    seed: sampling seed, derived from the run seed and `operation`.
    schema: JSON schema of the reply, None for plain text.
    temperature: sampling temperature.
    max_tokens: limit of the reply.
    images: data URLs that belong to the last message.
  """

  role: str
  messages: tuple[Message, ...]
  operation: str
  seed: int
  schema: Mapping[str, Any] | None = None
  temperature: float = 1.0
  max_tokens: int = 4096
  images: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatReply:
  """One reply.

  Attributes:
    text: what the model wrote.
    finish: why it ended, `stop`, `length` or `refusal`.
    model: the model's name.
    prompt_tokens: tokens read.
    reply_tokens: tokens written, reasoning included.
    mode: how the form was really asked for, `json_schema`, `json_object` or
      `text`.
    cost: US dollars, 0 where no price is known.
  """

  text: str
  finish: str
  model: str
  prompt_tokens: int = 0
  reply_tokens: int = 0
  mode: str = "text"
  cost: float = 0.0


class ChatError(Exception):
  """A call that gave no usable reply, with a typed `kind`.

  Kinds: `timeout`, `unavailable` (server down or overloaded), `refusal`,
  `length`, `malformed`, `quota` (nothing left to spend), `rejected` (the server
  knows neither key, model nor request: 400, 401, 403, 404).
  """

  def __init__(self, kind: FailureKind, message: str):
    super().__init__(message)
    self.kind: FailureKind = kind

  @property
  def fatal(self) -> bool:
    """Whether no retry and no other call can succeed."""
    return self.kind in FATAL


@runtime_checkable
class ChatModel(Protocol):
  """Anything that answers a `ChatRequest`; `name` stands on every verdict."""

  @property
  def name(self) -> str:
    """The model's name; never empty."""
    ...

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Answers, or raises `ChatError`."""
    ...


@runtime_checkable
class SamplingChatModel(ChatModel, Protocol):
  """A model that may answer several samples of one prompt in one request."""

  async def complete_samples(
    self, requests: Sequence[ChatRequest]
  ) -> list[ChatReply | ChatError]:
    """Answers requests that differ only in operation and seed.

    Returns:
      One reply or failure a request, in order.

    Raises:
      ValueError: the requests differ in more than operation and seed.
    """
    ...
