"""Web search: one service asked safely, and its answers recorded.

A query that a model wrote decides nothing but the query: the address is the
operator's. It is resolved once a request and the connection goes to what was
resolved, so that a name cannot turn into another address in between; a
service's own public address must resolve to a public one; redirects are not
followed, addresses in results are never opened, and answers are read up to a
limit.
"""

import asyncio
import dataclasses
import ipaddress
import json
import os
import pathlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.web_engines import Asked, Engine, WebResult

MAX_BYTES: Final = 2_000_000
_ATTEMPTS: Final = 3
_LONGEST_WAIT_S: Final = 10.0
# 202 is how some services say that one asks too often.
_BUSY: Final = (202, 429, 500, 502, 503, 504)

Resolve = Callable[[str, int], Sequence[str]]


class NotRecorded(RetrievalError):
  """There is no recording of a search, and none may be made."""


def resolved(host: str, port: int) -> list[str]:
  """The addresses of a name.

  Raises:
    RetrievalError: it has none.
  """
  try:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as error:
    raise RetrievalError(f"{host} cannot be resolved ({error}).") from error
  return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def safe_address(
  host: str, port: int, *, private: bool, resolve: Resolve = resolved
) -> str:
  """The address to connect to.

  Args:
    host: of the service.
    port: likewise.
    private: whether addresses of this machine and its network will do.
    resolve: from a name to addresses.

  Raises:
    RetrievalError: one of the name's addresses is not public; a name with both
      kinds is not trusted.
  """
  found = resolve(host, port)
  for address in found:
    if not private and not _public(address):
      raise RetrievalError(
        f"{host} resolves to {address}, which is no public address; name a"
        " server of your own by tools.web_url."
      )
  return found[0]


def _public(address: str) -> bool:
  parsed = ipaddress.ip_address(address.partition("%")[0])
  inner = getattr(parsed, "ipv4_mapped", None) or getattr(
    parsed, "sixtofour", None
  )
  return (inner or parsed).is_global and not parsed.is_multicast


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSearch:
  """Asks a service.

  Attributes:
    engine: how it is asked and read.
    url: the operator's, "" for the service's own.
    key: its key, "" for none.
    timeout_s: of one request.
    resolve: from a name to addresses.
    sleep: waits that many seconds.
  """

  engine: Engine
  url: str = ""
  key: str = dataclasses.field(default="", repr=False)
  timeout_s: float = 20.0
  resolve: Resolve = resolved
  sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

  async def search(self, query: str, count: int) -> list[WebResult]:
    """At most `count` results, in the service's order.

    Raises:
      RetrievalError: the service gave none; never with the key in the message.
    """
    httpx = _httpx()
    asked = self.engine.ask(query, count, self.key)
    why = ""
    for attempt in range(_ATTEMPTS):
      try:
        status, wait, body = await self._send(asked)
      except httpx.InvalidURL as error:
        raise RetrievalError(
          f"tools.web_url {self.url!r} is no address ({error})."
        ) from error
      except httpx.HTTPError as error:
        status, wait, body = 0, "", b""
        why = f"cannot be reached ({type(error).__name__})"
      if status == 200:
        return self._read(body)[:count]
      if status and status not in _BUSY:
        raise RetrievalError(self._refused(status))
      why = f"answers with status {status}" if status else why
      if attempt + 1 < _ATTEMPTS:
        await self.sleep(_pause(wait, attempt))
    raise RetrievalError(f"The search service {self.engine.name} {why}.")

  async def _send(self, asked: Asked) -> tuple[int, str, bytes]:
    """Status, Retry-After and body of an answer."""
    httpx = _httpx()
    url = httpx.URL((self.url or self.engine.url).rstrip("/") + asked.path)
    port = url.port or (443 if url.scheme == "https" else 80)
    address = await asyncio.to_thread(
      safe_address,
      url.host,
      port,
      private=bool(self.url),
      resolve=self.resolve,
    )
    # A proxy of the environment would resolve the name itself.
    async with (
      httpx.AsyncClient(
        timeout=self.timeout_s, trust_env=False, follow_redirects=False
      ) as client,
      client.stream(
        asked.method,
        url.copy_with(host=address),
        params=dict(asked.params) or None,
        headers={**asked.headers, "Host": url.netloc.decode()},
        json=asked.body,
        extensions={"sni_hostname": url.host},
      ) as reply,
    ):
      body = b""
      async for piece in reply.aiter_bytes():
        body += piece
        if len(body) > MAX_BYTES:
          raise RetrievalError(
            f"The search service {self.engine.name} answers with more than"
            f" {MAX_BYTES} bytes."
          )
      return reply.status_code, reply.headers.get("Retry-After", ""), body

  def _read(self, body: bytes) -> list[WebResult]:
    try:
      return self.engine.read(json.loads(body))
    except (ValueError, RecursionError) as error:
      raise RetrievalError(
        f"What answers as {self.engine.name} has another form; mend"
        " tools.web_url or tools.web_engine."
      ) from error

  def _refused(self, status: int) -> str:
    name = self.engine.name
    if status in (401, 403):
      return f"The search service {name} refuses; {self.engine.forbidden}."
    if 300 <= status < 400:
      return (
        f"The search service {name} points elsewhere (status {status}), which"
        " is not followed; give its last address as tools.web_url."
      )
    return f"The search service {name} rejects a search (status {status})."


