"""Search services: what is asked, read, refused and kept."""

import asyncio
import contextlib
import http.server
import json
import threading

import pytest

from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.web_engines import ENGINES, WebResult
from varl_jax.retrieval.web_search import (
  MAX_BYTES,
  EngineSearch,
  NotRecorded,
  RecordedSearch,
  result_blocks,
  safe_address,
)

ROW = {"title": "A", "date": "2020"}
ANSWERS = {
  "searxng": {
    "results": [
      {
        "title": "A",
        "url": "https://a.example",
        "content": "one",
        "score": 2.5,
        "publishedDate": None,
      }
    ]
  },
  "brave": {
    "web": {
      "results": [
        {"title": "A", "url": "https://a.example", "description": "one"}
      ]
    }
  },
  "tavily": {
    "answer": "made by a model",
    "results": [{"title": "A", "url": "https://a.example", "content": "one"}],
  },
  "serper": {
    "answerBox": {"answer": "made by a model"},
    "organic": [
      {
        "title": "A",
        "link": "https://a.example",
        "snippet": "one",
        "position": 1,
      }
    ],
  },
  "exa": {
    "results": [{"title": "A", "url": "https://a.example", "text": "one"}]
  },
}
KEY = "key-5f0c2a91be44"


@contextlib.contextmanager
def serving(*replies):
  """A server that gives (status, headers, body) in turn, the last for ever."""
  seen = []

  class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
      size = int(self.headers.get("Content-Length") or 0)
      body = self.rfile.read(size)
      status, headers, reply = replies[min(len(seen), len(replies) - 1)]
      seen.append((self.command, self.path, dict(self.headers), body))
      self.send_response(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header("Content-Length", str(len(reply)))
      self.end_headers()
      with contextlib.suppress(ConnectionError):
        self.wfile.write(reply)

    do_GET = do_POST = answer

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  try:
    yield f"http://127.0.0.1:{server.server_port}", seen
  finally:
    server.shutdown()
    server.server_close()
    thread.join()


def ok(tree):
  return 200, {}, json.dumps(tree).encode()


async def no_sleep(seconds):
  assert 0 <= seconds <= 10


def search(url, name="searxng", *, query="a fox", **fields):
  asked = EngineSearch(
    engine=ENGINES[name], url=url, key=KEY, sleep=no_sleep, **fields
  )
  return asyncio.run(asked.search(query, 3))


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_service_is_asked_and_read(name):
  with serving(ok(ANSWERS[name])) as (url, seen):
    found = search(url, name)
  assert found == [WebResult(title="A", url="https://a.example", text="one")]
  ((method, path, headers, body),) = seen
  if name in ("searxng", "brave"):
    assert method == "GET" and "q=a+fox" in path and not body
    assert ("format=json" in path) == (name == "searxng")
  else:
    assert method == "POST" and "a fox" in json.loads(body).values()
  assert (KEY in str(headers)) == ENGINES[name].keyed
  assert KEY not in path and KEY not in body.decode()


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_nothing_found_is_no_error(name):
  with serving(ok({})) as (url, _):
    assert search(url, name) == []


def test_only_pages_of_the_web_are_results():
  rows = [
    {"title": "A", "url": url, "content": "x"}
    for url in ("file:///etc/passwd", "javascript:x", "https://a.example", "")
  ]
  with serving(ok({"results": rows})) as (url, _):
    assert [r.url for r in search(url)] == ["https://a.example"]


@pytest.mark.parametrize(
  ("reply", "message"),
  [
    ((403, {}, b""), "search.formats"),
    ((302, {"Location": "http://169.254.169.254/"}, b""), "not followed"),
    ((400, {}, b""), "status 400"),
    ((200, {}, b"<html>"), "another form"),
    ((200, {}, b'{"results": {"a": 1}}'), "another form"),
    ((200, {}, b'{"results": [{"title": 1, "url": "https://a"}]}'), "form"),
    ((200, {}, b" " * (MAX_BYTES + 1)), "more than"),
    ((202, {}, b""), "status 202"),
    ((429, {"Retry-After": "600"}, b""), "status 429"),
  ],
)
def test_what_is_no_answer_is_said_without_the_key(reply, message):
  with serving(reply) as (url, _), pytest.raises(RetrievalError) as caught:
    search(url)
  assert message in str(caught.value)
  assert KEY not in str(caught.value) and "\n" not in str(caught.value)


def test_a_busy_service_is_asked_again():
  with serving((503, {}, b""), ok(ANSWERS["searxng"])) as (url, seen):
    assert len(search(url)) == 1
  assert len(seen) == 2


def test_a_service_that_is_away_is_said():
  with pytest.raises(RetrievalError, match="cannot be reached"):
    search("http://127.0.0.1:9")


@pytest.mark.parametrize(
  "addresses",
  [
    ["127.0.0.1"],
    ["10.0.0.8"],
    ["169.254.169.254"],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["2002:7f00:1::"],
    ["fe80::1%eth0"],
    ["100.64.0.1"],
    ["0.0.0.0"],
    ["224.0.0.1"],
    ["1.1.1.1", "10.0.0.1"],
  ],
)
def test_a_public_name_at_a_private_address_is_refused(addresses):
  with pytest.raises(RetrievalError, match="no public address"):
    safe_address(
      "api.example", 443, private=False, resolve=lambda host, port: addresses
    )


def test_a_name_is_resolved_once_and_then_kept_to():
  """A second answer of the name server is never asked for."""
  with serving(ok(ANSWERS["searxng"])) as (url, seen):
    port = int(url.rpartition(":")[2])
    asked = []

    def resolve(host, port):
      asked.append(host)
      return ["127.0.0.1"] if len(asked) == 1 else ["203.0.113.9"]

    found = search(f"http://search.example:{port}", resolve=resolve)
  assert len(found) == 1 and asked == ["search.example"]
  assert seen[0][2]["Host"] == f"search.example:{port}"


def recorded(path, ask=None, engine="searxng"):
  return RecordedSearch(path, engine=engine, ask=ask)


def test_what_was_asked_once_is_never_asked_again(tmp_path):
  path = tmp_path / "searches.jsonl"
  with serving(ok(ANSWERS["searxng"])) as (url, seen):
    ask = EngineSearch(engine=ENGINES["searxng"], url=url)
    first = asyncio.run(recorded(path, ask).search("é fox", 3))
    again = asyncio.run(recorded(path, ask).search("é fox", 3))
    assert len(seen) == 1
  assert first == again == asyncio.run(recorded(path).search("é fox", 3))
  for query, count, engine in (
    ("a fox", 3, "searxng"),
    ("é fox", 4, "searxng"),
    ("é fox", 3, "brave"),
  ):
    with pytest.raises(NotRecorded):
      asyncio.run(recorded(path, engine=engine).search(query, count))


def test_a_torn_line_is_dropped_and_a_damaged_one_named(tmp_path):
  path = tmp_path / "searches.jsonl"
  row = {"engine": "searxng", "query": "a", "count": 1, "results": []}
  path.write_text(json.dumps(row) + '\n{"engine"')
  assert asyncio.run(recorded(path).search("a", 1)) == []
  with serving(ok(ANSWERS["searxng"])) as (url, _):
    ask = EngineSearch(engine=ENGINES["searxng"], url=url)
    asyncio.run(recorded(path, ask).search("b", 1))
  assert len(path.read_text().splitlines()) == 2
  assert len(asyncio.run(recorded(path).search("b", 1))) == 1
  path.write_text('{"engine": 1}\n' + json.dumps(row) + "\n")
  with pytest.raises(RetrievalError, match="Line 1"):
    recorded(path)
  with pytest.raises(RetrievalError, match="web_recordings"):
    recorded(tmp_path / "none.jsonl")


def test_results_are_shown_word_for_word():
  text = result_blocks(
    [
      WebResult(title="A", url="https://a", text="one <b>two</b>", date="2020"),
      WebResult(title="B", url="https://b", text="three"),
    ]
  )
  assert text == (
    "[1] A (2020)\nhttps://a\none <b>two</b>\n\n[2] B\nhttps://b\nthree"
  )
