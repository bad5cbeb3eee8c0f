"""The OpenAI protocol over local models: chat, models, embeddings.

| request | answer |
|---|---|
| POST /v1/chat/completions | a completion, or its chunks as events |
| POST /v1/embeddings | vectors, where an encoder is served |
| GET /v1/models, /v1/models/ID | what is served |
| GET /health | requests under way and waiting |

Errors have the protocol's form, `{"error": {"message", "type", "param",
"code"}}`: 400 a request that cannot be answered, 401 token, 404 no such model,
503 too many are waiting. Settings that change what is drawn but that the
sampler does not have (top_p, penalties, tools) are refused, not passed over.
"""

import hmac
import json
import secrets
import time
import uuid
from collections.abc import (
  AsyncIterator,
  Awaitable,
  Callable,
  Mapping,
  Sequence,
)
from typing import Any, Final

import numpy as np

from varl_jax.sampling.local_chat import (
  BEGUN,
  ChatAsk,
  ChatPiece,
  LocalModel,
  Refused,
)
from varl_jax.service import wire
from varl_jax.types import Message

MOST_TEXTS: Final = 2048
MOST_CHARS: Final = 20_000_000

Encode = Callable[[Sequence[str]], Awaitable[np.ndarray]]


def make_app(
  models: Mapping[str, LocalModel],
  *,
  encoders: Mapping[str, Encode] | None = None,
  token: str = "",
) -> Any:
  """The web application.

  Args:
    models: by the ids that requests name.
    encoders: likewise, from texts to vectors [texts, width].
    token: what each request must carry, "" for none; then only requests
      addressed to this machine by a loopback name are answered.

  Raises:
    ModuleNotFoundError: the extra `server` is not installed.
  """
  import fastapi
  from fastapi.exceptions import RequestValidationError
  from fastapi.responses import JSONResponse, StreamingResponse
  from starlette.exceptions import HTTPException

  from varl_jax.chat_forms import ChatBody, EmbeddingBody, Problem

  encoders = dict(encoders or {})
  web = fastapi.FastAPI(
    title="varl_jax local models", docs_url=None, redoc_url=None
  )

  def refusal(error: Refused) -> Any:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(error_body(error), error.status, headers=headers)

  @web.exception_handler(Refused)
  async def refused(request: fastapi.Request, error: Refused) -> Any:
    return refusal(error)

  @web.exception_handler(RequestValidationError)
  async def invalid(
    request: fastapi.Request, error: RequestValidationError
  ) -> Any:
    return refusal(_first_problem(error.errors()))

  @web.exception_handler(HTTPException)
  async def other(request: fastapi.Request, error: HTTPException) -> Any:
    return refusal(Refused(str(error.detail), status=error.status_code))

  @web.middleware("http")
  async def guard(request: fastapi.Request, call_next: Any) -> Any:
    try:
      _admit(request.headers, token)
    except Refused as error:
      return refusal(error)
    return await call_next(request)

  problems: dict[int | str, dict[str, Any]] = {
    status: {"description": told, "model": Problem}
    for status, told in (
      (400, "The request cannot be answered."),
      (401, "The token is missing or wrong."),
      (404, "There is no such model."),
      (503, "Too many requests are waiting."),
    )
  }

  def known(name: str, among: Mapping[str, Any]) -> Any:
    if name not in among:
      raise Refused(
        f"There is no model {name!r} here; there is"
        f" {', '.join(among) or 'none'}.",
        status=404,
        param="model",
        code="model_not_found",
      )
    return among[name]

  def card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}

  @web.get("/v1/models", responses=problems)
  async def listing() -> Any:
    names = (*models, *encoders)
    return {"object": "list", "data": [card(name) for name in names]}

  @web.get("/v1/models/{name:path}", responses=problems)
  async def one(name: str) -> Any:
    known(name, {**models, **encoders})
    return card(name)

  @web.get("/health")
  async def health() -> Any:
    return {
      name: {"running": model.running, "waiting": model.waiting}
      for name, model in models.items()
    }

  @web.post("/v1/chat/completions", responses=problems)
  async def chat(body: ChatBody, request: fastapi.Request) -> Any:
    model: LocalModel = known(body.model, models)
    ask = _ask(body, model)
    reply = Reply(model=body.model, logprobs=bool(body.logprobs))
    pieces = model.stream(ask)
    # What is wrong with a request is found before its first piece, and then
    # there is still a status to say it with.
    first = await anext(pieces, None)
    if body.stream:
      usage = bool(body.stream_options and body.stream_options.include_usage)
      return StreamingResponse(
        reply.events(first, pieces, usage=usage),
        media_type="text/event-stream",
      )
    return await reply.whole(first, pieces, gone=request.is_disconnected)

  @web.post("/v1/embeddings", responses=problems)
  async def embeddings(body: EmbeddingBody) -> Any:
    encode: Encode = known(body.model, encoders)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > MOST_TEXTS or sum(map(len, texts)) > MOST_CHARS:
      raise Refused(f"At most {MOST_TEXTS} texts a request.", param="input")
    rows = await encode(texts) if texts else ()
    return {
      "object": "list",
      "model": body.model,
      "data": [
        {"object": "embedding", "index": place, "embedding": row.tolist()}
        for place, row in enumerate(rows)
      ],
      "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }

  return web


def error_body(error: Refused) -> dict[str, Any]:
  """The protocol's form of an error."""
  kinds = {401: "authentication_error", 503: "server_error"}
  return {
    "error": {
      "message": str(error),
      "type": kinds.get(
        error.status,
        "server_error" if error.status >= 500 else "invalid_request_error",
      ),
      "param": error.param,
      "code": error.code,
    }
  }


class Reply:
  """The protocol's objects for one request."""

  def __init__(self, *, model: str, logprobs: bool):
    self._logprobs = logprobs
    self._head = {
      "id": f"chatcmpl-{uuid.uuid4().hex}",
      "created": int(time.time()),
      "model": model,
    }

  async def whole(
    self,
    first: ChatPiece | None,
    rest: AsyncIterator[ChatPiece],
    *,
    gone: Callable[[], Awaitable[bool]],
  ) -> dict[str, Any]:
    """A completion of all pieces; stops drawing when the client has gone."""
    parts: dict[int, list[ChatPiece]] = {}
    async for piece in _chain(first, rest):
      parts.setdefault(piece.index, []).append(piece)
      if await gone():
        break
    choices = [
      {
        "index": index,
        "message": {
          "role": "assistant",
          "content": "".join(piece.text for piece in pieces),
          "refusal": None,
        },
        "logprobs": self._words(pieces),
        "finish_reason": pieces[-1].finish,
      }
      for index, pieces in sorted(parts.items())
    ]
    pieces = [piece for group in parts.values() for piece in group]
    return {
      **self._head,
      "object": "chat.completion",
      "choices": choices,
      "usage": _usage(pieces),
    }

  async def events(
    self,
    first: ChatPiece | None,
    rest: AsyncIterator[ChatPiece],
    *,
    usage: bool,
  ) -> AsyncIterator[str]:
    """Server-sent events; an error that comes late is one of them."""
    opened: set[int] = set()
    pieces: list[ChatPiece] = []
    try:
      async for piece in _chain(first, rest):
        pieces.append(piece)
        delta: dict[str, Any] = {"content": piece.text}
        if piece.index not in opened:
          opened.add(piece.index)
          delta = {"role": "assistant", **delta}
        yield self._event(
          [
            {
              "index": piece.index,
              "delta": delta,
              "logprobs": self._words([piece]),
              "finish_reason": piece.finish,
            }
          ]
        )
    except Refused as error:
      yield f"data: {json.dumps(error_body(error))}\n\n"
      return
    if usage:
      yield self._event([], usage=_usage(pieces))
    yield "data: [DONE]\n\n"

  def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
    body = {
      **self._head,
      "object": "chat.completion.chunk",
      "choices": choices,
      **more,
    }
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"

  def _words(self, pieces: Sequence[ChatPiece]) -> dict[str, Any] | None:
    if not self._logprobs:
      return None
    return {
      "content": [
        {
          "token": word.text,
          "logprob": word.logprob,
          # Part of a character has no text, and so no bytes of its own.
          "bytes": None if BEGUN in word.text else list(word.text.encode()),
          "top_logprobs": [],
        }
        for piece in pieces
        for word in piece.tokens
      ],
      "refusal": None,
    }


async def _chain(
  first: ChatPiece | None, rest: AsyncIterator[ChatPiece]
) -> AsyncIterator[ChatPiece]:
  if first is not None:
    yield first
  async for piece in rest:
    yield piece


def _usage(pieces: Sequence[ChatPiece]) -> dict[str, int]:
  prompt = max((piece.prompt_tokens for piece in pieces), default=0)
  written = sum(piece.drawn for piece in pieces)
  return {
    "prompt_tokens": prompt,
    "completion_tokens": written,
    "total_tokens": prompt + written,
  }


def _ask(body: Any, model: LocalModel) -> ChatAsk:
  """A request in the sampler's terms.

  Raises:
    Refused: it wants what is not offered.
  """
  for name, plain in (
    ("top_p", 1),
    ("frequency_penalty", 0),
    ("presence_penalty", 0),
    ("top_logprobs", 0),
  ):
    if getattr(body, name) not in (None, plain):
      raise Refused(
        f"{name} is not offered: what is drawn is the model's own"
        f" distribution at a temperature. Leave it out, or give {plain}.",
        param=name,
      )
  if body.tools:
    raise Refused(
      "tools are not offered; ask for a JSON object by response_format.",
      param="tools",
    )
  stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
  limit = body.max_completion_tokens or body.max_tokens or model.max_new
  schema, structured = _form(body.response_format)
  seed = secrets.randbits(32) if body.seed is None else body.seed
  return ChatAsk(
    messages=tuple(
      Message(role=turn.role, content=_text(turn.content))
      for turn in body.messages
    ),
    seeds=tuple(seed + sample for sample in range(body.n or 1)),
    limit=min(limit, model.max_new),
    temperature=1.0 if body.temperature is None else body.temperature,
    stops=tuple(stops),
    structured=structured,
    schema=schema,
    reasoning=(body.chat_template_kwargs or {}).get("enable_thinking"),
  )


def _form(form: Any) -> tuple[Mapping[str, Any] | None, bool]:
  """The schema, and whether an object is asked for at all."""
  if form is None or form.type == "text":
    return None, False
  if form.type == "json_object":
    return None, True
  if form.json_schema is None:
    raise Refused("json_schema is missing.", param="response_format")
  return form.json_schema.schema_ or {"type": "object"}, True


def _text(content: Any) -> str:
  if content is None or isinstance(content, str):
    return content or ""
  return "".join(part.text for part in content)


def _admit(headers: Mapping[str, str], token: str) -> None:
  """Raises `Refused` for requests that are not answered."""
  if token:
    given = headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
      raise Refused("The token is missing or wrong.", status=401)
    return
  if wire.host_name(headers.get("host", "")) not in wire.LOOPBACK:
    raise Refused("Without a token only this machine is answered.", status=401)


def _first_problem(errors: Sequence[Any]) -> Refused:
  """What validation found first, in one sentence."""
  found = errors[0]
  place = ".".join(str(part) for part in found["loc"] if part != "body")
  return Refused(f"{place or 'The body'}: {found['msg']}.", param=place or None)
