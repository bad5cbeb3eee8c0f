"""The journal of paid calls: a restart is answered from it.

One sqlite file (WAL, synchronous FULL) with a row a finished call. A reply is
handed on only when its row is on the disk. Rows are written in a thread of
their own, all that wait in one transaction, so replies that arrive together
share one sync. Failed calls are not recorded: asking again may succeed.

A row's key is a hash of everything that decides a reply: role, conversation,
model and its settings, sampling parameters, schema, how many samples share the
request, and the operation, which names vote and attempt.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from varl_jax.llm.chat import (
  ChatError,
  ChatModel,
  ChatReply,
  ChatRequest,
  SamplingChatModel,
)
from varl_jax.llm.wire import schema_digest

_VERSION: Final = 1
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS calls (
  key BLOB PRIMARY KEY,
  role TEXT NOT NULL,
  operation TEXT NOT NULL,
  text TEXT NOT NULL,
  finish TEXT NOT NULL,
  model TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  reply_tokens INTEGER NOT NULL,
  mode TEXT NOT NULL,
  cost REAL NOT NULL
) WITHOUT ROWID
"""
_FIND: Final = (
  "SELECT text, finish, model, prompt_tokens, reply_tokens, mode, cost"
  " FROM calls WHERE key = ?"
)
_FIND_ROLE: Final = "SELECT 1 FROM calls WHERE role = ? LIMIT 1"
_TOTALS: Final = (
  "SELECT role, COUNT(*), SUM(prompt_tokens), SUM(reply_tokens), SUM(cost)"
  " FROM calls GROUP BY role"
)
_ADD: Final = "INSERT OR REPLACE INTO calls VALUES (?,?,?,?,?,?,?,?,?,?)"
_BUSY_S: Final = 30.0

T = TypeVar("T")
_Row = tuple[Any, ...]


class JournalError(Exception):
  """The journal cannot be opened, read or written; one clear sentence."""


