"""The one interface to every frozen language model, real or scripted."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from varl_jax.types import Message

FailureKind = Literal[
  "timeout",
  "refusal",
  "length",
  "malformed",
  "unavailable",
  "quota",
]


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
  """

  role: str
  messages: tuple[Message, ...]
  operation: str
  seed: int
  schema: Mapping[str, Any] | None = None
  temperature: float = 1.0
  max_tokens: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatReply:
  """The reply's text, why it ended (`stop`, `length`, `refusal`), its model."""

  text: str
  finish: str
  model: str
  prompt_tokens: int = 0
  reply_tokens: int = 0


class ChatError(Exception):
  """A call that gave no usable reply, with a typed `kind`."""

  def __init__(self, kind: FailureKind, message: str):
    super().__init__(message)
    self.kind = kind


class ChatModel(Protocol):
  """Anything that answers a `ChatRequest`; `name` stands on every verdict."""

  @property
  def name(self) -> str:
    """The model's name; never empty."""
    ...

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Answers, or raises `ChatError`."""
    ...
