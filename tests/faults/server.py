"""A local OpenAI-compatible server that can be told to fail.

    with fault_server(replies=CHAT, faults=Always("500")) as server:
      ...  # calls to server.url, such as http://127.0.0.1:40123/v1

It answers POST {url}/chat/completions in a thread of its own, on a free port.

Replies: `replies` is a `ChatModel` (a `ScriptedChat` such as
`varl_jax.story.world.CHAT`), or a function of the request's body that returns
the text of the reply or a whole `Answer`. A `ChatModel` sees the messages and
the sampling seed of the body (a body without one counts as seed 0), so a story
run through HTTP gets the replies it gets without. Sample i of a request for `n`
is drawn with seed + i; a model's `ChatError` becomes status 500.

Faults: `faults` is called with a `Call` and returns a `Fault`, the name of one,
or None for a good reply:

    Always("429", retry_after=600)      every request
    First("hang", share=0.3)            each distinct body's first request, for
                                        a share of the bodies
    Mixed(FAULTS, share=0.2)            each request draws anew: `share` of all
                                        fail, each by one of these names

Draws are keyed by (seed, body, how often this body came), never by the order in
which requests arrive. Names and what the client sees:

    429             status 429; with `retry_after` the header Retry-After
    quota           status 429, code insufficient_quota
    500, 503        that status, a JSON error
    hang            nothing, until the client gives up
    reset           the connection is reset before any byte
    html            status 200, an HTML page
    cut_json        status 200, the first half of the JSON body
    choices_null    status 200, "choices": null
    empty           a reply with the content ""
    wrong_schema    a reply whose content is a JSON object of other keys
    two_objects     the content is an object of other keys, a newline, then the
                    true reply; only where the body has a `response_format`,
                    otherwise a good reply
    cut_reply       the first half of the content, finish_reason "length"
    content_filter  finish_reason "content_filter", content null
    refusal         the message's `refusal` is set, content null
    no_usage        the true reply without `usage`
    unauthorized    status 401, a message that holds the Authorization header
    bad_request     status 400, a message about nothing that can be changed
    raw             `status` and the body `text`
    drip            the true reply, byte by byte, over minutes
    stall           headers and half of the true reply, then nothing

`hang`, `drip` and `stall` end when the client goes away or the server closes.

Attributes of the server: `url`; `requests`, the bodies in order of arrival;
`counts`, a `Counter` of fault names, with "ok" for good replies and "form" for
refused ones (a fault is counted when it is chosen, a good reply when it is
about to be sent); `outcomes`, the same one by one, as (name, body);
`connections`, the number of open TCP connections, to see that none leak;
`keys`, the set of Authorization headers seen; `faults`, which may be replaced
at any time, for example to end an outage.
"""

import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import json
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from aiohttp import web

from varl_jax.llm.chat import ChatError, ChatModel, ChatRequest
from varl_jax.types import Message

# Those that a client mends by asking again; "identical once retried".
TRANSPORT_FAULTS = (
  "429",
  "500",
  "503",
  "hang",
  "reset",
  "html",
  "cut_json",
  "choices_null",
  "empty",
  "drip",
  "stall",
)
# The reply arrived; it is a bad one, or lacks something.
CONTENT_FAULTS = (
  "wrong_schema",
  "two_objects",
  "cut_reply",
  "content_filter",
  "refusal",
  "no_usage",
)
FATAL_FAULTS = ("quota", "unauthorized", "bad_request")
FAULTS = TRANSPORT_FAULTS + CONTENT_FAULTS
# Open until the client goes away.
_ENDLESS = ("hang", "drip", "stall")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """A reply; `finish` is a finish_reason of the protocol."""

  text: str
  finish: str = "stop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
  """A request: its body and how many with this body came before it."""

  body: Mapping[str, Any]
  earlier: int

  def rng(self, seed: int) -> random.Random:
    """A generator of this call's own."""
    text = json.dumps([seed, self.body, self.earlier], sort_keys=True)
    return random.Random(hashlib.sha256(text.encode()).digest())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
  """A fault by name; `retry_after` seconds go with status 429 and 503."""

  name: str
  retry_after: float | None = None
  status: int = 400
  text: str = ""

  def __post_init__(self):
    if self.name not in (*FAULTS, *FATAL_FAULTS, "raw"):
      raise ValueError(f"There is no fault {self.name!r}.")


Replies = ChatModel | Callable[[Mapping[str, Any]], str | Answer]
Plan = Callable[[Call], Fault | str | None]


def no_faults(call: Call) -> None:
  """Every request gets its reply."""


class Always:
  """Every request fails."""

  def __init__(self, name: str, *, retry_after: float | None = None):
    self._fault = Fault(name=name, retry_after=retry_after)

  def __call__(self, call: Call) -> Fault:
    return self._fault


