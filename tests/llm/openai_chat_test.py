"""The client against a real server on this machine."""

import asyncio
import dataclasses
import logging
import time

import pytest

from tests.faults.server import Always, Answer, First, fault_server, no_faults
from varl_jax.config import ConfigError, EndpointConfig
from varl_jax.llm.chat import (
  ChatError,
  ChatReply,
  ChatRequest,
  SamplingChatModel,
)
from varl_jax.llm.journal import Journal
from varl_jax.llm.openai_chat import make_chat
from varl_jax.llm.retries import Backoff
from varl_jax.types import Message

SCHEMA = {
  "type": "object",
  "properties": {"met": {"type": "string", "maxLength": 9}},
  "required": [],
  "additionalProperties": False,
}
TRANSPORTS = ("aiohttp", "sdk")


def request(index=0, **changed):
  made = ChatRequest(
    role="judge",
    messages=(Message(role="user", content="Is it {met}?"),),
    operation=f"op{index}",
    seed=index,
    schema=SCHEMA,
  )
  return dataclasses.replace(made, **changed)


def chat_for(server, *, transport="aiohttp", notes=None, **settings):
  settings = {
    "model": "m",
    "base_url": server.url,
    "api_key_env": "",
    "timeout_s": 30.0,
    "attempts": 3,
    **settings,
  }
  return make_chat(
    EndpointConfig(**settings),
    notify=(notes if notes is not None else []).append,
    transport=transport,
    backoff=Backoff(first_s=0.005, cap_s=0.02),
  )


def ask(chat, *requests):
  async def run():
    return await asyncio.gather(
      *(chat.complete(one) for one in requests), return_exceptions=True
    )

  return asyncio.run(run())


def seeded(body):
  return f"drawn with {body['seed']}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reply_with_its_price(transport):
  with fault_server(lambda body: '{"met": null}') as server:
    chat = chat_for(server, transport=transport, price_in=2.0, price_out=4.0)
    (reply,) = ask(chat, request())
  assert reply == ChatReply(
    text="{}",
    finish="stop",
    model="m",
    prompt_tokens=4,
    reply_tokens=4,
    mode="json_schema",
    cost=24e-6,
  )
  assert chat.usage()["judge"]["cost"] == 24e-6
  assert chat.name == "m" and isinstance(chat, SamplingChatModel)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
  ("formats", "mode", "refused"),
  [
    (("json_schema", "json_object", "text"), "json_schema", 0),
    (("json_object", "text"), "json_object", 2),
    (("text",), "text", 3),
  ],
)
def test_the_form_steps_down_once(transport, formats, mode, refused):
  with fault_server(lambda body: "{}", formats=formats) as server:
    chat = chat_for(server, transport=transport)

    async def run():
      first = await chat.complete(request())
      return [first, await chat.complete(request(1))]

    replies = asyncio.run(run())
    assert [reply.mode for reply in replies] == [mode, mode]
    assert server.counts["form"] == refused
  assert chat.usage()["judge"][f"mode_{mode}"] == 2


def test_a_stated_form_that_is_refused_is_rejected():
  with fault_server(lambda body: "{}", formats=("text",)) as server:
    chat = chat_for(server, reply_format="json_object")
    (error,) = ask(chat, request())
  assert error.kind == "rejected" and error.fatal
  assert "response_format" in str(error)


def test_messages_of_failures_name_role_model_cause_and_mend(monkeypatch):
  monkeypatch.setenv("SOME_KEY", "sk-some-key-0123456789")
  with fault_server(seeded, Always("unauthorized")) as server:
    (error,) = ask(chat_for(server, api_key_env="SOME_KEY"), request())
    host = server.url.split("/")[2]
  assert str(error) == (
    f"The judge had no reply from m at {host}: status 401: Incorrect key"
    " provided: Bearer *** (check the key)."
  )
  assert error.__cause__ is None and error.__context__ is None


@pytest.mark.parametrize(
  ("name", "kind"),
  [("500", "unavailable"), ("empty", "malformed"), ("html", "malformed")],
)
def test_attempts_are_bounded(name, kind):
  with fault_server(seeded, Always(name)) as server:
    chat = chat_for(server)
    (error,) = ask(chat, request())
    assert server.counts[name] == 3
  assert error.kind == kind and not error.fatal
  assert "after 3 attempts" in str(error)
  assert chat.usage()["judge"][f"failed_{kind}"] == 1
  assert chat.usage()["judge"][f"retried_{kind}"] == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["hang", "stall", "drip"])
def test_the_deadline_bounds_all_attempts_and_connections_do_not_leak(
  transport, name
):
  with fault_server(seeded, Always(name)) as server:
    chat = chat_for(
      server, transport=transport, timeout_s=0.2, deadline_s=0.5, attempts=99
    )

    async def run():
      with pytest.raises(ChatError) as caught:
        await chat.complete(request())
      for _ in range(100):
        if not server.connections:
          break
        await asyncio.sleep(0.02)
      return caught.value, server.connections

    error, connections = asyncio.run(run())
    assert 1 <= server.counts[name] <= 3
  assert error.kind == "timeout"
  assert connections == 0


