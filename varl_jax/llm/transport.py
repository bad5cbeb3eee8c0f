"""Sends one request to an OpenAI-compatible server: two ways, one protocol.

`SdkTransport` is `openai.AsyncOpenAI`; `AiohttpTransport` is a thin client for
the one call that a step makes thousands of times. Neither retries, neither
follows a redirect (which would carry the key elsewhere), and a failure is
raised apart from the library's own exception, whose text and request may hold
the key.
"""

import contextlib
import dataclasses
import errno
import json
import os
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, Literal, Protocol

from varl_jax.config import ConfigError, EndpointConfig
from varl_jax.llm.api_key import ApiKey

TransportName = Literal["sdk", "aiohttp"]
DEFAULT_URL: Final = "https://api.openai.com/v1"
# A reply is text of some thousand tokens; more than this is no reply.
MAX_BODY_BYTES: Final = 2**26
# Connections beyond the calls in flight, so that none waits for one.
_SPARE: Final = 8
_INSTALL: Final = (
  "Install the extra: pip install -c constraints.txt -e '.[openai]'."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawReply:
  """A response with its whole body."""

  status: int
  headers: Mapping[str, str]
  body: bytes


class TransportError(Exception):
  """No response came: the connection failed or ended early.

  `astray` says that it looks as if no such server were at the address: its name
  is unknown, or what answers speaks no TLS that can be trusted.
  """

  def __init__(self, message: str, *, astray: bool = False):
    super().__init__(message)
    self.astray = astray


class Transport(Protocol):
  """A way to one endpoint, open in one event loop."""

  async def post(self, body: Mapping[str, Any]) -> RawReply:
    """Sends a body; raises `TransportError`."""
    ...


def base_url(endpoint: EndpointConfig) -> str:
  """The endpoint's address without a closing slash.

  Raises:
    ConfigError: it is no http address, or holds a password.
  """
  text = (
    endpoint.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL
  ).rstrip("/")
  parts = urllib.parse.urlsplit(text)
  if parts.scheme not in ("http", "https") or not parts.hostname:
    raise ConfigError(
      f"The endpoint's base_url is an address such as {DEFAULT_URL}; mend it."
    )
  if parts.username or parts.password or parts.query:
    raise ConfigError(
      "The endpoint's base_url holds a user, password or query; put the key"
      " into the environment variable that api_key_env names."
    )
  return text


@contextlib.asynccontextmanager
async def open_transport(
  kind: TransportName, endpoint: EndpointConfig, key: ApiKey
) -> AsyncIterator[Transport]:
  """Opens connections to an endpoint while the block lasts.

  Raises:
    ConfigError: the package that `kind` needs is not installed.
  """
  opened = _open_sdk if kind == "sdk" else _open_aiohttp
  async with opened(endpoint, key) as transport:
    yield transport


@contextlib.asynccontextmanager
async def _open_aiohttp(
  endpoint: EndpointConfig, key: ApiKey
) -> AsyncIterator[Transport]:
  try:
    import aiohttp
  except ImportError as error:
    raise ConfigError(f"Endpoints need aiohttp. {_INSTALL}") from error
  url = base_url(endpoint)
  headers = {"Content-Type": "application/json", "Accept": "application/json"}
  if key.reveal():
    headers["Authorization"] = f"Bearer {key.reveal()}"
  async with aiohttp.ClientSession(
    connector=aiohttp.TCPConnector(limit=endpoint.concurrency + _SPARE),
    # The caller bounds every attempt as a whole.
    timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
    cookie_jar=aiohttp.DummyCookieJar(),
    headers=headers,
  ) as session:
    yield AiohttpTransport(
      session, f"{url}/chat/completions", proxy=_proxy(url)
    )


class AiohttpTransport:
  """A pooled `aiohttp` session and one address."""

  def __init__(self, session: Any, url: str, *, proxy: str | None = None):
    import aiohttp
    import yarl

    self._session = session
    self._url = yarl.URL(url)
    self._proxy = proxy
    self._errors = (aiohttp.ClientError, OSError)

  async def post(self, body: Mapping[str, Any]) -> RawReply:
    """Sends a body; raises `TransportError`."""
    try:
      async with self._session.post(
        self._url,
        data=_encode(body),
        allow_redirects=False,
        proxy=self._proxy,
      ) as response:
        content = await _read(response)
        if content is not None:
          return RawReply(
            status=response.status, headers=response.headers, body=content
          )
        problem = TransportError(
          f"its reply is longer than {MAX_BODY_BYTES} bytes"
        )
    except self._errors as error:
      problem = _describe(error)
    raise problem


async def _read(response: Any) -> bytes | None:
  """The body, None when it is too long."""
  if (response.content_length or 0) > MAX_BODY_BYTES:
    return None
  if response.content_length is not None:
    return await response.read()
  parts, size = [], 0
  async for part in response.content.iter_any():
    parts.append(part)
    size += len(part)
    if size > MAX_BODY_BYTES:
      return None
  return b"".join(parts)


@contextlib.asynccontextmanager
async def _open_sdk(
  endpoint: EndpointConfig, key: ApiKey
) -> AsyncIterator[Transport]:
  try:
    import openai
  except ImportError as error:
    raise ConfigError(f"Endpoints need openai. {_INSTALL}") from error
  async with openai.AsyncOpenAI(
    # The SDK refuses to be made without a key; a server without one ignores it.
    api_key=key.reveal() or "none",
    base_url=base_url(endpoint),
    max_retries=0,
    timeout=None,
    http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
  ) as client:
    yield SdkTransport(client)


class SdkTransport:
  """`openai.AsyncOpenAI` without its retries and its parsing.

  Its pool has a thousand connections; more calls at once queue for one.
  """

  def __init__(self, client: Any):
    import openai

    self._create = client.chat.completions.with_raw_response.create
    self._status_error = openai.APIStatusError
    self._errors = (openai.OpenAIError, OSError)

  async def post(self, body: Mapping[str, Any]) -> RawReply:
    """Sends a body; raises `TransportError`."""
    try:
      response = await self._create(**body)
      return _raw(response)
    except self._status_error as error:
      return _raw(error.response)
    except self._errors as error:
      problem = _describe(error.__cause__ or error)
    raise problem


def _raw(response: Any) -> RawReply:
  return RawReply(
    status=response.status_code,
    headers=response.headers,
    body=response.content,
  )


def _encode(body: Mapping[str, Any]) -> bytes:
  text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
  # A lone surrogate, which a model may emit, has no UTF-8 form.
  return text.encode("utf-8", "replace")


def _describe(error: BaseException) -> TransportError:
  """What went wrong on the wire, without the request it happened to."""
  causes = list(_causes(error))
  if any(isinstance(cause, ssl.SSLError) for cause in causes):
    # Libraries wrap the error in one of its kind that has lost the reason.
    found = [
      getattr(cause, name, "")
      for name in ("verify_message", "reason")
      for cause in causes
    ]
    why = next((text for text in found if text), "unknown reason")
    why = str(why).lower().replace("_", " ")
    return TransportError(f"no trusted TLS connection ({why})", astray=True)
  for cause in causes:
    if isinstance(cause, socket.gaierror):
      return TransportError(str(cause.strerror).lower(), astray=True)
  for cause in causes:
    number = cause.errno if isinstance(cause, OSError) else None
    if number is not None and number in errno.errorcode:
      return TransportError(os.strerror(number).lower())
  return TransportError(f"the connection failed ({type(error).__name__})")


def _causes(error: BaseException) -> Iterator[BaseException]:
  """An error and what it came from."""
  cause: BaseException | None = error
  while cause is not None:
    yield cause
    cause = cause.__cause__ or cause.__context__


def _proxy(url: str) -> str | None:
  """The proxy that the environment names for an address."""
  parts = urllib.parse.urlsplit(url)
  host = parts.hostname or ""
  if host in ("localhost", "127.0.0.1", "::1"):
    return None
  if urllib.request.proxy_bypass(host):
    return None
  return urllib.request.getproxies().get(parts.scheme)
