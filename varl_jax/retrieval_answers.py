"""Inference-time retrieval on a frozen model, as answerers of the evaluator.

| method | what is looked up |
|---|---|
| medrag | the request |
| rag_fusion | the request and 3 written queries, fused by reciprocal ranks |
| imedrag | 3 rounds of 2 follow-up queries, each answered from what it finds |

The request is the end of the user's turns. Passages go into the last turn; the
answer is then drawn as without a method. Departures: a planner replies with an
object of queries, since strict schemas know no bare list; an index without
vectors is searched lexically; for imedrag what was asked and answered goes into
the last turn, and no passage of its own.
"""

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks import answering
from varl_jax.benchmarks.answering import Answer, Decoding, PlainAnswerer
from varl_jax.benchmarks.protocol import BenchmarkError, BenchmarkTask
from varl_jax.config import RetrievalConfig
from varl_jax.llm.blocks import block
from varl_jax.llm.chat import ChatError, ChatModel, ChatReply, ChatRequest
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.seeds import derive_seed
from varl_jax.llm.together import together
from varl_jax.prompts.loader import load_prompts
from varl_jax.retrieval.collection import SOLVER_SEARCH
from varl_jax.retrieval.opening import make_embedder, open_index
from varl_jax.retrieval.passage import Index, Passage, RetrievalError
from varl_jax.roles.calls import user_message
from varl_jax.types import Message

PLANNER: Final = "planner"
QUERY_CHARS: Final = 4000
PASSAGES: Final = 8
PASSAGE_CHARS: Final = 1200
LEAST_CHARS: Final = 80
FUSED_QUERIES: Final = 3
FUSION_OFFSET: Final = 60
ROUNDS: Final = 3
FOLLOW_UPS: Final = 2
ATTEMPTS: Final = 3
_CUT: Final = " [...]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class References:
  """Searches passages that are fit to be shown.

  Attributes:
    index: to search.
    sources: of it, None for all.
  """

  index: Index
  sources: Collection[str] | None = SOLVER_SEARCH

  async def find(self, query: str) -> list[Passage]:
    """At most `PASSAGES`, the best first; short ones and copies left out.

    Raises:
      ChatError: the index cannot be searched, fatal.
    """
    try:
      hits = await asyncio.to_thread(
        self.index.search, query, 3 * PASSAGES, sources=self.sources
      )
    except RetrievalError as error:
      raise ChatError("rejected", f"The index fails: {error}") from error
    kept: dict[str, Passage] = {}
    for hit in hits:
      text = hit.passage.text.strip()
      if len(text) >= LEAST_CHARS:
        kept.setdefault(text, hit.passage)
    return list(kept.values())[:PASSAGES]


def fused(rankings: Sequence[Sequence[Passage]]) -> list[Passage]:
  """Passages by the sum of 1 / (60 + rank), rank from 1, ties by id."""
  scores: dict[str, float] = {}
  known: dict[str, Passage] = {}
  for ranking in rankings:
    for rank, passage in enumerate(ranking, 1):
      name = passage.passage_id
      known[name] = passage
      scores[name] = scores.get(name, 0.0) + 1 / (FUSION_OFFSET + rank)
  order = sorted(scores, key=lambda name: (-scores[name], name))
  kept: dict[str, Passage] = {}
  for name in order:
    kept.setdefault(known[name].text.strip(), known[name])
  return list(kept.values())[:PASSAGES]


def references_text(passages: Sequence[Passage]) -> str:
  """Passages under their titles, long ones cut visibly."""
  parts = []
  for number, passage in enumerate(passages, 1):
    text = passage.text.strip()
    if len(text) > PASSAGE_CHARS:
      text = text[: PASSAGE_CHARS - len(_CUT)] + _CUT
    parts.append(f"[{number}] {passage.title}\n{text}")
  return "\n\n".join(parts)


def request_text(task: BenchmarkTask) -> str:
  """The end of what the user said."""
  said = [turn.content for turn in task.prompt if turn.role == "user"]
  return "\n".join(said)[-QUERY_CHARS:]


def with_block(task: BenchmarkTask, name: str, text: str) -> BenchmarkTask:
  """The task with a block at the end of its last user turn; "" adds none."""
  if not text:
    return task
  turns = list(task.prompt)
  last = max(i for i, turn in enumerate(turns) if turn.role == "user")
  content = f"{turns[last].content}\n\n{block(name, text)}"
  turns[last] = dataclasses.replace(turns[last], content=content)
  return dataclasses.replace(task, prompt=tuple(turns))


