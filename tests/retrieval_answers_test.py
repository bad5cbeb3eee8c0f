"""Inference-time retrieval: what is looked up, fused, and shown."""

import asyncio
import contextlib
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.benchmarks import answering
from varl_jax.benchmarks.answering import Decoding
from varl_jax.benchmarks.protocol import BenchmarkError, BenchmarkTask
from varl_jax.config import RetrievalConfig
from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatError
from varl_jax.retrieval.opening import open_writer
from varl_jax.retrieval.passage import Passage
from varl_jax.retrieval_answers import (
  PASSAGE_CHARS,
  fused,
  register,
  request_text,
)
from varl_jax.types import Message

LONG = " It is described here at some length, so that it is worth showing."


def page(name, text, source="pubmed"):
  return Passage(
    passage_id=f"{source}:{name}", source=source, title=name, text=text
  )


PAGES = (
  page("gout", "Gout comes from uric acid." + LONG),
  page("gout_copy", "Gout comes from uric acid." + LONG),
  page("gout_short", "Gout."),
  page("flu", "Influenza is a virus of the airways." + LONG),
  page("long", "Scurvy lacks vitamin C. " + "word " * 400),
  page("other", "Gout in another collection." + LONG, source="pubmedqa"),
)
TASK = BenchmarkTask(
  task_id="t",
  prompt=(
    Message(role="user", content="What is gout?"),
    Message(role="assistant", content="A disease."),
    Message(role="user", content="What causes it, uric acid?"),
  ),
  criteria=(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("index")
  with contextlib.closing(open_writer(path)) as writer:
    writer.put(list(PAGES))
    writer.publish()
  return path


def answer(method, folder, chat, *, task=TASK):
  with contextlib.ExitStack() as stack:
    register(RetrievalConfig(index=str(folder)), "clinical", stack=stack)
    made = answering.find_method(method)(
      chat, Decoding(temperature=0.0, system="Be good.")
    )
    assert made.describe()["method"] == method
    found = asyncio.run(made.answer(task, sample=0))
  return found


def queries(*texts):
  return json.dumps({"queries": list(texts)})


def shown(chat, name="REFERENCES", call=-1):
  return dict(read_blocks(chat.requests[call].messages[-1].content)).get(name)


def test_medrag_searches_once_by_the_request(folder):
  chat = FakeChat(["Uric acid."])
  found = answer("medrag", folder, chat)
  assert found.answer == "Uric acid."
  (request,) = chat.requests
  assert [m.role for m in request.messages] == [
    "system",
    "user",
    "assistant",
    "user",
  ]
  assert request.messages[-1].content.startswith("What causes it, uric acid?")
  assert request.messages[1].content == "What is gout?"
  text = shown(chat)
  assert text is not None and text.startswith("[1] gout")
  assert text.count("Gout comes from uric acid.") == 1
  assert "gout_short" not in text and "another collection" not in text
  assert request.temperature == 0.0


def test_nothing_found_adds_nothing(folder):
  chat = FakeChat(["So."])
  task = BenchmarkTask(
    task_id="t", prompt=(Message(role="user", content="zzz"),), criteria=()
  )
  answer("medrag", folder, chat, task=task)
  assert chat.requests[0].messages[-1].content == "zzz"


def test_a_long_passage_is_cut_visibly(folder):
  chat = FakeChat(["So."])
  task = BenchmarkTask(
    task_id="t", prompt=(Message(role="user", content="scurvy"),), criteria=()
  )
  answer("medrag", folder, chat, task=task)
  text = shown(chat)
  assert text is not None and text.endswith("[...]")
  cut = text.partition("long\n")[2]
  assert len(cut) == PASSAGE_CHARS


def test_rag_fusion_searches_by_written_queries_too(folder):
  chat = FakeChat(
    [queries("a", "a", "b"), "no", queries("influenza", "scurvy", "a"), "Yes."]
  )
  found = answer("rag_fusion", folder, chat)
  assert found.answer == "Yes."
  text = shown(chat)
  assert text is not None
  assert all(word in text for word in ("Gout", "Influenza", "Scurvy"))
  names = [request.operation for request in chat.requests]
  assert len(set(names)) == len(names) == 4


def test_a_planner_that_never_writes_what_is_asked_fails_the_call(folder):
  chat = FakeChat([queries("a")] * 3)
  with pytest.raises(ChatError) as caught:
    answer("rag_fusion", folder, chat)
  assert caught.value.kind == "malformed" and len(chat.requests) == 3


def test_imedrag_asks_on_from_what_it_knows(folder):
  replies = []
  for number in range(3):
    replies += [queries(f"gout {number}", f"influenza {number}"), "A", "B"]
  chat = FakeChat([*replies, "Done."])
  found = answer("imedrag", folder, chat)
  questions = [shown(chat, "QUESTION", call) for call in (1, 2)]
  assert sorted(questions) == ["gout 0", "influenza 0"]
  assert found.answer == "Done."
  assert len(chat.requests) == 10
  assert shown(chat, "KNOWN", 0) is None
  known = shown(chat, "KNOWN", 6)
  assert known is not None and known.count("Question:") == 4
  last = shown(chat, "LOOKED UP")
  assert last is not None and last.count("Answer:") == 6
  assert "Question: gout 2\nAnswer: " in last


def test_ranks_are_fused_from_one_and_ties_go_by_name():
  a, b, c = (page(name, name * 90) for name in "abc")
  assert fused([[a, b], [b, a]]) == [a, b]
  assert fused([[a, b, c], [c]]) == [c, a, b]
  copy = page("z", "a" * 90)
  assert fused([[a, b], [copy]]) == [a, b]


def test_the_query_is_the_end_of_what_the_user_said():
  task = BenchmarkTask(
    task_id="t",
    prompt=(
      Message(role="user", content="x" * 5000),
      Message(role="assistant", content="no"),
      Message(role="user", content="end"),
    ),
    criteria=(),
  )
  text = request_text(task)
  assert len(text) == 4000 and text.endswith("x\nend")


def test_without_an_index_the_methods_are_refused():
  with contextlib.ExitStack() as stack:
    register(RetrievalConfig(), "clinical", stack=stack)
    with pytest.raises(BenchmarkError, match=r"retrieval\.index"):
      answering.find_method("medrag")
  with contextlib.ExitStack() as stack, pytest.raises(BenchmarkError):
    register(RetrievalConfig(index="/nowhere"), "clinical", stack=stack)