class First:
  """The first request of a share of the distinct bodies fails."""

  def __init__(
    self,
    name: str,
    *,
    share: float = 1.0,
    seed: int = 0,
    retry_after: float | None = None,
  ):
    self._fault = Fault(name=name, retry_after=retry_after)
    self._share, self._seed = share, seed

  def __call__(self, call: Call) -> Fault | None:
    hit = not call.earlier and call.rng(self._seed).random() < self._share
    return self._fault if hit else None


class Mixed:
  """A share of all requests fails, each by one of `names`."""

  def __init__(
    self, names: Sequence[str] = FAULTS, *, share: float = 0.2, seed: int = 0
  ):
    self._faults = [Fault(name=name) for name in names]
    self._share, self._seed = share, seed

  def __call__(self, call: Call) -> Fault | None:
    rng = call.rng(self._seed)
    return rng.choice(self._faults) if rng.random() < self._share else None


class FaultServer:
  """See the module's docstring; made by `fault_server`."""

  def __init__(
    self,
    replies: Replies,
    faults: Plan = no_faults,
    *,
    latency: float = 0.0,
    formats: Sequence[str] = ("json_schema", "json_object", "text"),
    samples: Literal["many", "one", "refused"] = "many",
  ):
    self.url = ""
    self.faults = faults
    self.requests: list[Mapping[str, Any]] = []
    self.counts: collections.Counter[str] = collections.Counter()
    self.outcomes: list[tuple[str, Mapping[str, Any]]] = []
    self.keys: set[str] = set()
    self._replies = replies
    self._latency = latency
    self._formats = formats
    self._samples = samples
    self._seen: collections.Counter[str] = collections.Counter()
    self._open = 0
    self._ending = asyncio.Event()

  @property
  def connections(self) -> int:
    """Open TCP connections."""
    return self._open

  async def start(self) -> web.AppRunner:
    """Listens; the caller cleans the runner up after `end`."""
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", self._handle)
    runner = web.AppRunner(
      app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
    )
    await runner.setup()
    made = runner.server
    assert made is not None
    port = _free_socket()
    loop = asyncio.get_running_loop()
    # Counted here, since only the protocol knows when a connection is lost.
    self._listener = await loop.create_server(
      lambda: _counted(made(), self), sock=port
    )
    self.url = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
    return runner

  async def end(self) -> None:
    """Lets endless replies end and stops listening."""
    self._ending.set()
    self._listener.close()

  async def _handle(self, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    self.requests.append(body)
    self.keys.add(request.headers.get("Authorization", ""))
    refused = self._refusal_of_form(body)
    if refused is not None:
      self._count("form", body)
      return refused
    digest = hashlib.sha256(
      json.dumps(body, sort_keys=True).encode()
    ).hexdigest()
    call = Call(body=body, earlier=self._seen[digest])
    self._seen[digest] += 1
    chosen = self.faults(call)
    fault = Fault(name=chosen) if isinstance(chosen, str) else chosen
    if fault and fault.name == "two_objects" and "response_format" not in body:
      fault = None
    if self._latency:
      await asyncio.sleep(self._latency)
    if fault is None:
      reply = await self._reply(body)
      self._count("ok", body)
      return web.json_response(reply)
    self._count(fault.name, body)
    return await self._fail(request, body, fault)

  def _count(self, outcome: str, body: Mapping[str, Any]) -> None:
    self.counts[outcome] += 1
    self.outcomes.append((outcome, body))

  def _refusal_of_form(self, body: Mapping[str, Any]) -> web.Response | None:
    kind = body.get("response_format", {}).get("type", "text")
    if kind not in self._formats:
      return _error(
        400,
        f"'response_format' of type '{kind}' is not supported.",
        param="response_format",
      )
    if body.get("n", 1) > 1 and self._samples == "refused":
      return _error(400, "Only n=1 is supported.", param="n")
    return None

  async def _reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
    count = body.get("n", 1) if self._samples == "many" else 1
    answers = [await self._answer(body, index) for index in range(count)]
    prompt = sum(len(turn["content"]) for turn in body["messages"]) // 4 + 1
    written = sum(len(answer.text) // 4 + 1 for answer in answers)
    return {
      "id": "chatcmpl-1",
      "object": "chat.completion",
      "created": 0,
      "model": body["model"],
      "choices": [
        {
          "index": index,
          "message": {"role": "assistant", "content": answer.text},
          "finish_reason": answer.finish,
        }
        for index, answer in enumerate(answers)
      ],
      "usage": {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
      },
    }

  async def _answer(self, body: Mapping[str, Any], index: int) -> Answer:
    if isinstance(self._replies, ChatModel):
      turns = (
        Message(role=turn["role"], content=turn["content"])
        for turn in body["messages"]
      )
      request = ChatRequest(
        role="",
        messages=tuple(turns),
        operation="",
        seed=body.get("seed", 0) + index,
      )
      try:
        reply = await self._replies.complete(request)
      except ChatError as error:
        raise web.HTTPInternalServerError(text=str(error)) from error
      return Answer(text=reply.text, finish=reply.finish)
    answer = self._replies(body)
    return Answer(text=answer) if isinstance(answer, str) else answer

  async def _fail(
    self, request: web.Request, body: Mapping[str, Any], fault: Fault
  ) -> web.StreamResponse:
    name = fault.name
    if name in ("429", "503", "500"):
      after = fault.retry_after
      headers = None if after is None else {"Retry-After": f"{after:g}"}
      return _error(int(name), "Try again later.", headers=headers)
    if name == "raw":
      return web.Response(
        status=fault.status, text=fault.text, content_type="application/json"
      )
    if name == "quota":
      return _error(429, "You have used it up.", code="insufficient_quota")
    if name == "unauthorized":
      key = request.headers.get("Authorization", "")
      return _error(401, f"Incorrect key provided: {key}.")
    if name == "bad_request":
      return _error(400, "The request is not understood.")
    if name == "reset":
      return self._reset(request)
    if name == "html":
      page = "<html><body><h1>Down for maintenance</h1></body></html>"
      return web.Response(text=page, content_type="text/html")
    reply = await self._reply(body)
    if name in _ENDLESS:
      return await self._endless(request, name, json.dumps(reply).encode())
    if name == "cut_json":
      text = json.dumps(reply)
      return web.Response(
        text=text[: len(text) // 2], content_type="application/json"
      )
    return web.json_response(_spoiled(reply, name))

  def _reset(self, request: web.Request) -> web.Response:
    transport = request.transport
    if transport is not None:
      # Zero linger makes the kernel send RST instead of an orderly end.
      transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
      )
      transport.abort()
    return web.Response()

  async def _endless(
    self, request: web.Request, name: str, content: bytes
  ) -> web.StreamResponse:
    response = web.StreamResponse(
      headers={
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
      }
    )
    if name == "hang":
      await self._ending.wait()
      return web.Response(status=503)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
      if name == "stall":
        await response.write(content[: len(content) // 2])
        await self._ending.wait()
      for index in range(len(content)):
        if self._ending.is_set():
          break
        await response.write(content[index : index + 1])
        with contextlib.suppress(TimeoutError):
          await asyncio.wait_for(self._ending.wait(), 1.0)
    self._reset(request)
    return response


def _spoiled(reply: dict[str, Any], name: str) -> dict[str, Any]:
  """A whole reply with one thing wrong."""
  if name == "choices_null":
    return {**reply, "choices": None}
  if name == "no_usage":
    return {key: value for key, value in reply.items() if key != "usage"}
  other = json.dumps({"verdict": "all good", "criteria": [True]})
  for choice in reply["choices"]:
    message = choice["message"]
    text = message["content"]
    if name == "empty":
      message["content"] = ""
    elif name == "wrong_schema":
      message["content"] = other
    elif name == "two_objects":
      message["content"] = f"{other}\n{text}"
    elif name == "cut_reply":
      message["content"] = text[: len(text) // 2]
      choice["finish_reason"] = "length"
    elif name == "content_filter":
      message["content"] = None
      choice["finish_reason"] = "content_filter"
    else:
      assert name == "refusal", name
      message["content"] = None
      message["refusal"] = "I cannot help with that."
  return reply


def _error(
  status: int,
  message: str,
  *,
  headers: Mapping[str, str] | None = None,
  param: str | None = None,
  code: str | None = None,
) -> web.Response:
  error = {"message": message, "type": "error", "param": param, "code": code}
  return web.json_response({"error": error}, status=status, headers=headers)


def _counted(protocol: Any, server: FaultServer) -> Any:
  made, lost = protocol.connection_made, protocol.connection_lost

  class Counted(type(protocol)):
    __slots__ = ()

    def connection_made(self, transport: Any) -> None:
      server._open += 1
      made(transport)

    def connection_lost(self, exc: Any) -> None:
      server._open -= 1
      lost(exc)

  protocol.__class__ = Counted
  return protocol


def _free_socket() -> socket.socket:
  made = socket.socket()
  made.bind(("127.0.0.1", 0))
  made.listen(1024)
  return made


@contextlib.contextmanager
def fault_server(
  replies: Replies,
  faults: Plan = no_faults,
  *,
  latency: float = 0.0,
  formats: Sequence[str] = ("json_schema", "json_object", "text"),
  samples: Literal["many", "one", "refused"] = "many",
) -> Iterator[FaultServer]:
  """Runs a server while the block lasts.

  Args:
    replies: who answers.
    faults: which requests fail, and how.
    latency: seconds before every reply or fault.
    formats: accepted types of `response_format`; others are answered with
      status 400 and counted as "form".
    samples: what becomes of `n`: answered, ignored (one choice comes back), or
      refused with status 400, counted as "form".
  """
  server = FaultServer(
    replies, faults, latency=latency, formats=formats, samples=samples
  )
  loop = asyncio.new_event_loop()
  runner = loop.run_until_complete(server.start())
  thread = threading.Thread(target=loop.run_forever, name="fault-server")
  thread.start()

  async def finish() -> None:
    await server.end()
    await runner.cleanup()

  try:
    yield server
  finally:
    asyncio.run_coroutine_threadsafe(finish(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
