"""The OpenAI protocol, asked by its official client over a real socket."""

import asyncio
import contextlib
import json
import threading

import httpx
import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sampling.scripted_decoder import ScriptedDecoder, byte_tokenizer
from varl_jax.chat_api import make_app
from varl_jax.sampling.constrained import Grammars
from varl_jax.sampling.local_chat import LocalModel
from varl_jax.service import http_process

TEXT = "Tie the knot — “twice” — and stop.\nThen rest."
SCHEMA = {
  "type": "object",
  "properties": {
    "explanation": {"type": "string", "maxLength": 8},
    "criteria_met": {"type": "boolean"},
  },
  "required": ["explanation", "criteria_met"],
  "additionalProperties": False,
}


def make_model(tokenizer, decoder, **changes):
  def grammars():
    return Grammars(
      tokenizer.backend.backend_tokenizer.to_str(),
      vocab_size=tokenizer.vocab_size,
      stop_ids=tokenizer.stop_ids,
    )

  options = dict(max_prompt=200, max_new=120, grammars=grammars) | changes
  return LocalModel(
    decoder=decoder, tokenizer=tokenizer, name="tiny", **options
  )


@contextlib.contextmanager
def serving(app):
  """The address of the application, served in a thread."""
  ready = threading.Event()
  with http_process.listen("127.0.0.1", 0) as listening:
    server = http_process.make_server(app, ready=ready.set)
    thread = threading.Thread(
      target=server.run, kwargs={"sockets": [listening]}
    )
    thread.start()
    try:
      assert ready.wait(20)
      yield http_process.address(listening)
    finally:
      server.should_exit = True
      thread.join()


@pytest.fixture(scope="module")
def tokenizer():
  return byte_tokenizer()


@pytest.fixture(scope="module")
def decoder(tokenizer):
  return ScriptedDecoder(tokenizer, TEXT)


async def encode(texts):
  return np.array([[len(text), 1.0] for text in texts], np.float32)


@pytest.fixture(scope="module")
def address(tokenizer, decoder):
  model = make_model(tokenizer, decoder)
  app = make_app({"tiny": model}, encoders={"small-encoder": encode})
  with serving(app) as found:
    yield found
  model.close()


@pytest.fixture(scope="module")
def client(address):
  with openai.OpenAI(
    base_url=f"{address}/v1", api_key="none", max_retries=0
  ) as made:
    yield made


def ask(client, **changes):
  options = dict(
    model="tiny", messages=[{"role": "user", "content": "How?"}], seed=1
  )
  return client.chat.completions.create(**{**options, **changes})


def test_a_chat(client, tokenizer):
  found = ask(client)
  assert found.object == "chat.completion"
  assert found.choices[0].message.content == TEXT
  assert found.choices[0].finish_reason == "stop"
  prompt = tokenizer.encode_chat(
    [type("T", (), {"role": "user", "content": "How?"})]
  )
  assert found.usage.prompt_tokens == len(prompt)
  # The stop token is drawn and paid for.
  assert found.usage.completion_tokens == len(tokenizer.encode(TEXT)) + 1


def test_a_stream_grows_to_the_same_text(client):
  chunks = list(
    ask(client, stream=True, stream_options={"include_usage": True})
  )
  text = "".join(c.choices[0].delta.content for c in chunks if c.choices)
  assert text == TEXT
  assert all("\ufffd" not in str(c) for c in chunks)
  assert chunks[0].choices[0].delta.role == "assistant"
  assert chunks[-2].choices[0].finish_reason == "stop"
  assert chunks[-1].usage.completion_tokens > 0
  assert len({c.id for c in chunks}) == 1


def test_several_samples(client, decoder):
  before = decoder.prompts_read
  found = ask(client, n=3, seed=5)
  assert [c.index for c in found.choices] == [0, 1, 2]
  assert decoder.prompts_read == before + 1
  assert decoder.seeds[-3:] == [5, 6, 7]
  streamed = {}
  for chunk in ask(client, n=3, seed=5, stream=True):
    for choice in chunk.choices:
      streamed.setdefault(choice.index, []).append(choice.delta.content)
  assert ["".join(streamed[i]) for i in range(3)] == [TEXT] * 3


