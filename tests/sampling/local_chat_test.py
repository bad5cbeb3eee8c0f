"""The local model as the roles see it; the protocol is tested by its client."""

import asyncio

import pytest

from tests.chat_api_test import SCHEMA, make_model
from tests.sampling.scripted_decoder import ScriptedDecoder, byte_tokenizer
from varl_jax.llm.chat import ChatError, ChatModel, ChatRequest
from varl_jax.llm.json_reply import parse_json_reply
from varl_jax.sampling.local_chat import LocalChat
from varl_jax.types import Message


@pytest.fixture(scope="module")
def tokenizer():
  return byte_tokenizer()


@pytest.fixture
def model(tokenizer):
  made = make_model(tokenizer, ScriptedDecoder(tokenizer, "An answer."))
  yield made
  made.close()


def request(content="Why?", **changes):
  options = dict(
    role="judge",
    messages=(Message(role="user", content=content),),
    operation="op",
    seed=3,
    max_tokens=100,
  )
  return ChatRequest(**{**options, **changes})


def test_a_role_is_answered(model):
  chat = LocalChat(model)
  assert isinstance(chat, ChatModel)
  found = asyncio.run(chat.complete(request()))
  assert (found.text, found.finish, found.model) == (
    "An answer.",
    "stop",
    "tiny",
  )
  assert found.reply_tokens > 1 and found.mode == "text"


def test_a_schema_is_held_to_or_left_to_the_reader(model):
  found = asyncio.run(LocalChat(model).complete(request(schema=SCHEMA)))
  assert found.mode == "json_schema"
  assert parse_json_reply(found.text, SCHEMA, finish=found.finish)
  free = LocalChat(model, hold_schema=False)
  found = asyncio.run(free.complete(request(schema=SCHEMA)))
  assert (found.text, found.mode) == ("An answer.", "text")


def test_samples_are_drawn_with_their_own_seeds(model):
  chat, decoder = LocalChat(model), model._decoder
  found = asyncio.run(
    chat.complete_samples([request(seed=7), request(seed=2**40 + 5)])
  )
  assert [reply.text for reply in found] == ["An answer."] * 2
  assert decoder.seeds == [7, 5]


def test_a_reply_that_is_cut_says_so(model):
  found = asyncio.run(LocalChat(model).complete(request(max_tokens=2)))
  assert found.finish == "length" and found.reply_tokens == 2


def test_what_cannot_be_asked_is_a_typed_failure(model):
  chat = LocalChat(model)
  for asked, kind in (
    (request("x" * 300), "length"),
    (request(images=("data:image/png;base64,",)), "rejected"),
  ):
    with pytest.raises(ChatError) as caught:
      asyncio.run(chat.complete(asked))
    assert caught.value.kind == kind
  model.close()
  with pytest.raises(ChatError) as caught:
    asyncio.run(chat.complete(request()))
  assert caught.value.kind == "unavailable"


def test_calls_are_counted_by_role(model):
  chat = LocalChat(model)
  asyncio.run(chat.complete(request()))
  asyncio.run(chat.complete(request(role="referee")))
  counts = chat.usage()
  assert counts["judge"]["calls"] == counts["referee"]["calls"] == 1
  assert counts["judge"]["reply_tokens"] > 1


def test_many_loops_may_ask_at_once(model):
  """The service's loop and the trainer's are two."""
  import threading

  texts = []

  def ask():
    texts.append(asyncio.run(LocalChat(model).complete(request())).text)

  threads = [threading.Thread(target=ask) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert texts == ["An answer."] * 8
