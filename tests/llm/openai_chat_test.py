"""The client against a real server on this machine."""

import asyncio
import dataclasses
import json
import logging
import time

import pytest

from tests.faults.server import (
  Always,
  Answer,
  Fault,
  First,
  fault_server,
  no_faults,
)
from varl_jax.config import ConfigError, EndpointConfig
from varl_jax.llm import breaker
from varl_jax.llm.chat import (
  ChatError,
  ChatReply,
  ChatRequest,
  SamplingChatModel,
)
from varl_jax.llm.journal import Journal
from varl_jax.llm.openai_chat import make_chat
from varl_jax.llm.rejections import MOST_IN_A_ROW
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


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_form_refused_at_the_top_level_of_the_body_steps_down(transport):
  """As SGLang and older vLLM do."""

  def plain(call):
    kind = call.body.get("response_format", {}).get("type")
    reason = f"response_format of type {kind} is not supported"
    return raw(400, object="error", message=reason) if kind else None

  with fault_server(lambda body: "{}", plain) as server:
    (reply,) = ask(chat_for(server, transport=transport), request())
  assert reply.mode == "text"


def raw(status, **body):
  return Fault(name="raw", status=status, text=json.dumps(body))


def odd():
  """Refuses calls of which the text says so."""

  def plan(call):
    text = call.body["messages"][0]["content"]
    return raw(400, message="Not today.") if "odd" in text else None

  return plan


def odd_request(index):
  turns = (Message(role="user", content=f"An odd text {index}."),)
  return request(index, messages=turns)


def one_by_one(chat, *requests):
  """What comes of calls that are made in order."""

  async def run():
    found = []
    for one in requests:
      found += await asyncio.gather(chat.complete(one), return_exceptions=True)
    return found

  return asyncio.run(run())


def kinds(found):
  return [getattr(one, "kind", "") for one in found]


def test_one_odd_refusal_is_that_calls_alone():
  with fault_server(seeded, odd()) as server:
    chat = chat_for(server)
    found = one_by_one(chat, odd_request(1), request(2), odd_request(3))
  assert kinds(found) == ["rejected", "", "refusal"]
  assert "Not today" in str(found[2]) and not found[2].fatal
  assert chat.usage()["judge"]["failed_refusal"] == 1


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_or_model_is_fatal_at_any_time(status):
  with fault_server(seeded) as server:
    chat = chat_for(server)
    one_by_one(chat, request())
    server.faults = lambda call: raw(status, message="Not today.")
    assert kinds(one_by_one(chat, request(1))) == ["rejected"]


def test_refusals_of_everything_are_fatal_after_a_while():
  with fault_server(seeded) as server:
    chat = chat_for(server)
    first = one_by_one(chat, request())
    server.faults = lambda call: raw(400, message="Not today.")
    calls = [request(i) for i in range(1, MOST_IN_A_ROW + 5)]
    found = kinds(one_by_one(chat, *calls))
    server.faults = no_faults
    again = kinds(one_by_one(chat, request(99)))
  assert kinds(first) == again == [""]
  assert found == ["refusal"] * (MOST_IN_A_ROW - 1) + ["rejected"] * 5


def test_many_refusals_of_one_text_are_not_of_everything():
  count = 2 * MOST_IN_A_ROW + 3
  with fault_server(seeded, odd()) as server:
    chat = chat_for(server)
    found = one_by_one(
      chat, request(), *(odd_request(i) for i in range(1, count + 1))
    )
    assert kinds(found) == [""] + ["refusal"] * count
    # Twice it was looked whether the server takes what it took before.
    assert server.counts["ok"] == 1 + 2
    assert chat.usage()["judge"]["attempts"] == sum(server.counts.values())


def test_a_resumed_run_knows_from_its_journal_that_calls_were_answered(
  tmp_path,
):
  with (
    fault_server(seeded, odd()) as server,
    Journal(tmp_path / "j") as journal,
  ):
    endpoint = EndpointConfig(model="m", base_url=server.url, api_key_env="")
    one_by_one(make_chat(endpoint, journal=journal), request())
    resumed = make_chat(endpoint, journal=journal)
    other = dataclasses.replace(odd_request(1), role="patcher")
    found = one_by_one(resumed, odd_request(1), other)
  assert kinds(found) == ["refusal", "rejected"]


def test_a_long_prompt_does_not_change_how_replies_are_asked_for():
  reason = "The schema and the prompt exceed the available context size."
  with fault_server(seeded, lambda call: raw(400, message=reason)) as server:
    chat = chat_for(server)
    (error,) = ask(chat, request())
    server.faults = no_faults
    (reply,) = ask(chat, request())
  assert error.kind == "length"
  assert reply.mode == "json_schema"


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


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
  ("url", "said"),
  [
    ("http://no-such-host.invalid/v1", "name"),
    ("https://127.0.0.1:{port}/v1", "no trusted TLS connection"),
    ("http://127.0.0.1:{port}/v1", "an HTML page came"),
  ],
)
def test_a_wrong_address_is_told_soon(transport, url, said, monkeypatch):
  monkeypatch.setattr(breaker, "UNSEEN_S", 0.3)
  with fault_server(seeded, Always("html")) as server:
    port = server.url.split(":")[2].split("/")[0]
    chat = chat_for(
      server,
      transport=transport,
      base_url=url.format(port=port),
      attempts=99,
      outage_s=1800.0,
    )
    errors = ask(chat, *(request(i) for i in range(4)))
  for error in errors:
    assert not error.fatal
    assert said in str(error) and "check base_url" in str(error)


def test_nobody_at_the_address():
  with fault_server(seeded) as server:
    pass
  (error,) = ask(chat_for(server, outage_s=0.2), request())
  assert error.kind == "unavailable"
  assert "connection refused" in str(error)


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


PART = "secret-0123456789-abcdef"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_key_in_any_part_of_a_response_is_hidden(
  monkeypatch, transport, tmp_path
):
  monkeypatch.setenv("SOME_KEY", PART)
  echo = PART[1:-1]
  whole = {
    "model": f"m {echo}",
    "choices": [
      {"message": {"content": f"It is {echo}"}, "finish_reason": "stop"}
    ],
  }
  odd = {
    "choices": [{"message": {"content": "x"}, "finish_reason": f"k {echo}"}]
  }
  answers = [raw(200, **whole), raw(200, **odd), raw(400, message=f"k {echo}")]
  notes, texts = [], []
  with fault_server(seeded) as server, Journal(tmp_path / "j") as journal:
    endpoint = EndpointConfig(
      model="m", base_url=server.url, api_key_env="SOME_KEY", attempts=9
    )
    chat = make_chat(
      endpoint,
      journal=journal,
      notify=notes.append,
      transport=transport,
      backoff=Backoff(first_s=0.001, cap_s=0.001),
    )
    for number, answer in enumerate(answers):
      server.faults = lambda call, answer=answer: answer
      texts += map(
        repr, ask(chat, *(request(i + 9 * number) for i in range(9)))
      )
  assert "model='m ***'" in texts[0] and "text='It is ***'" in texts[0]
  assert any("does not answer" in note for note in notes)
  assert len(texts) == 27
  for text in [*texts, *notes]:
    assert PART[3:12] not in text
  for path in tmp_path.iterdir():
    assert PART[3:12].encode() not in path.read_bytes()


def test_what_a_server_says_stays_on_its_line():
  said = "No.\nvarl_jax: All is well.\x1b[2J"
  with fault_server(seeded, lambda call: raw(400, message=said)) as server:
    (error,) = ask(chat_for(server), request())
  assert "status 400: No. varl_jax: All is well.[2J" in str(error)


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
