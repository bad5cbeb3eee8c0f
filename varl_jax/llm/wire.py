"""Bodies of /chat/completions: what is asked for, and what came back.

Servers differ in what they accept. A `Dialect` begins with the strictest way to
ask and gives way where status 400 says so:

  form of a JSON reply   json_schema, json_schema without bounds of string
                         lengths, json_object, text
  limit of the reply     max_tokens or max_completion_tokens
  seed                   sent, or left out
  n                      several samples in one request, or one each

A form that has worked once stays; if it is refused after that, it is that one
schema's fault.
"""

import dataclasses
import hashlib
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.config import EndpointConfig
from varl_jax.llm.chat import ChatReply, ChatRequest
from varl_jax.llm.strict_schema import (
  has_optional,
  strict_schema,
  without_nulls,
)
from varl_jax.llm.transport import base_url

# (mode, whether string lengths are bounded), the strictest first.
_RUNGS: Final = (
  ("json_schema", True),
  ("json_schema", False),
  ("json_object", False),
  ("text", False),
)
_FORM_WORDS: Final = (
  "response_format",
  "json_schema",
  "json_object",
  "schema",
  "grammar",
  "guided",
  "structured output",
)
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_FINISHES: Final = {
  "stop": "stop",
  "eos": "stop",
  "end_turn": "stop",
  "length": "length",
  "max_tokens": "length",
  "content_filter": "refusal",
  "refusal": "refusal",
}
# Schemas are constants of the roles; more than this many are made on the fly.
_MOST_SCHEMAS: Final = 512


class BadReply(Exception):
  """A response that is no reply: not JSON, or without what a reply holds."""


class NoObject(BadReply):
  """A response that no server of this protocol sends, such as a web page."""


# One entry a sample.
Choices = list[ChatReply | BadReply]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Form:
  """A schema with its requested forms, one a rung."""

  schema: Mapping[str, Any]
  digest: str
  forms: tuple[Mapping[str, Any] | None, ...]
  optional: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """A body and the choices it was made with."""

  body: Mapping[str, Any]
  rung: int
  form: _Form | None

  @property
  def mode(self) -> str:
    """How the form of the reply is asked for."""
    return "text" if self.form is None else _RUNGS[self.rung][0]


class Dialect:
  """What one server understands."""

  def __init__(self, endpoint: EndpointConfig):
    self._endpoint = endpoint
    wanted = endpoint.reply_format
    self._rungs = tuple(
      index
      for index, (mode, _) in enumerate(_RUNGS)
      if wanted in ("auto", mode)
    )
    self._rung = self._rungs[0]
    self._worked: set[int] = set()
    self._rung_of: dict[str, int] = {}
    self._forms: dict[int, _Form] = {}
    host = urllib.parse.urlsplit(base_url(endpoint)).hostname
    self._limit = _LIMITS[host == "api.openai.com"]
    self._limit_fixed = False
    self._seeds = True
    self.samples = True

  def ask(self, request: ChatRequest, *, samples: int = 1) -> Asked:
    """The body of a request."""
    body: dict[str, Any] = {
      "model": self._endpoint.model,
      "messages": _messages(request),
      "temperature": request.temperature,
      # A reasoning model spends most of its limit before it replies, which
      # only the endpoint's own setting can take into account.
      self._limit: self._endpoint.max_tokens,
    }
    if self._seeds:
      body["seed"] = request.seed
    if samples > 1:
      body["n"] = samples
    if self._endpoint.effort:
      body["reasoning_effort"] = self._endpoint.effort
    if request.schema is None:
      return Asked(body=body, rung=self._rung, form=None)
    form = self._form(request.schema)
    rung = max(self._rung, self._rung_of.get(form.digest, 0))
    if form.forms[rung] is not None:
      body["response_format"] = form.forms[rung]
    return Asked(body=body, rung=rung, form=form)

  def accepted(self, asked: Asked) -> None:
    """The server took a body."""
    if asked.form is not None:
      self._worked.add(asked.rung)

  def gives_way(self, asked: Asked, message: str, param: str) -> bool:
    """Whether a refused body is to be asked for in another way.

    Args:
      asked: what was refused.
      message: the server's reason.
      param: the parameter it names, "" for none.
    """
    text = f"{param}\n{message}".lower()
    if asked.form is not None and any(word in text for word in _FORM_WORDS):
      return self._step_down(asked)
    used = next(name for name in _LIMITS if name in asked.body)
    if used in text:
      if used != self._limit:
        return True
      if not self._limit_fixed and "supported" in text:
        self._limit = next(name for name in _LIMITS if name != used)
        self._limit_fixed = True
        return True
      return False
    if "seed" in asked.body and (param == "seed" or "'seed'" in text):
      self._seeds = False
      return True
    if "n" in asked.body and (param == "n" or _names_n(text)):
      self.samples = False
      return True
    return False

  def settings(self) -> dict[str, Any]:
    """What of the endpoint decides a reply beside the request itself."""
    return {
      "model": self._endpoint.model,
      "effort": self._endpoint.effort,
      "max_tokens": self._endpoint.max_tokens,
    }

  def _step_down(self, asked: Asked) -> bool:
    assert asked.form is not None
    digest = asked.form.digest
    now = max(self._rung, self._rung_of.get(digest, 0))
    if now != asked.rung:
      return True  # Somebody else's refusal came first.
    below = [rung for rung in self._rungs if rung > now]
    if not below:
      return False
    # Without bounds to leave out, the same would be asked for once more.
    same = [r for r in below if asked.form.forms[r] == asked.form.forms[now]]
    below = [rung for rung in below if rung not in same]
    if not below:
      return False
    if now in self._worked:
      self._rung_of[digest] = below[0]
    else:
      self._rung = below[0]
    return True

  def _form(self, schema: Mapping[str, Any]) -> _Form:
    found = self._forms.get(id(schema))
    if found is None:
      if len(self._forms) >= _MOST_SCHEMAS:
        self._forms.clear()
      found = self._forms[id(schema)] = _prepare(schema)
    return found


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
  messages: list[dict[str, Any]] = [
    {"role": message.role, "content": message.content}
    for message in request.messages
  ]
  if request.images:
    last = messages[-1]
    last["content"] = [
      {"type": "text", "text": last["content"]},
      *({"type": "image_url", "image_url": {"url": u}} for u in request.images),
    ]
  return messages


