"""Bodies of the OpenAI protocol; needs pydantic, which the `server` extra has.

Fields that are not known are passed over, as that protocol's servers do.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

MOST_SAMPLES: Final = 64
MOST_STOPS: Final = 4

Positive = Annotated[int, Field(ge=1)]
StopText = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
  """A piece of a content; images are not read."""

  type: Literal["text"]
  text: str


class Turn(BaseModel):
  """A message."""

  role: Literal["system", "user", "assistant"]
  content: str | list[Part] | None = None


class Schema(BaseModel):
  """A named JSON schema."""

  name: str = "reply"
  strict: bool | None = None
  schema_: dict[str, Any] | None = Field(None, alias="schema")


class Form(BaseModel):
  """What a reply has to be."""

  type: Literal["text", "json_object", "json_schema"]
  json_schema: Schema | None = None


class StreamOptions(BaseModel):
  """What a stream holds besides its chunks."""

  include_usage: bool = False


class ChatBody(BaseModel):
  """POST /v1/chat/completions."""

  model: str
  messages: Annotated[list[Turn], Field(min_length=1)]
  temperature: Annotated[float, Field(ge=0, le=2)] | None = None
  max_tokens: Positive | None = None
  max_completion_tokens: Positive | None = None
  n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = None
  seed: int | None = None
  stop: (
    StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None
  ) = None
  stream: bool = False
  stream_options: StreamOptions | None = None
  logprobs: bool | None = None
  top_logprobs: int | None = None
  response_format: Form | None = None
  top_p: float | None = None
  frequency_penalty: float | None = None
  presence_penalty: float | None = None
  tools: list[Any] | None = None
  chat_template_kwargs: dict[str, Any] | None = None


class EmbeddingBody(BaseModel):
  """POST /v1/embeddings."""

  model: str
  input: str | list[str]


class Error(BaseModel):
  """What went wrong, in the protocol's form."""

  message: str
  type: str
  param: str | None
  code: str | None


class Problem(BaseModel):
  """The body of every status from 400 on."""

  error: Error
