"""Tools as the solver meets them: every failure is a result it is shown."""

import asyncio
import contextlib
import dataclasses
import json

import pytest

from tests.roles.fake_chat import FakeChat
from tests.service import hosts
from varl_jax.llm.chat import ChatError
from varl_jax.prompts.loader import load_prompts
from varl_jax.retrieval.opening import open_index, open_writer
from varl_jax.retrieval.passage import Passage, RetrievalError
from varl_jax.retrieval.web_engines import WebResult
from varl_jax.roles.summarizer import Summarizer
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.hosting import HostedService
from varl_jax.service.solver_tools import (
  NOTHING,
  ClinicalSearch,
  ToolRunner,
  WebSearch,
)
from varl_jax.types import ToolCall, ToolResult

BRIEF = json.dumps({"brief": "Uric acid crystals [pubmed:gout]."})


def call(name="clinical_search", query="gout", op="tool/1/t/0/0"):
  return ToolCall(op=op, name=name, arguments={"query": query})


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  folder = tmp_path_factory.mktemp("index")
  with contextlib.closing(open_writer(folder)) as writer:
    writer.put(
      [
        Passage(
          passage_id=f"{source}:{name}",
          source=source,
          title=name,
          text=text,
        )
        for source, name, text in (
          ("pubmed", "gout", "Gout comes from crystals. " + "word " * 600),
          ("pubmedqa", "gout2", "Gout is asked about here."),
        )
      ]
    )
    writer.publish()
  with contextlib.closing(open_index(folder)) as made:
    yield made


def clinical(index, *replies):
  chat = FakeChat(replies)
  summarizer = Summarizer(chat=chat, prompts=load_prompts("clinical"))
  tool = ClinicalSearch(index=index, summarizer=summarizer, passages=4, seed=0)
  return tool, chat


def run(tools, *calls, timeout_s=5.0, **more):
  runner = ToolRunner(tools=tools, timeout_s=timeout_s, **more)
  return asyncio.run(runner.run(calls))


def test_hits_of_the_solvers_collection_become_one_brief(index):
  tool, chat = clinical(index, BRIEF)
  (found,) = run({"clinical_search": tool}, call())
  assert found == ToolResult(text="Uric acid crystals [pubmed:gout].")
  blocks = chat.blocks()
  assert blocks["QUERY"] == "gout"
  assert blocks["HITS"].startswith("[pubmed:gout] gout\nGout comes from")
  assert blocks["HITS"].endswith("[...]") and len(blocks["HITS"]) < 2100
  assert "pubmedqa" not in blocks["HITS"]
  assert chat.requests[0].operation == "tool/1/t/0/0"


def test_without_a_hit_nobody_is_asked(index):
  tool, chat = clinical(index)
  (found,) = run({"clinical_search": tool}, call(query="zzz"))
  assert found == ToolResult(text=NOTHING) and not chat.requests


@pytest.mark.parametrize(
  ("kind", "failure"),
  [
    ("timeout", "timeout"),
    ("refusal", "refused"),
    ("unavailable", "unavailable"),
    ("length", "unavailable"),
  ],
)
def test_a_summarizer_that_fails_is_a_result(index, kind, failure):
  tool, _ = clinical(index, ChatError(kind, "Not now."))
  (found,) = run({"clinical_search": tool}, call())
  assert found.failure == failure and "Not now" not in found.text


def test_a_summarizer_that_is_of_no_more_use_ends_the_run(index):
  tool, _ = clinical(index, ChatError("quota", "Nothing left."))
  with pytest.raises(ServiceFailure, match="quota"):
    run({"clinical_search": tool}, call())


@dataclasses.dataclass
class Searcher:
  """Finds one page, fails, or hangs, by the query."""

  async def search(self, query, count):
    if query == "away":
      raise RetrievalError("The search service x is away.")
    if query == "slow":
      await asyncio.Event().wait()
    return [WebResult(title=query, url="https://a", text="t")] * count


def web(*queries, **more):
  tools = {"web_search": WebSearch(searcher=Searcher(), results=2)}
  return run(tools, *(call("web_search", q) for q in queries), **more)


def test_results_keep_the_order_of_calls_and_none_spoils_another():
  told = []
  found = web(
    "a", "away", "slow", "b", "away", timeout_s=0.2, notify=told.append
  )
  assert [r.failure for r in found] == [
    "",
    "unavailable",
    "timeout",
    "",
    "unavailable",
  ]
  assert found[0].text == "[1] a\nhttps://a\nt\n\n[2] a\nhttps://a\nt"
  assert told == ["The search service x is away."]


def test_a_tool_that_is_not_there_is_a_result():
  (found,) = run({}, call("other"))
  assert found.failure == "unknown_tool"


@pytest.mark.parametrize("kind", ["thread", "http"])
def test_a_service_runs_tools_in_both(kind, tmp_path):
  tools = ToolRunner(
    tools={"web_search": WebSearch(searcher=Searcher(), results=1)},
    timeout_s=5.0,
  )
  with hosts.opened(kind, tmp_path / "s.sqlite", tools=tools) as service:
    found = service.run_tools([call("web_search", "é"), call("x")])
  assert found[0] == ToolResult(text="[1] é\nhttps://a\nt")
  assert found[1].failure == "unknown_tool"


def test_a_service_without_tools_says_so(tmp_path):
  with hosts.opened("thread", tmp_path / "s.sqlite") as service:
    assert isinstance(service, HostedService)
    with pytest.raises(ServiceFailure, match=r"tools\.names"):
      service.run_tools([call()])