class Journal:
  """A file of finished calls."""

  def __init__(self, path: str | os.PathLike[str]):
    """Opens or creates the file.

    Raises:
      JournalError: it is damaged, of another version, or cannot be written.
    """
    self.path = pathlib.Path(path)
    self._lock = threading.Condition()
    self._pending: list[tuple[_Row, asyncio.Future[None]]] = []
    self._closed = False
    with contextlib.ExitStack() as opened:
      try:
        self._writer = opened.enter_context(self._connect())
        self._prepare(self._writer)
        self._reader = opened.enter_context(self._connect())
      except sqlite3.Error as error:
        raise self._error(error) from error
      opened.pop_all()
    self._thread = threading.Thread(
      target=self._write_all, name="call-journal", daemon=True
    )
    self._thread.start()

  def __enter__(self) -> "Journal":
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def find(self, key: bytes) -> ChatReply | None:
    """The recorded reply of a call.

    Raises:
      JournalError: the file cannot be read.
    """
    try:
      row = self._reader.execute(_FIND, (key,)).fetchone()
    except sqlite3.Error as error:
      raise self._error(error) from error
    if row is None:
      return None
    text, finish, model, prompt_tokens, reply_tokens, mode, cost = row
    return ChatReply(
      text=text,
      finish=finish,
      model=model,
      prompt_tokens=prompt_tokens,
      reply_tokens=reply_tokens,
      mode=mode,
      cost=cost,
    )

  def has_role(self, role: str) -> bool:
    """Whether any call of a role was answered.

    Raises:
      JournalError: the file cannot be read.
    """
    try:
      found = self._reader.execute(_FIND_ROLE, (role,)).fetchone()
    except sqlite3.Error as error:
      raise self._error(error) from error
    return found is not None

  def totals(self) -> dict[str, dict[str, float]]:
    """What the recorded calls took, over all starts.

    Returns:
      By role: `calls`, `prompt_tokens`, `reply_tokens`, `cost` (US dollars).

    Raises:
      JournalError: the file cannot be read.
    """
    try:
      rows = self._reader.execute(_TOTALS).fetchall()
    except sqlite3.Error as error:
      raise self._error(error) from error
    names = ("calls", "prompt_tokens", "reply_tokens", "cost")
    return {role: dict(zip(names, counts)) for role, *counts in rows}

  async def record(
    self, key: bytes, request: ChatRequest, reply: ChatReply
  ) -> None:
    """Writes a finished call; returns when it is on the disk.

    Raises:
      JournalError: it could not be written.
    """
    row = (
      key,
      request.role,
      request.operation,
      # A lone surrogate has no UTF-8 form.
      reply.text.encode("utf-8", "replace").decode(),
      reply.finish,
      reply.model,
      reply.prompt_tokens,
      reply.reply_tokens,
      reply.mode,
      reply.cost,
    )
    written = asyncio.get_running_loop().create_future()
    with self._lock:
      if self._closed:
        raise JournalError(f"{self.path} is closed.")
      self._pending.append((row, written))
      self._lock.notify()
    await written

  def close(self) -> None:
    """Writes what waits and closes the file; harmless when repeated."""
    with self._lock:
      self._closed = True
      self._lock.notify()
    self._thread.join()
    self._reader.close()
    self._writer.close()

  def _connect(self) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(
      sqlite3.connect(
        self.path,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
      )
    )

  def _prepare(self, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
      raise JournalError(
        f"{self.path} is a call journal of version {version}, this program"
        f" writes {_VERSION}; move the file away to go on without it."
      )
    connection.execute(_TABLE)
    connection.execute(f"PRAGMA user_version={_VERSION}")
    # Damage shows in columns that are not there.
    connection.execute(_FIND, (b"",)).fetchone()

  def _write_all(self) -> None:
    """The writer's thread: whatever waits becomes one transaction."""
    while True:
      with self._lock:
        while not self._pending and not self._closed:
          self._lock.wait()
        batch, self._pending = self._pending, []
      if not batch:
        return
      _hand_back(batch, self._write([row for row, _ in batch]))

  def _write(self, rows: Sequence[_Row]) -> JournalError | None:
    try:
      self._writer.execute("BEGIN IMMEDIATE")
      self._writer.executemany(_ADD, rows)
      self._writer.execute("COMMIT")
    except sqlite3.Error as error:
      if self._writer.in_transaction:
        self._writer.execute("ROLLBACK")
      return self._error(error)
    return None

  def _error(self, error: sqlite3.Error) -> JournalError:
    text = str(error)
    if "full" in text:
      return JournalError(
        f"No space left to write {self.path}; the calls before are kept. Free"
        " some space and resume the run."
      )
    if "malformed" in text or "not a database" in text:
      return JournalError(
        f"{self.path} is damaged ({text}); restore it, or move it away to pay"
        " for its calls again."
      )
    if "readonly" in text or "unable to open" in text:
      mend = "Let it be written"
    elif "locked" in text:
      mend = "End whatever else uses it"
    else:
      mend = (
        "Look for a full disk, a quota, a limit (ulimit -f) or a lost mount"
      )
    return JournalError(
      f"The call journal {self.path} failed ({text}); the calls before are"
      f" kept. {mend} and resume the run."
    )


def _hand_back(
  batch: Sequence[tuple[_Row, asyncio.Future[None]]],
  error: JournalError | None,
) -> None:
  """Wakes the callers of a batch, once a loop."""
  loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
  for _, written in batch:
    loops.setdefault(written.get_loop(), []).append(written)

  def settle(futures: list[asyncio.Future[None]]) -> None:
    for written in futures:
      if written.done():
        continue  # Its caller was cancelled; the row is kept all the same.
      if error is None:
        written.set_result(None)
      else:
        written.set_exception(error)

  for loop, futures in loops.items():
    try:
      loop.call_soon_threadsafe(settle, futures)
    except RuntimeError:
      continue  # The loop is closed, and nobody waits any more.


class JournaledChat:
  """A model whose finished calls are paid for once.

  Concurrent calls that are the same share one request.

  Args:
    inner: the model.
    journal: where its replies are kept.
    settings: what decides its replies beside the request, such as its effort.
  """

  def __init__(
    self,
    inner: ChatModel,
    journal: Journal,
    *,
    settings: Mapping[str, object] | None = None,
  ):
    self._inner = inner
    self._journal = journal
    text = json.dumps({"name": inner.name, **(settings or {})}, sort_keys=True)
    self._settings = text.encode()
    self._digests: dict[int, tuple[Any, bytes]] = {}
    self._running: dict[bytes, asyncio.Future[Any]] = {}
    self.answered = 0

  @property
  def name(self) -> str:
    """The model's name."""
    return self._inner.name

  def usage(self) -> dict[str, dict[str, float]]:
    """Counts of the calls that reached the model, by role, if it counts."""
    usage: Callable[[], dict[str, dict[str, float]]] | None = getattr(
      self._inner, "usage", None
    )
    return usage() if usage is not None else {}

  @property
  def away(self) -> bool:
    """Whether calls wait for the model's server."""
    return getattr(self._inner, "away", False)

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Answers, or raises `ChatError` or `JournalError`."""
    key = self.key(request)
    found = self._journal.find(key)
    if found is not None:
      self.answered += 1
      return found

    async def ask() -> ChatReply:
      reply = await self._inner.complete(request)
      await self._journal.record(key, request, reply)
      return reply

    return await self._shared(key, ask)

  async def complete_samples(
    self, requests: Sequence[ChatRequest]
  ) -> list[ChatReply | ChatError]:
    """Answers requests that differ only in operation and seed.

    What the journal lacks is asked for together.
    """
    keys = [self.key(request, samples=len(requests)) for request in requests]
    found = [self._journal.find(key) for key in keys]
    self.answered += sum(reply is not None for reply in found)
    lacking = [index for index, reply in enumerate(found) if reply is None]
    replies: list[ChatReply | ChatError | None] = list(found)
    if lacking:

      async def ask() -> list[ChatReply | ChatError]:
        return await self._ask_samples(
          [requests[index] for index in lacking],
          [keys[index] for index in lacking],
        )

      joint = hashlib.sha256(b"".join(keys[i] for i in lacking)).digest()
      for index, reply in zip(
        lacking, await self._shared(joint, ask), strict=True
      ):
        replies[index] = reply
    return [reply for reply in replies if reply is not None]

  def key(self, request: ChatRequest, *, samples: int = 1) -> bytes:
    """The journal's key of a call, 32 bytes."""
    made = hashlib.sha256(self._settings)
    numbers = (
      f"\0{request.role}\0{request.operation}\0{request.seed}"
      f"\0{request.temperature!r}\0{request.max_tokens}\0{samples}\0"
    )
    made.update(numbers.encode("utf-8", "replace"))
    made.update(self._schema_digest(request.schema))
    for message in request.messages:
      text = message.content.encode("utf-8", "surrogatepass")
      made.update(f"\0{message.role}\0{len(text)}\0".encode())
      made.update(text)
    for image in request.images:
      made.update(hashlib.sha256(image.encode()).digest())
    return made.digest()

  def _schema_digest(self, schema: Mapping[str, Any] | None) -> bytes:
    """Remembered, since schemas are constants of the roles."""
    found = self._digests.get(id(schema))
    if found is None or found[0] is not schema:
      if len(self._digests) > 512:
        self._digests.clear()
      found = (schema, schema_digest(schema).encode())
      self._digests[id(schema)] = found
    return found[1]

  async def _ask_samples(
    self, requests: Sequence[ChatRequest], keys: Sequence[bytes]
  ) -> list[ChatReply | ChatError]:
    if isinstance(self._inner, SamplingChatModel):
      replies = await self._inner.complete_samples(requests)
    else:
      replies = await asyncio.gather(
        *(_caught(self._inner.complete(request)) for request in requests)
      )
    await asyncio.gather(
      *(
        self._journal.record(key, request, reply)
        for key, request, reply in zip(keys, requests, replies, strict=True)
        if isinstance(reply, ChatReply)
      )
    )
    return list(replies)

  async def _shared(self, key: bytes, ask: Callable[[], Awaitable[T]]) -> T:
    """Runs `ask`, or waits for whoever runs it for the same key.

    When that one is cancelled, the next in line asks.
    """
    loop = asyncio.get_running_loop()
    while (running := self._running.get(key)) is not None:
      if running.get_loop() is not loop:
        break
      # Waiting so, a cancelled waiter leaves the others their future.
      await asyncio.wait([running])
      if not running.cancelled():
        return running.result()
    mine: asyncio.Future[T] = loop.create_future()
    self._running[key] = mine
    try:
      value = await ask()
    except Exception as error:
      mine.set_exception(error)
      mine.exception()  # Seen, also when nobody else waits.
      raise
    except BaseException:
      mine.cancel()
      raise
    finally:
      if self._running.get(key) is mine:
        del self._running[key]
    mine.set_result(value)
    return value


async def _caught(call: Awaitable[ChatReply]) -> ChatReply | ChatError:
  try:
    return await call
  except ChatError as error:
    return error