def test_logprobs_belong_to_the_tokens_of_the_text(client):
  found = ask(client, logprobs=True).choices[0].logprobs.content
  whole = [word for word in found if word.bytes is not None]
  assert all(bytes(word.bytes).decode() == word.token for word in whole)
  plain = "".join(letter for letter in TEXT if letter.isascii())
  assert "".join(word.token for word in whole) == plain
  assert all(word.logprob == -0.5 for word in found)
  assert ask(client).choices[0].logprobs is None


@pytest.mark.parametrize(
  ("stop", "expected"),
  [
    ("knot", "Tie the "),
    (["stop.\nThen", "rest"], "Tie the knot — “twice” — and "),
    ("no such", TEXT),
    ("rest.x", TEXT),
  ],
)
def test_stop_texts(client, decoder, stop, expected):
  found = ask(client, stop=stop).choices[0]
  assert (found.message.content, found.finish_reason) == (expected, "stop")
  chunks = ask(client, stop=stop, stream=True)
  assert "".join(c.choices[0].delta.content for c in chunks) == expected
  assert not decoder.jobs


def test_a_limit(client, tokenizer):
  found = ask(client, max_tokens=3)
  assert found.choices[0].finish_reason == "length"
  assert found.choices[0].message.content == tokenizer.decode(
    tokenizer.encode(TEXT)[:3]
  )
  assert found.usage.completion_tokens == 3


def test_a_reply_by_schema(client):
  form = {"name": "verdict", "strict": True, "schema": SCHEMA}
  found = ask(
    client,
    n=4,
    seed=3,
    response_format={"type": "json_schema", "json_schema": form},
  )
  for choice in found.choices:
    value = json.loads(choice.message.content)
    assert set(value) == {"explanation", "criteria_met"}
    assert choice.finish_reason == "stop"


def test_any_object(client):
  found = ask(client, response_format={"type": "json_object"}, seed=2)
  if found.choices[0].finish_reason == "stop":
    assert isinstance(json.loads(found.choices[0].message.content), dict)