def test_cancelled_calls_leave_nothing_behind():
  with fault_server(seeded, Always("hang")) as server:
    chat = chat_for(server, concurrency=4)

    async def run():
      calls = [asyncio.create_task(chat.complete(request(i))) for i in range(9)]
      while len(server.requests) < 4:
        await asyncio.sleep(0.01)
      for call in calls:
        call.cancel()
      await asyncio.gather(*calls, return_exceptions=True)
      server.faults = no_faults
      replies = await asyncio.gather(
        *(chat.complete(request(i)) for i in range(9))
      )
      for _ in range(100):
        if server.connections <= 4:
          break
        await asyncio.sleep(0.02)
      return replies, server.connections

    replies, connections = asyncio.run(run())
    assert len(replies) == 9
    assert connections <= 4
    for _ in range(200):
      if not server.connections:
        break
      time.sleep(0.02)
    assert server.connections == 0  # The loop's end closed the pool.


def test_calls_in_flight_are_bounded():
  seen = []
  with fault_server(seeded, latency=0.02) as server:
    server.faults = lambda call: seen.append(server.connections)
    chat = chat_for(server, concurrency=3)
    replies = ask(chat, *(request(i) for i in range(20)))
  assert {type(reply) for reply in replies} == {ChatReply}
  assert len(seen) == 20 and 1 < max(seen) <= 3


def test_an_outage_is_waited_out():
  notes = []
  with fault_server(seeded, Always("reset")) as server:
    chat = chat_for(server, notes=notes, outage_s=60.0, attempts=5)

    async def run():
      calls = [asyncio.create_task(chat.complete(request(i))) for i in range(8)]
      while server.counts["reset"] < 40:
        await asyncio.sleep(0.01)
      assert not any(call.done() for call in calls)
      server.faults = no_faults
      return await asyncio.gather(*calls)

    replies = asyncio.run(run())
  assert sorted(reply.text for reply in replies) == sorted(
    f"drawn with {index}" for index in range(8)
  )
  assert len(notes) == 2
  assert "does not answer (connection reset by peer)" in notes[0]
  assert "wait up to 60 s" in notes[0]
  assert "is back after" in notes[1]
  assert chat.usage()["judge"]["paused_s"] > 0


def test_an_outage_that_lasts_fails_the_calls():
  with fault_server(seeded, Always("503")) as server:
    chat = chat_for(server, outage_s=0.3, attempts=5)
    errors = ask(chat, *(request(i) for i in range(8)))
  assert {error.kind for error in errors} == {"unavailable"}
  assert any("waited up to 0.3 s" in str(error) for error in errors)


def test_nobody_at_the_address():
  with fault_server(seeded) as server:
    pass
  (error,) = ask(chat_for(server, outage_s=0.2), request())
  assert error.kind == "unavailable"
  assert "connect" in str(error)


def test_a_long_retry_after_pauses_everybody():
  notes = []
  with fault_server(seeded, Always("429", retry_after=600)) as server:
    chat = chat_for(server, notes=notes, outage_s=60.0, concurrency=2)
    errors = ask(chat, *(request(i) for i in range(30)))
    assert server.counts["429"] <= 2
  assert {error.kind for error in errors} == {"unavailable"}
  assert all("status 429" in str(error) for error in errors)
  assert len(notes) == 1 and "asked to wait 600 s" in notes[0]


def test_a_short_retry_after_is_waited_for_and_counts_as_no_attempt():
  plan = First("429", retry_after=0.05)
  with fault_server(seeded, plan) as server:
    chat = chat_for(server, attempts=1, outage_s=60.0)
    replies = ask(chat, *(request(i) for i in range(6)))
    assert server.counts == {"429": 6, "ok": 6}
  assert {type(reply) for reply in replies} == {ChatReply}


def test_a_rate_is_kept():
  with fault_server(seeded) as server:
    chat = chat_for(server, requests_per_minute=600)
    begun = time.monotonic()
    ask(chat, *(request(i) for i in range(16)))
    assert time.monotonic() - begun >= 0.5 - 1e-3
  with fault_server(seeded) as server:
    chat = chat_for(server, tokens_per_minute=60_000, max_tokens=400)
    begun = time.monotonic()
    ask(chat, *(request(i) for i in range(5)))
    assert time.monotonic() - begun >= 0.5


def samples(count=3):
  return [request(index) for index in range(count)]


@pytest.mark.parametrize(
  ("served", "sent"), [("many", 1), ("one", 3), ("refused", 4)]
)
def test_samples_of_one_request(served, sent):
  with fault_server(seeded, samples=served) as server:
    chat = chat_for(server)

    async def run():
      first = await chat.complete_samples(samples())
      return [first, await chat.complete_samples(samples())]

    first, second = asyncio.run(run())
    assert [type(reply) for reply in first + second] == [ChatReply] * 6
    again = 1 if served == "many" else 3
    assert len(server.requests) == sent + again
  assert chat.usage()["judge"]["calls"] == 6
  if served != "many":
    assert [reply.text for reply in second] == [
      f"drawn with {index}" for index in range(3)
    ]


