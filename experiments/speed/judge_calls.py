"""Judge calls against a server that takes 200 ms: our client and the bound.

    python -m experiments.speed.judge_calls

For 32, 256 and 500 calls in flight it prints a JSON line:

    in_flight  calls under way at any time
    ours       seconds a sample of our client: retries, limits, breaker, usage,
               typed parsing and the durable journal included
    peer       seconds of a bare aiohttp loop that sends the same bodies and
               reads the text of the reply
    ratio      of the medians
    samples    taken of each, alternating in one run
    bound      seconds if calls cost nothing: rounds times 200 ms
    to_bound   ours over the bound, of the medians
    cpu_ms     milliseconds of CPU a call in this process, by client; the
               server runs in a process of its own on the same machine

`--sdk` adds the client that goes through the openai package, with as many
calls, to the lines of 32 and 256.
"""

import asyncio
import json
import multiprocessing
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from absl import app, flags, logging
from aiohttp import web

from varl_jax.config import EndpointConfig
from varl_jax.llm.chat import ChatModel, ChatRequest
from varl_jax.llm.journal import Journal
from varl_jax.llm.openai_chat import make_chat
from varl_jax.llm.transport import TransportName
from varl_jax.types import Message

LATENCY_S = 0.2
# The form of the judge's replies, and texts of a usual length.
SCHEMA = {
  "type": "object",
  "properties": {
    "explanation": {"type": "string", "maxLength": 4000},
    "criteria_met": {"type": "boolean"},
  },
  "required": ["explanation", "criteria_met"],
  "additionalProperties": False,
}
RULES = "Decide whether the criterion is met, and say why. " * 30
ANSWER = "The patient should have the dose checked again. " * 50
REPLY = json.dumps({"explanation": "It says so. " * 20, "criteria_met": True})

_SAMPLES = flags.DEFINE_integer("samples", 5, "Samples of each client.")
_ROUNDS = flags.DEFINE_integer("rounds", 6, "Calls of a sample, per slot.")
_IN_FLIGHT = flags.DEFINE_multi_integer(
  "in_flight", [32, 256, 500], "Calls under way."
)
_SDK = flags.DEFINE_boolean("sdk", False, "Measure the openai package too.")

Client = Callable[[int, int], Coroutine[Any, Any, None]]


async def _answer(request: web.Request) -> web.Response:
  await request.read()
  await asyncio.sleep(LATENCY_S)
  message = {"role": "assistant", "content": REPLY}
  return web.json_response(
    {
      "id": "chatcmpl-1",
      "object": "chat.completion",
      "created": 0,
      "model": "judge",
      "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 900, "completion_tokens": 60},
    }
  )


def serve(ready: Connection) -> None:
  """The server's process."""

  async def run() -> None:
    application = web.Application()
    application.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    ready.send(runner.addresses[0][1])
    await asyncio.Event().wait()

  asyncio.run(run())


def request(index: int) -> ChatRequest:
  """One vote."""
  criterion = f"States the dose of case {index // 3} in milligrams."
  return ChatRequest(
    role="judge",
    messages=(
      Message(role="system", content=RULES),
      Message(role="user", content=f"{ANSWER}\n\n{criterion}"),
    ),
    operation=f"grade/0/t{index // 3}/vote{index % 3}",
    seed=index,
    schema=SCHEMA,
    max_tokens=1024,
  )


def ours(chat: ChatModel) -> Client:
  """Our client: its own semaphore bounds what is in flight."""

  async def run(first: int, count: int) -> None:
    calls = (chat.complete(request(first + i)) for i in range(count))
    await asyncio.gather(*calls)

  return run


def bare(url: str, in_flight: int) -> Client:
  """A loop around `aiohttp` that does nothing else."""

  async def run(first: int, count: int) -> None:
    indices = iter(range(first, first + count))
    connector = aiohttp.TCPConnector(limit=in_flight)

    async def work(session: aiohttp.ClientSession) -> None:
      for index in indices:
        body = _body(index)
        async with session.post(f"{url}/chat/completions", json=body) as reply:
          found = await reply.json()
          assert found["choices"][0]["message"]["content"] == REPLY

    async with aiohttp.ClientSession(connector=connector) as session:
      await asyncio.gather(*(work(session) for _ in range(in_flight)))

  return run


def _body(index: int) -> dict[str, Any]:
  asked = request(index)
  form = {"name": "reply", "strict": True, "schema": SCHEMA}
  return {
    "model": "judge",
    "messages": [
      {"role": turn.role, "content": turn.content} for turn in asked.messages
    ],
    "temperature": asked.temperature,
    "max_tokens": asked.max_tokens,
    "seed": asked.seed,
    "response_format": {"type": "json_schema", "json_schema": form},
  }


async def measure(url: str, in_flight: int, folder: pathlib.Path) -> dict:
  """Alternates the clients; medians of wall and CPU seconds."""
  count = in_flight * _ROUNDS.value
  endpoint = EndpointConfig(
    model="judge", base_url=url, api_key_env="", concurrency=in_flight
  )

  def made(kind: TransportName, journal: Journal) -> Client:
    return ours(make_chat(endpoint, transport=kind, journal=journal))

  with (
    Journal(folder / f"calls-{in_flight}.sqlite") as journal,
    Journal(folder / f"sdk-{in_flight}.sqlite") as sdk_journal,
  ):
    clients = {"peer": bare(url, in_flight), "ours": made("aiohttp", journal)}
    if _SDK.value and in_flight <= 256:
      clients["sdk"] = made("sdk", sdk_journal)
    wall: dict[str, list[float]] = {name: [] for name in clients}
    cpu: dict[str, list[float]] = {name: [] for name in clients}
    for sample in range(_SAMPLES.value + 1):
      for name, client in clients.items():
        began, began_cpu = time.perf_counter(), time.process_time()
        await client(sample * count, count)
        if sample:  # The first opens connections and loads modules.
          wall[name].append(time.perf_counter() - began)
          cpu[name].append(time.process_time() - began_cpu)
  middle = {name: statistics.median(taken) for name, taken in wall.items()}
  bound = _ROUNDS.value * LATENCY_S
  line = {
    "in_flight": in_flight,
    "ours": round(middle["ours"], 3),
    "peer": round(middle["peer"], 3),
    "ratio": round(middle["ours"] / middle["peer"], 3),
    "samples": _SAMPLES.value,
    "bound": round(bound, 3),
    "to_bound": round(middle["ours"] / bound, 3),
    "cpu_ms": {
      name: round(statistics.median(taken) / count * 1e3, 3)
      for name, taken in cpu.items()
    },
  }
  if "sdk" in middle:
    line["sdk"] = round(middle["sdk"], 3)
  return line


def main(argv: list[str]) -> None:
  """Starts the server, measures, prints."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  logging.set_verbosity(logging.WARNING)  # The SDK's client logs every call.
  here, there = multiprocessing.Pipe()
  context = multiprocessing.get_context("spawn")
  server = context.Process(target=serve, args=(there,), daemon=True)
  server.start()
  try:
    url = f"http://127.0.0.1:{here.recv()}/v1"
    with tempfile.TemporaryDirectory() as folder:
      for in_flight in _IN_FLIGHT.value:
        line = asyncio.run(measure(url, in_flight, pathlib.Path(folder)))
        print(json.dumps(line), flush=True)
  finally:
    server.terminate()
    server.join()


if __name__ == "__main__":
  app.run(main)
