import dataclasses
import json

import pytest

from varl_jax.config import EndpointConfig
from varl_jax.llm.chat import ChatReply, ChatRequest
from varl_jax.llm.wire import (
  BadReply,
  Dialect,
  read_body,
  read_replies,
  states_usage,
)
from varl_jax.types import Message

PLAIN = {
  "type": "object",
  "properties": {"met": {"type": "boolean"}},
  "required": ["met"],
}
BOUNDED = {
  "type": "object",
  "properties": {"met": {"type": "string", "maxLength": 9}},
  "required": [],
}
FORM = "Invalid parameter: 'response_format' is not supported."


def request(schema=PLAIN, **changed):
  made = ChatRequest(
    role="judge",
    messages=(
      Message(role="system", content="Rules."),
      Message(role="user", content="Text {with} braces."),
    ),
    operation="op",
    seed=7,
    schema=schema,
    temperature=0.5,
  )
  return dataclasses.replace(made, **changed)


def dialect(**settings):
  settings = {"model": "m", "base_url": "http://host/v1", **settings}
  return Dialect(EndpointConfig(**settings))


def test_a_body_states_every_sampling_parameter():
  body = dialect(max_tokens=99, effort="low").ask(request(), samples=3).body
  strict = {**PLAIN, "additionalProperties": False}
  assert body == {
    "model": "m",
    "messages": [
      {"role": "system", "content": "Rules."},
      {"role": "user", "content": "Text {with} braces."},
    ],
    "temperature": 0.5,
    "max_tokens": 99,
    "seed": 7,
    "n": 3,
    "reasoning_effort": "low",
    "response_format": {
      "type": "json_schema",
      "json_schema": {"name": "reply", "strict": True, "schema": strict},
    },
  }
  plain = dialect().ask(request(schema=None)).body
  assert not {"response_format", "n", "reasoning_effort"} & set(plain)


def test_the_form_steps_down_and_is_named_by_its_mode():
  made = dialect()
  modes, forms = [], []
  while True:
    asked = made.ask(request(BOUNDED))
    modes.append(asked.mode)
    forms.append(asked.body.get("response_format"))
    if not made.gives_way(asked, FORM, "response_format"):
      break
  assert modes == ["json_schema", "json_schema", "json_object", "text"]
  assert "maxLength" in json.dumps(forms[0])
  assert "maxLength" not in json.dumps(forms[1])
  assert forms[2:] == [{"type": "json_object"}, None]
  assert made.ask(request(None)).mode == "text"


def test_without_bounds_no_rung_is_tried_twice():
  made = dialect()
  asked = made.ask(request())
  assert made.gives_way(asked, FORM, "")
  assert made.ask(request()).mode == "json_object"


def test_calls_under_way_step_down_once_together():
  made = dialect()
  asked = [made.ask(request()) for _ in range(5)]
  assert all(made.gives_way(one, FORM, "") for one in asked)
  assert made.ask(request()).mode == "json_object"


def test_a_form_that_worked_is_only_given_up_for_the_schema_it_fails_with():
  made = dialect()
  made.accepted(made.ask(request()))
  refused = made.ask(request(BOUNDED))
  assert made.gives_way(refused, "Invalid schema for the reply.", "")
  assert made.ask(request()).rung == 0
  assert made.ask(request(BOUNDED)).rung == 1


@pytest.mark.parametrize("wanted", ["json_schema", "json_object", "text"])
def test_a_stated_form_is_not_given_up(wanted):
  made = dialect(reply_format=wanted)
  asked = made.ask(request())
  assert asked.mode == wanted
  assert not made.gives_way(asked, FORM, "response_format")


def test_other_refusals_are_not_of_the_form():
  made = dialect()
  asked = made.ask(request())
  assert not made.gives_way(asked, "The model is overdue.", "model")
  assert made.ask(request()).rung == 0


def test_the_limit_goes_by_the_other_name_where_that_is_asked_for():
  made = dialect()
  first, second = made.ask(request(None)), made.ask(request(None))
  reason = (
    "Unsupported parameter: 'max_tokens' is not supported with this model."
    " Use 'max_completion_tokens' instead."
  )
  assert made.gives_way(first, reason, "max_tokens")
  assert made.gives_way(second, reason, "max_tokens")
  asked = made.ask(request(None))
  assert asked.body["max_completion_tokens"] == 8192
  assert "max_tokens" not in asked.body
  assert not made.gives_way(
    asked, "'max_completion_tokens' is not supported.", ""
  )


def test_the_makers_own_server_is_asked_by_the_newer_name(monkeypatch):
  monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
  for url in ("", "https://api.openai.com/v1"):
    assert "max_completion_tokens" in dialect(base_url=url).ask(request()).body


