"""Search services: how each is asked and how its answer is read.

Only results are read, never an answer that a service has a model write. A
result's text is what the service shows, unchanged.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebResult:
  """One result.

  Attributes:
    title: of the page.
    url: its address.
    text: the snippet.
    date: as the service writes it, "" when unknown.
  """

  title: str
  url: str
  text: str
  date: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """A request to a service.

  Attributes:
    method: of HTTP.
    path: behind the service's address.
    params: of the address.
    headers: the key among them.
    body: sent as JSON; None for none.
  """

  method: str
  path: str
  params: Mapping[str, str] = dataclasses.field(default_factory=dict)
  headers: Mapping[str, str] = dataclasses.field(
    default_factory=dict, repr=False
  )
  body: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
  """A service.

  Attributes:
    name: in `tools.web_engine`.
    url: its own address, "" for one that everybody runs for themselves.
    keyed: whether it wants a key.
    ask: from query, count and key to the request.
    read: from the parsed answer to results.
    forbidden: what to mend when it answers with status 403.
  """

  name: str
  url: str
  keyed: bool
  ask: Callable[[str, int, str], Asked]
  read: Callable[[Any], list[WebResult]]
  forbidden: str = "check its key"


def _rows(
  tree: Any, path: tuple[str, ...], *, url: str, text: str, date: str
) -> list[WebResult]:
  """Rows at a path, each with the names of its fields.

  Raises:
    ValueError: the answer has another form.
  """
  for name in path:
    if not isinstance(tree, dict):
      raise ValueError(f"no {name}")
    # Services leave the list out where nothing is found.
    tree = tree.get(name) or ({} if name != path[-1] else [])
  if not isinstance(tree, list):
    raise ValueError(f"{path[-1]} is no list")
  found = []
  for row in tree:
    if not isinstance(row, dict):
      raise ValueError("a result is no object")
    fields = {"title": "title", "url": url, "text": text, "date": date}
    made = {key: row.get(name) or "" for key, name in fields.items()}
    if not all(isinstance(value, str) for value in made.values()):
      raise ValueError("a field of a result is no text")
    if made["url"].startswith(("http://", "https://")):
      found.append(WebResult(**made))
  return found


def _searxng(query: str, count: int, key: str) -> Asked:
  return Asked(
    method="GET", path="/search", params={"q": query, "format": "json"}
  )


def _brave(query: str, count: int, key: str) -> Asked:
  return Asked(
    method="GET",
    path="/res/v1/web/search",
    params={"q": query, "count": str(min(count, 20))},
    headers={"X-Subscription-Token": key},
  )


def _tavily(query: str, count: int, key: str) -> Asked:
  return Asked(
    method="POST",
    path="/search",
    headers={"Authorization": f"Bearer {key}"},
    body={"query": query, "max_results": count, "include_answer": False},
  )


def _serper(query: str, count: int, key: str) -> Asked:
  return Asked(
    method="POST",
    path="/search",
    headers={"X-API-KEY": key},
    body={"q": query, "num": count},
  )


def _exa(query: str, count: int, key: str) -> Asked:
  return Asked(
    method="POST",
    path="/search",
    headers={"x-api-key": key},
    body={"query": query, "numResults": count, "contents": {"text": True}},
  )


ENGINES: Final = {
  engine.name: engine
  for engine in (
    Engine(
      name="searxng",
      url="",
      keyed=False,
      ask=_searxng,
      read=lambda tree: _rows(
        tree, ("results",), url="url", text="content", date="publishedDate"
      ),
      forbidden="let its settings have json among search.formats",
    ),
    Engine(
      name="brave",
      url="https://api.search.brave.com",
      keyed=True,
      ask=_brave,
      read=lambda tree: _rows(
        tree, ("web", "results"), url="url", text="description", date="age"
      ),
    ),
    Engine(
      name="tavily",
      url="https://api.tavily.com",
      keyed=True,
      ask=_tavily,
      read=lambda tree: _rows(
        tree, ("results",), url="url", text="content", date="published_date"
      ),
    ),
    Engine(
      name="serper",
      url="https://google.serper.dev",
      keyed=True,
      ask=_serper,
      read=lambda tree: _rows(
        tree, ("organic",), url="link", text="snippet", date="date"
      ),
    ),
    Engine(
      name="exa",
      url="https://api.exa.ai",
      keyed=True,
      ask=_exa,
      read=lambda tree: _rows(
        tree, ("results",), url="url", text="text", date="publishedDate"
      ),
    ),
  )
}
