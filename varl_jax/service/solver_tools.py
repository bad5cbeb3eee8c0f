"""The solver's tools: each call ends in a result that the solver is shown.

`clinical_search` reads the solver-search collection and has a frozen summarizer
make one brief of the hits; `web_search` gives results word for word, without a
model in between (spec section 9). A call that fails ends in a typed result, not
in an error: only a model that no later call could reach ends the run.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from varl_jax.llm.chat import ChatError
from varl_jax.llm.together import together
from varl_jax.llm.tool_calls import failed
from varl_jax.retrieval.collection import SOLVER_SEARCH
from varl_jax.retrieval.passage import Hit, Index, RetrievalError
from varl_jax.retrieval.web_engines import WebResult
from varl_jax.retrieval.web_search import result_blocks
from varl_jax.roles.summarizer import Summarizer
from varl_jax.service.calls import attempt
from varl_jax.types import ToolCall, ToolResult, ToolSpec

CLINICAL_SEARCH: Final = ToolSpec(
  name="clinical_search",
  description=(
    "Searches clinical reference works (drug labels, diagnosis codes, patient"
    " and clinician references, abstracts) and returns a short brief with its"
    " sources. Ask one precise question a call."
  ),
  arguments={"query": "What to look for, in plain clinical words."},
)
WEB_SEARCH: Final = ToolSpec(
  name="web_search",
  description=(
    "Searches the web and returns the titles, addresses and excerpts of the"
    " first pages found."
  ),
  arguments={"query": "What to look for, as typed into a search engine."},
)
NOTHING: Final = "Nothing was found."
# Longest passage that the summarizer reads, in characters.
_PASSAGE: Final = 2000
_CUT: Final = " [...]"


class Tool(Protocol):
  """A tool."""

  async def run(self, call: ToolCall) -> ToolResult:
    """Runs a call.

    Raises:
      ChatError, RetrievalError: it gave no result.
    """
    ...


class WebSearcher(Protocol):
  """`EngineSearch` or `RecordedSearch`."""

  async def search(self, query: str, count: int) -> list[WebResult]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClinicalSearch:
  """An index and the summarizer of its hits.

  Attributes:
    index: to search.
    summarizer: makes one brief of the hits.
    passages: hits a search.
    seed: of the run.
    sources: searched, None for all of the index.
  """

  index: Index
  summarizer: Summarizer
  passages: int
  seed: int
  sources: Collection[str] | None = SOLVER_SEARCH

  async def run(self, call: ToolCall) -> ToolResult:
    """See `Tool`."""
    query = call.arguments["query"]
    hits = await asyncio.to_thread(
      self.index.search, query, self.passages, sources=self.sources
    )
    if not hits:
      return ToolResult(text=NOTHING)
    brief = await self.summarizer.summarize(
      query=query,
      hits="\n\n".join(map(_passage, hits)),
      op=call.op,
      seed=self.seed,
    )
    return ToolResult(text=brief)


def _passage(hit: Hit) -> str:
  found = hit.passage
  text = found.text
  if len(text) > _PASSAGE:
    text = text[:_PASSAGE].rsplit(None, 1)[0] + _CUT
  return f"[{found.passage_id}] {found.title}\n{text}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebSearch:
  """Results of a search service, word for word."""

  searcher: WebSearcher
  results: int

  async def run(self, call: ToolCall) -> ToolResult:
    """See `Tool`."""
    found = await self.searcher.search(call.arguments["query"], self.results)
    return ToolResult(text=result_blocks(found) or NOTHING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolRunner:
  """Runs the calls of a round together.

  Attributes:
    tools: by name.
    timeout_s: of one call.
    concurrency: most calls at a time.
    notify: told, once each, why calls failed.
  """

  tools: Mapping[str, Tool]
  timeout_s: float
  concurrency: int = 32
  notify: Callable[[str], None] = lambda sentence: None
  _told: set[str] = dataclasses.field(default_factory=set, repr=False)

  async def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """One result a call, in order.

    Raises:
      ServiceFailure: the summarizer's model is of no more use.
    """
    gate = asyncio.Semaphore(self.concurrency)
    return list(await together(self._one(call, gate) for call in calls))

  async def _one(self, call: ToolCall, gate: asyncio.Semaphore) -> ToolResult:
    tool = self.tools.get(call.name)
    if tool is None:
      return failed("unknown_tool", f"there is no tool {call.name} here")
    try:
      async with gate:
        found = await attempt(asyncio.wait_for(tool.run(call), self.timeout_s))
    except TimeoutError:
      return failed("timeout", f"{call.name} took too long")
    except RetrievalError as error:
      self._tell(str(error))
      return failed("unavailable", f"{call.name} cannot search now")
    if isinstance(found, ChatError):
      if found.kind == "timeout":
        return failed("timeout", f"{call.name} took too long")
      if found.kind == "refusal":
        return failed("refused", "no summary of this was given")
      self._tell(f"A search could not be summarized: {found}")
      return failed("unavailable", f"{call.name} gave no summary")
    return found

  def _tell(self, sentence: str) -> None:
    if sentence not in self._told:
      self._told.add(sentence)
      self.notify(sentence)