def test_a_limit_that_is_too_high_is_no_matter_of_names():
  made = dialect()
  reason = "max_tokens is too large: 8192."
  assert not made.gives_way(made.ask(request()), reason, "max_tokens")


def test_seed_and_samples_are_left_out_where_refused():
  made = dialect()
  asked = made.ask(request(None), samples=3)
  assert made.gives_way(asked, "Unknown field.", "seed")
  asked = made.ask(request(None), samples=3)
  assert "seed" not in asked.body
  assert made.gives_way(asked, "Only n=1 is supported.", "")
  assert not made.samples


def whole(*choices, **fields):
  return {
    "model": "m-2026",
    "choices": list(choices),
    "usage": {"prompt_tokens": 10, "completion_tokens": 7},
    **fields,
  }


def choice(content, finish="stop", index=0, **message):
  return {
    "index": index,
    "message": {"role": "assistant", "content": content, **message},
    "finish_reason": finish,
  }


def read(found, **changed):
  return read_replies(found, dialect().ask(request(**changed)), name="m")


def test_a_reply_with_what_it_took():
  (reply,) = read(whole(choice("Hi.")))
  assert reply == ChatReply(
    text="Hi.",
    finish="stop",
    model="m-2026",
    prompt_tokens=10,
    reply_tokens=7,
    mode="json_schema",
  )


def test_tokens_of_samples_add_up_and_come_in_order():
  found = whole(
    choice("b", index=1), choice("c", index=2), choice("a", index=0)
  )
  replies = read(found)
  assert [reply.text for reply in replies] == ["a", "b", "c"]
  assert sum(reply.prompt_tokens for reply in replies) == 10
  assert sum(reply.reply_tokens for reply in replies) == 7


@pytest.mark.parametrize(
  ("made", "finish"),
  [
    (choice("cut", "length"), "length"),
    (choice(None, "length"), "length"),
    (choice(None, "content_filter"), "refusal"),
    (choice(None, refusal="I will not."), "refusal"),
    (choice("said", "stop", refusal="I will not."), "refusal"),
    (choice("fine", refusal=None), "stop"),
  ],
)
def test_how_a_reply_ends(made, finish):
  (reply,) = read(whole(made))
  assert reply.finish == finish


@pytest.mark.parametrize(
  "made",
  [
    None,
    "text",
    {},
    {"message": None, "finish_reason": "stop"},
    choice(""),
    choice("  \n"),
    choice(None),
    choice(["part"]),
    choice("said", None),
    choice("said", "tool_calls"),
    choice("said", 3),
  ],
)
def test_a_choice_that_is_no_reply(made):
  (reply,) = read(whole(made))
  assert isinstance(reply, BadReply)


def test_no_reason_of_a_servers_own_is_repeated():
  (reply,) = read(whole(choice("said", "sk-secret")))
  assert "secret" not in str(reply)


def test_a_bad_choice_leaves_the_others():
  replies = read(whole(choice("a"), choice("", index=1)))
  assert isinstance(replies[0], ChatReply) and isinstance(replies[1], BadReply)


@pytest.mark.parametrize("choices", [None, [], {}, "text"])
def test_no_choices(choices):
  with pytest.raises(BadReply, match="no choices"):
    read({"choices": choices})


@pytest.mark.parametrize(
  "usage",
  [None, {}, [], {"prompt_tokens": None}, {"prompt_tokens": -1}, "many"],
)
def test_usage_that_is_missing_is_no_usage(usage):
  found = whole(choice("a"), usage=usage)
  (reply,) = read(found)
  assert (reply.prompt_tokens, reply.reply_tokens) == (0, 0)
  assert not states_usage(found)
  assert states_usage(whole(choice("a")))


def test_nulls_for_optional_properties_are_taken_out_of_strict_replies():
  (reply,) = read(whole(choice('{"met": null}')), schema=BOUNDED)
  assert reply.text == "{}"
  (reply,) = read(whole(choice('{"met": null}')), schema=PLAIN)
  assert reply.text == '{"met": null}'


@pytest.mark.parametrize(
  ("body", "reason"),
  [
    (b"<!DOCTYPE html><html>", "HTML page"),
    (b"  <html>", "HTML page"),
    (b'{"choices": [', "no whole JSON"),
    (b"[1]", "no whole JSON"),
    (b"", "no whole JSON"),
    (b"\xff\xfe\xff", "no whole JSON"),
    (b"[" * 100000, "no whole JSON"),
  ],
)
def test_bodies_that_are_no_object(body, reason):
  with pytest.raises(BadReply, match=reason):
    read_body(body)