def _prepare(schema: Mapping[str, Any]) -> _Form:
  forms = []
  for mode, lengths in _RUNGS:
    if mode == "json_schema":
      named = {
        "name": "reply",
        "strict": True,
        "schema": strict_schema(schema, lengths=lengths),
      }
      forms.append({"type": mode, mode: named})
    else:
      forms.append(None if mode == "text" else {"type": mode})
  return _Form(
    schema=schema,
    digest=schema_digest(schema),
    forms=tuple(forms),
    optional=has_optional(schema),
  )


def schema_digest(schema: Mapping[str, Any] | None) -> str:
  """A hash of a schema, "" for none."""
  if schema is None:
    return ""
  text = json.dumps(schema, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _names_n(text: str) -> bool:
  return any(word in text for word in ("'n'", "`n`", '"n"', "n=1", " n "))


def read_body(body: bytes) -> dict[str, Any]:
  """The JSON object of a response.

  Raises:
    NoObject: it is a page, as a proxy or a wrong address sends it.
    BadReply: it is something else.
  """
  try:
    found = json.loads(body)
  except (ValueError, RecursionError):
    found = None
  if isinstance(found, dict):
    return found
  head = body[:200].lstrip().lower()
  if head.startswith((b"<!doctype", b"<html")):
    raise NoObject("an HTML page came instead of a reply")
  raise BadReply("the reply is no whole JSON object")


def read_replies(
  found: Mapping[str, Any], asked: Asked, *, name: str
) -> Choices:
  """The choices of a response in order, without prices.

  Tokens of the prompt stand on the first of them.

  Raises:
    BadReply: there are no choices at all.
  """
  choices = found.get("choices")
  if not isinstance(choices, list) or not choices:
    raise BadReply("the reply holds no choices")
  model = found.get("model")
  model = model if isinstance(model, str) and model else name
  prompt, written = _tokens(found.get("usage"))
  each, rest = divmod(written, len(choices))
  replies: Choices = []
  for place, choice in enumerate(_in_order(choices)):
    first = place == 0
    try:
      text, finish = _read_choice(choice)
    except BadReply as error:
      replies.append(error)
      continue
    form = asked.form
    if form is not None and form.optional and asked.mode == "json_schema":
      text = without_nulls(text, form.schema)
    replies.append(
      ChatReply(
        text=text,
        finish=finish,
        model=model,
        prompt_tokens=prompt if first else 0,
        reply_tokens=each + (rest if first else 0),
        mode=asked.mode,
      )
    )
  return replies


def states_usage(found: Mapping[str, Any]) -> bool:
  """Whether a response says how many tokens it took."""
  return _tokens(found.get("usage")) != (0, 0)


def _in_order(choices: Sequence[Any]) -> list[Any]:
  def index(choice: Any) -> int:
    place = choice.get("index", 0) if isinstance(choice, dict) else 0
    return place if isinstance(place, int) else 0

  return sorted(choices, key=index)


def _read_choice(choice: Any) -> tuple[str, str]:
  """Text and finish reason of a choice."""
  message = choice.get("message") if isinstance(choice, dict) else None
  if not isinstance(message, dict):
    raise BadReply("a choice holds no message")
  refusal = message.get("refusal")
  if isinstance(refusal, str) and refusal:
    return refusal, "refusal"
  reason = choice.get("finish_reason")
  finish = _FINISHES.get(reason) if isinstance(reason, str) else None
  if finish is None:
    raise BadReply("a choice ended for an unknown reason")
  content = message.get("content")
  if content is not None and not isinstance(content, str):
    raise BadReply("the content of a choice is no text")
  if finish == "stop" and not (content or "").strip():
    raise BadReply("the content of a choice is empty")
  return content or "", finish


def _tokens(usage: Any) -> tuple[int, int]:
  """Tokens of prompt and reply, 0 where they are not stated."""
  if not isinstance(usage, dict):
    return 0, 0
  found = []
  for name in ("prompt_tokens", "completion_tokens"):
    count = usage.get(name)
    good = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    found.append(count if good else 0)
  return found[0], found[1]