def _pause(retry_after: str, attempt: int) -> float:
  wanted = float(retry_after) if retry_after.isdigit() else 0.5 * 2**attempt
  return min(wanted, _LONGEST_WAIT_S)


def _httpx() -> Any:
  try:
    import httpx
  except ImportError as error:
    raise RetrievalError(
      "Asking a search service needs the extra `server`: pip install -e"
      " '.[server]'."
    ) from error
  return httpx


class RecordedSearch:
  """Searches out of a file; what is not there is asked for, or refused.

  The file has one JSON object a line: `engine`, `query`, `count`, `results`. A
  last line that was cut short is dropped.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    *,
    engine: str,
    ask: EngineSearch | None = None,
  ):
    """Reads the file, which need not be there yet if `ask` is given.

    Raises:
      RetrievalError: it is missing or damaged.
    """
    self._path = pathlib.Path(path).expanduser()
    self._engine = engine
    self._ask = ask
    self._lock = threading.Lock()
    self._known: dict[tuple[str, str, int], list[WebResult]] = {}
    self._read()

  async def search(self, query: str, count: int) -> list[WebResult]:
    """See `EngineSearch.search`.

    Raises:
      NotRecorded: the file does not have it and nobody may be asked.
    """
    key = (self._engine, query, count)
    if key in self._known:
      return self._known[key]
    if self._ask is None:
      raise NotRecorded(
        f"{self._path} has no recording of this search; set tools.web_mode to"
        " record where searches may be made."
      )
    found = await self._ask.search(query, count)
    with self._lock:
      if key not in self._known:
        self._append(key, found)
        self._known[key] = found
    return self._known[key]

  def _read(self) -> None:
    try:
      text = self._path.read_bytes()
    except FileNotFoundError as error:
      if self._ask is not None:
        return
      raise RetrievalError(
        f"There are no recorded searches at {self._path}; name a file by"
        " tools.web_recordings, or set tools.web_mode to record."
      ) from error
    except OSError as error:
      raise RetrievalError(f"{self._path} cannot be read ({error}).") from error
    whole, _, torn = text.rpartition(b"\n")
    if torn and self._ask is not None:
      with open(self._path, "r+b") as file:
        file.truncate(len(text) - len(torn))
    for number, line in enumerate(whole.splitlines(), 1):
      try:
        row = json.loads(line)
        key = (str(row["engine"]), str(row["query"]), int(row["count"]))
        self._known[key] = [WebResult(**result) for result in row["results"]]
      except (ValueError, KeyError, TypeError) as error:
        raise RetrievalError(
          f"Line {number} of {self._path} is no recorded search; remove it."
        ) from error

  def _append(
    self, key: tuple[str, str, int], results: Sequence[WebResult]
  ) -> None:
    row = {
      **dict(zip(("engine", "query", "count"), key, strict=True)),
      "results": [dataclasses.asdict(result) for result in results],
    }
    line = json.dumps(row, ensure_ascii=False) + "\n"
    self._path.parent.mkdir(parents=True, exist_ok=True)
    with open(self._path, "a", encoding="utf-8") as file:
      file.write(line)
      file.flush()
      os.fsync(file.fileno())


def result_blocks(results: Sequence[WebResult]) -> str:
  """Results as a model reads them, word for word."""
  blocks = []
  for number, result in enumerate(results, 1):
    date = f" ({result.date})" if result.date else ""
    blocks.append(
      f"[{number}] {result.title}{date}\n{result.url}\n{result.text.strip()}"
    )
  return "\n\n".join(blocks)