def test_models_and_vectors(client):
  assert [m.id for m in client.models.list()] == ["tiny", "small-encoder"]
  assert client.models.retrieve("tiny").id == "tiny"
  found = client.embeddings.create(
    model="small-encoder", input=["abc", "de"], encoding_format="float"
  )
  assert [row.embedding for row in found.data] == [[3.0, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize(
  ("changes", "param", "told"),
  [
    ({"top_p": 0.9}, "top_p", "not offered"),
    ({"presence_penalty": 1}, "presence_penalty", "not offered"),
    ({"top_logprobs": 3, "logprobs": True}, "top_logprobs", "not offered"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"messages": []}, "messages", "at least 1"),
    ({"n": 1000}, "n", "less than or equal to 64"),
    (
      {"messages": [{"role": "user", "content": "x" * 500}]},
      "messages",
      "200 is the most",
    ),
    (
      {
        "response_format": {
          "type": "json_schema",
          "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
        }
      },
      "response_format",
      "cannot be held to",
    ),
    (
      {
        "tools": [
          {"type": "function", "function": {"name": "f", "parameters": {}}}
        ]
      },
      "tools",
      "not offered",
    ),
  ],
)
def test_what_cannot_be_answered_is_said(client, changes, param, told):
  with pytest.raises(openai.BadRequestError) as caught:
    ask(client, **changes)
  assert caught.value.param == param
  assert caught.value.type == "invalid_request_error"
  assert told in caught.value.message
  # A stream is refused with a status too.
  with pytest.raises(openai.BadRequestError):
    ask(client, **changes, stream=True)


def test_an_unknown_model(client):
  with pytest.raises(openai.NotFoundError) as caught:
    ask(client, model="gpt-9")
  assert caught.value.code == "model_not_found"
  assert "tiny" in caught.value.message


def test_other_machines_and_tokens(tokenizer, decoder, address):
  found = httpx.get(f"{address}/v1/models", headers={"host": "evil.example"})
  assert found.status_code == 401
  assert found.json()["error"]["type"] == "authentication_error"
  model = make_model(tokenizer, ScriptedDecoder(tokenizer, "a"))
  with serving(make_app({"tiny": model}, token="secret")) as guarded:
    url = f"{guarded}/v1"
    with openai.OpenAI(base_url=url, api_key="secret") as right:
      assert ask(right).choices[0].message.content == "a"
    with (
      openai.OpenAI(base_url=url, api_key="wrong") as wrong,
      pytest.raises(openai.AuthenticationError),
    ):
      ask(wrong)
  model.close()


def test_a_crowd_is_told_to_come_back(tokenizer):
  model = make_model(
    tokenizer, ScriptedDecoder(tokenizer, TEXT), most_waiting=2
  )
  with serving(make_app({"tiny": model})) as found:
    body = {
      "model": "tiny",
      "n": 3,
      "messages": [{"role": "user", "content": "x"}],
    }
    reply = httpx.post(f"{found}/v1/chat/completions", json=body)
  model.close()
  assert reply.status_code == 503 and reply.headers["retry-after"]
  assert reply.json()["error"]["code"] == "overloaded"


def test_a_model_that_fails_says_so_to_all_that_wait(tokenizer):
  decoder = ScriptedDecoder(tokenizer, TEXT, fails_after=4)
  model = make_model(tokenizer, decoder)
  body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
  with serving(make_app({"tiny": model})) as found:
    url = f"{found}/v1/chat/completions"
    reply = httpx.post(url, json=body)
    later = httpx.post(url, json=body)
    late = httpx.post(url, json=body | {"stream": True})
  model.close()
  assert reply.status_code == 500
  assert "device lost" in reply.json()["error"]["message"]
  assert later.status_code == 503 and late.status_code == 503


def test_a_client_that_leaves_frees_its_place(address, decoder):
  async def leave():
    async with httpx.AsyncClient() as client:
      async with client.stream(
        "POST",
        f"{address}/v1/chat/completions",
        json={
          "model": "tiny",
          "stream": True,
          "messages": [{"role": "user", "content": "x"}],
        },
      ) as stream:
        async for _ in stream.aiter_lines():
          break

  decoder.paused.set()
  try:
    asyncio.run(leave())
  finally:
    decoder.paused.clear()
  for _ in range(200):
    if not decoder.jobs:
      return
    threading.Event().wait(0.05)
  raise AssertionError("The place is still taken.")


JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats()
  | st.text(st.characters(codec=None, exclude_categories=()), max_size=9),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3)
  ),
  max_leaves=6,
)
FIELDS = (
  "model messages temperature max_tokens n seed stop stream response_format"
  " logprobs stream_options chat_template_kwargs"
).split()


@pytest.mark.parametrize("text", ["\ud800", "\x00", "<end><turn>", "\udfff<"])
def test_odd_letters_are_text(address, text):
  body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
  more = {"max_tokens": 3, "stop": [text]}
  reply = httpx.post(
    f"{address}/v1/chat/completions",
    content=json.dumps(body | more),
    headers={"content-type": "application/json"},
  )
  assert reply.status_code in (200, 400), reply.text


@settings(
  max_examples=150,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
  schema=st.none() | JSON,
)
def test_nothing_that_is_sent_breaks_the_server(address, changes, schema):
  body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
  if schema is not None:
    form = {"name": "x", "schema": schema}
    body["response_format"] = {"type": "json_schema", "json_schema": form}
  content = json.dumps(body | {"max_tokens": 5} | changes)
  reply = httpx.post(
    f"{address}/v1/chat/completions",
    content=content,
    headers={"content-type": "application/json"},
  )
  assert reply.status_code in (200, 400, 404), reply.text
  if reply.status_code != 200:
    assert reply.json()["error"]["message"]