@dataclasses.dataclass(kw_only=True)
class Calls:
  """The calls before an answer, and what they cost.

  Attributes:
    chat: the frozen model.
    decoding: how it is drawn from.
    planner: the planner's system message.
    name: of the answer, begin of the names of operations.
  """

  chat: ChatModel
  decoding: Decoding
  planner: Message
  name: str
  prompt_tokens: int = 0
  reply_tokens: int = 0

  async def plan(
    self, count: int, *, request: str, op: str, known: str = ""
  ) -> list[str]:
    """Exactly `count` different queries.

    Raises:
      ChatError: `malformed` after `ATTEMPTS` replies, or the call failed.
    """
    form = _form(count)
    blocks = {"REQUEST": request, "KNOWN": known or None, "COUNT": str(count)}
    messages = (self.planner, user_message(blocks))
    failure = None
    for attempt in range(ATTEMPTS):
      reply = await self._ask(
        messages, op=f"{op}/{attempt}", role=PLANNER, form=form
      )
      try:
        found = form.parse(reply.text, finish=reply.finish)["queries"]
        queries = list(dict.fromkeys(query.strip() for query in found))
        if len(queries) == count and all(queries):
          return queries
        failure = ChatError("malformed", f"Not {count} different queries.")
      except ChatError as error:
        if error.kind != "malformed":
          raise
        failure = error
    assert failure is not None
    raise failure

  async def answer(self, question: str, references: str, *, op: str) -> str:
    """What the model says to a question over its passages, "" for nothing."""
    system = self.decoding.system
    before = (Message(role="system", content=system),) if system else ()
    shown = {"QUESTION": question, "REFERENCES": references or None}
    reply = await self._ask(
      (*before, user_message(shown)), op=op, role=answering.ROLE, form=None
    )
    return answering.answer_of(reply) or ""

  async def _ask(
    self,
    messages: Sequence[Message],
    *,
    op: str,
    role: str,
    form: ReplyFormat | None,
  ) -> ChatReply:
    operation = f"{self.name}/{op}"
    reply = await self.chat.complete(
      ChatRequest(
        role=role,
        messages=tuple(messages),
        operation=operation,
        seed=derive_seed(self.decoding.seed, operation),
        schema=form.schema if form else None,
        temperature=self.decoding.temperature,
      )
    )
    self.prompt_tokens += reply.prompt_tokens
    self.reply_tokens += reply.reply_tokens
    return reply


def _form(count: int) -> ReplyFormat:
  text = {"type": "string", "minLength": 1, "maxLength": 1000}
  queries = {
    "type": "array",
    "items": text,
    "minItems": count,
    "maxItems": count,
  }
  return ReplyFormat(
    {
      "type": "object",
      "properties": {"queries": queries},
      "required": ["queries"],
      "additionalProperties": False,
    }
  )


async def medrag(
  task: BenchmarkTask, calls: Calls, references: References
) -> BenchmarkTask:
  """One search by the request."""
  found = await references.find(request_text(task))
  return with_block(task, "REFERENCES", references_text(found))


async def rag_fusion(
  task: BenchmarkTask, calls: Calls, references: References
) -> BenchmarkTask:
  """The request and queries written for it, one ranking of all."""
  request = request_text(task)
  queries = await calls.plan(FUSED_QUERIES, request=request, op="queries")
  rankings = await together(references.find(q) for q in (request, *queries))
  return with_block(task, "REFERENCES", references_text(fused(rankings)))


async def imedrag(
  task: BenchmarkTask, calls: Calls, references: References
) -> BenchmarkTask:
  """Rounds of follow-up questions, each answered from its own passages."""
  request, pairs = request_text(task), []

  async def pair(question: str, op: str) -> str:
    found = references_text(await references.find(question))
    answer = await calls.answer(question, found, op=op)
    return f"Question: {question}\nAnswer: {answer}"

  for number in range(ROUNDS):
    questions = await calls.plan(
      FOLLOW_UPS,
      request=request,
      op=f"round{number}",
      known="\n\n".join(pairs),
    )
    pairs += await together(
      pair(question, f"round{number}/question{index}")
      for index, question in enumerate(questions)
    )
  return with_block(task, "LOOKED UP", "\n\n".join(pairs))


PREPARE: Final = {
  "medrag": medrag,
  "rag_fusion": rag_fusion,
  "imedrag": imedrag,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalAnswerer:
  """Looks things up, then answers as `PlainAnswerer` does."""

  method: str
  chat: ChatModel
  decoding: Decoding
  planner: Message
  references: References

  async def answer(self, task: BenchmarkTask, *, sample: int) -> Answer:
    """Answers a task; see `Answerer`."""
    calls = Calls(
      chat=self.chat,
      decoding=self.decoding,
      planner=self.planner,
      name=f"{self.method}/{task.task_id}/{sample}",
    )
    shown = await PREPARE[self.method](task, calls, self.references)
    plain = PlainAnswerer(chat=self.chat, decoding=self.decoding)
    found = await plain.answer(shown, sample=sample)
    return dataclasses.replace(
      found,
      prompt_tokens=found.prompt_tokens + calls.prompt_tokens,
      reply_tokens=found.reply_tokens + calls.reply_tokens,
    )

  def describe(self) -> Mapping[str, Any]:
    """Method, temperature, seed and what was searched."""
    sources = self.references.sources
    return {
      "method": self.method,
      "temperature": self.decoding.temperature,
      "seed": self.decoding.seed,
      "passages": self.references.index.counts(),
      "sources": None if sources is None else sorted(sources),
    }


def register(
  config: RetrievalConfig, domain: str, *, stack: contextlib.ExitStack
) -> None:
  """Enters the methods into `answering.METHODS`, until the stack closes.

  Args:
    config: names the index; without one nothing is entered.
    domain: whose prompts the planner uses.
    stack: closes the index and takes the methods out again.

  Raises:
    BenchmarkError: the index cannot be used.
  """
  if not config.index:
    return
  try:
    index = open_index(
      pathlib.Path(config.index).expanduser(),
      embedder=make_embedder(config.encoder),
      lexical_only=config.lexical_only,
    )
  except RetrievalError as error:
    raise BenchmarkError(f"retrieval.index cannot be used: {error}") from error
  stack.callback(index.close)
  held = set(index.counts()) & set(SOLVER_SEARCH)
  references = References(index=index, sources=SOLVER_SEARCH if held else None)
  planner = load_prompts(domain).system(PLANNER)
  for method in PREPARE:

    def make(
      chat: ChatModel, decoding: Decoding, method: str = method
    ) -> RetrievalAnswerer:
      return RetrievalAnswerer(
        method=method,
        chat=chat,
        decoding=decoding,
        planner=planner,
        references=references,
      )

    answering.METHODS[method] = make
    stack.callback(answering.METHODS.pop, method, None)