def test_spoiled_samples_are_asked_for_alone():
  texts = iter(["a", "", "c"])

  def answer(body):
    return next(texts) if body.get("n") else "alone"

  with fault_server(answer) as server:
    replies = asyncio.run(chat_for(server).complete_samples(samples()))
  assert [reply.text for reply in replies] == ["a", "alone", "c"]


def test_samples_that_fail_together():
  with fault_server(seeded, Always("quota")) as server:
    chat = chat_for(server)
    errors = asyncio.run(chat.complete_samples(samples()))
  assert [error.kind for error in errors] == ["quota"] * 3
  assert chat.usage()["judge"]["failed_quota"] == 3


def test_samples_of_different_prompts_are_refused():
  with fault_server(seeded) as server:
    other = request(1, role="patcher")
    with pytest.raises(ValueError, match="operation and seed"):
      asyncio.run(chat_for(server).complete_samples([request(), other]))
    assert asyncio.run(chat_for(server).complete_samples([])) == []


def test_the_journal_stands_before_the_server(tmp_path):
  with fault_server(seeded) as server, Journal(tmp_path / "j") as journal:
    for _ in range(2):
      endpoint = EndpointConfig(model="m", base_url=server.url, api_key_env="")
      chat = make_chat(endpoint, journal=journal)
      asyncio.run(chat.complete_samples(samples()))
      ask(chat, request(), request())
    assert server.counts["ok"] == 2
    changed = dataclasses.replace(endpoint, effort="high", max_tokens=5)
    ask(make_chat(changed, journal=journal), request())
    assert server.requests[-1]["reasoning_effort"] == "high"


def test_finish_reasons_reach_the_reply():
  with fault_server(lambda body: Answer(text="cu", finish="length")) as server:
    (reply,) = ask(chat_for(server), request())
  assert (reply.text, reply.finish) == ("cu", "length")


def test_a_key_in_a_reply_is_hidden(monkeypatch):
  monkeypatch.setenv("SOME_KEY", "secret-0123456789")
  with fault_server(lambda body: "It is secret-0123456789!") as server:
    chat = chat_for(server, api_key_env="SOME_KEY")
    (reply,) = ask(chat, request())
    assert server.keys == {"Bearer secret-0123456789"}
  assert reply.text == "It is ***!"


def test_redirects_do_not_carry_the_key_away(monkeypatch):
  monkeypatch.setenv("SOME_KEY", "secret-0123456789")
  with fault_server(seeded) as other, fault_server(seeded) as server:
    from aiohttp import web

    async def away(call):
      raise web.HTTPTemporaryRedirect(f"{other.url}/chat/completions")

    server._reply = away
    for transport in TRANSPORTS:
      chat = chat_for(server, transport=transport, api_key_env="SOME_KEY")
      (error,) = ask(chat, request())
      assert error.kind == "rejected" and "status 307" in str(error)
    assert other.requests == []


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"model": ""}, "model is empty"),
    ({"api_key_env": "NOT_SET_AT_ALL"}, "NOT_SET_AT_ALL is not set"),
    ({"base_url": "host/v1"}, "is an address"),
    ({"base_url": "http://me:pass@host/v1"}, "holds a user, password"),
    ({"base_url": "http://host/v1?key=abc"}, "holds a user, password"),
  ],
)
def test_settings_that_cannot_work_are_told_at_once(settings, message):
  endpoint = EndpointConfig(
    **{"model": "m", "base_url": "http://h/v1", "api_key_env": "", **settings}
  )
  with pytest.raises(ConfigError, match=message) as caught:
    make_chat(endpoint)
  assert "pass@" not in str(caught.value) and "abc" not in str(caught.value)


@pytest.mark.parametrize("package", TRANSPORTS)
def test_a_missing_package_names_its_extra(monkeypatch, package):
  name = "openai" if package == "sdk" else "aiohttp"
  monkeypatch.setattr("importlib.util.find_spec", lambda found: None)
  with pytest.raises(ConfigError, match=f"package {name}.*openai"):
    make_chat(EndpointConfig(model="m", api_key_env=""), transport=package)


def test_outages_are_logged_where_nobody_else_is_told(caplog):
  with fault_server(seeded, Always("503")) as server:
    endpoint = EndpointConfig(
      model="m", base_url=server.url, api_key_env="", outage_s=0.1
    )
    chat = make_chat(endpoint, backoff=Backoff(first_s=0.01, cap_s=0.01))
    with caplog.at_level(logging.WARNING, "varl_jax"):
      ask(chat, request())
  assert "does not answer (status 503)" in caplog.text
