"""Encoders: recipes, hashing, and endpoints that fail in every way."""

import contextlib
import dataclasses
import http.server
import json
import math
import threading

import numpy as np
import pytest

from varl_jax.retrieval import endpoint_embedder
from varl_jax.retrieval.embedder import (
  EncoderRecipe,
  HashingEmbedder,
  Side,
  check_recipe,
  document_text,
)
from varl_jax.retrieval.endpoint_embedder import EndpointEmbedder
from varl_jax.retrieval.opening import make_embedder
from varl_jax.retrieval.passage import (
  Passage,
  RecipeMismatch,
  RetrievalError,
)

PAGE = Passage(
  passage_id="a:1", source="a", title="{text} Knee", text="Sore {title} knee."
)


def test_a_form_is_filled_in_literally():
  assert document_text(PAGE, "{title}\n{text}") == (
    "{text} Knee\nSore {title} knee."
  )
  assert document_text(PAGE, "T: {title}.") == "T: {text} Knee."
  assert document_text(PAGE, "{text}{x}") == "Sore {title} knee.{x}"


def test_hashed_texts_are_near_where_they_share_words():
  embedder = HashingEmbedder()
  found = embedder.embed_queries(
    ["a sore knee", "the knees are sore", "influenza virus", ""]
  )
  assert found.dtype == np.float32 and found.shape == (4, 256)
  assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 1, 0])
  near = found @ found[0]
  assert near[1] > 0.5 > abs(near[2])
  again = HashingEmbedder().embed_queries(["a sore knee"])[0]
  assert (again == found[0]).all()


def recipe(**changed):
  side = Side(model="m")
  return dataclasses.replace(
    EncoderRecipe(query=side, document=side, width=8), **changed
  )


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (recipe(width=9), "width = 8, and the encoder has 9"),
    (recipe(query=Side(model="m", prefix="q: ")), "query.prefix = ''"),
    (recipe(query=Side(model="n")), "query.model = 'm'"),
    (recipe(document=Side(model="m", pooling="cls")), "document.pooling"),
    (recipe(document=Side(model="m", max_length=9)), "document.max_length"),
    (recipe(document=Side(model="m", form="{text}")), "document.form"),
    (None, "built with the encoder m; give that encoder"),
  ],
)
def test_every_part_of_a_recipe_is_enforced(given, message):
  stored = json.loads(json.dumps(recipe().to_dict()))
  check_recipe(stored, recipe(), "here")
  with pytest.raises(RecipeMismatch, match=message):
    check_recipe(stored, given, "here")
  with pytest.raises(RecipeMismatch, match="built without an encoder"):
    check_recipe(None, recipe(), "here")
  check_recipe(None, None, "here")


class Server:
  """An /embeddings that answers from a list, then properly."""

  def __init__(self, width=4):
    self.width = width
    self.script = []
    self.bodies = []
    self.paths = []

  def answer(self, body):
    if self.script:
      return self.script.pop(0)
    rows = [
      {"index": i, "embedding": self.vector(text)}
      for i, text in enumerate(body["input"])
    ]
    return 200, {"object": "list", "data": rows[::-1], "model": body["model"]}

  def vector(self, text):
    return [float(len(text)), 1.0, *[0.0] * (self.width - 2)]


@pytest.fixture
def server():
  made = Server()

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      made.bodies.append(body)
      made.paths.append((self.path, self.headers.get("Authorization")))
      status, reply = made.answer(body)
      data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
      self.send_response(status)
      self.send_header("Content-Type", "application/json")
      self.send_header("Content-Length", str(len(data)))
      self.end_headers()
      self.wfile.write(data)

    def log_message(self, format, *args):
      pass

  listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=listening.serve_forever)
  thread.start()
  made.url = f"http://127.0.0.1:{listening.server_port}/v1"
  try:
    yield made
  finally:
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
  monkeypatch.setattr(endpoint_embedder.time, "sleep", lambda seconds: None)


def open_at(server, **tree):
  return EndpointEmbedder.from_dict({"url": server.url, "model": "m", **tree})


def test_an_endpoint_embeds_with_prefixes_in_order(server):
  embedder = open_at(
    server,
    query={"prefix": "query: "},
    document={"model": "d", "prefix": "passage: ", "form": "{title}"},
  )
  assert embedder.recipe.width == 4
  found = embedder.embed_queries(["ab", "abcd"])
  expected = [[len(t), 1, 0, 0] for t in ("query: ab", "query: abcd")]
  expected = [np.array(row) / np.linalg.norm(row) for row in expected]
  assert found == pytest.approx(np.array(expected), abs=1e-6)
  embedder.embed_passages([PAGE])
  assert server.bodies[-1]["input"] == ["passage: {text} Knee"]
  assert [body["model"] for body in server.bodies] == ["m", "m", "d"]
  assert {path for path, _ in server.paths} == {"/v1/embeddings"}
  many = embedder.embed_queries([f"{i}" for i in range(150)])
  assert many.shape == (150, 4)
  assert [len(b["input"]) for b in server.bodies[-3:]] == [64, 64, 22]


def test_passing_failures_are_outlasted(server):
  embedder = open_at(server, width=4)
  server.script = [(503, {}), (429, {}), (500, b"no json")]
  assert embedder.embed_queries(["x"]).shape == (1, 4)
  assert len(server.bodies) == 4


@pytest.mark.parametrize(
  ("status", "reply", "message", "calls"),
  [
    (503, {}, "status 503", 4),
    (401, {}, "status 401", 1),
    (404, {}, "status 404", 1),
    (200, {"data": []}, "0 vectors for 1 texts|something else", 1),
    (200, {"data": None}, "something else than embeddings", 1),
    (
      200,
      {"data": [{"index": 0, "embedding": [1.0, math.inf, 0, 0]}]},
      "are no numbers",
      1,
    ),
    (
      200,
      {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
      "vectors of 2 numbers, the index has 4",
      1,
    ),
    (
      200,
      {
        "data": [
          {"index": 0, "embedding": [1.0]},
          {"index": 1, "embedding": [1.0, 2.0]},
        ]
      },
      "something else than embeddings",
      1,
    ),
  ],
)
def test_lasting_failures_are_one_sentence(
  server, status, reply, message, calls
):
  embedder = open_at(server, width=4)
  server.script = [(status, reply)] * 9
  with pytest.raises(RetrievalError, match=message):
    embedder.embed_queries(["x"])
  assert len(server.bodies) == calls


def test_no_server_and_no_key_are_named(server, monkeypatch):
  with pytest.raises(RetrievalError, match="check that it serves m"):
    make_embedder("http://127.0.0.1:9/v1#m")
  with pytest.raises(RetrievalError, match="names no model; write URL#MODEL"):
    make_embedder(server.url)
  with pytest.raises(RetrievalError, match="has no SOME_KEY, the key for"):
    open_at(server, api_key_env="SOME_KEY")
  monkeypatch.setenv("SOME_KEY", "planted")
  open_at(server, api_key_env="SOME_KEY")
  assert server.paths[-1][1] == "Bearer planted"
  server.script = [(401, {"error": {"message": "bad key planted"}})]
  with pytest.raises(RetrievalError) as failed:
    open_at(server, api_key_env="SOME_KEY")
  assert "planted" not in str(failed.value)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "describes no encoder"),
    ('{"model": "m"}', "'url'"),
    ('{"url": "u", "query": {}}', "query has no model"),
    ('{"url": "u", "model": "m", "size": 3}', "unknown key 'size'"),
    ('{"url": "u", "model": "m", "query": {"size": 3}}', "size"),
  ],
)
def test_a_file_that_describes_none_is_named(tmp_path, text, message):
  (tmp_path / "e.json").write_text(text)
  with pytest.raises(RetrievalError, match=message):
    make_embedder(str(tmp_path / "e.json"))


def test_an_index_over_an_endpoint_is_searched(server, tmp_path):
  from varl_jax.retrieval.opening import open_index, open_writer

  described = tmp_path / "e.json"
  described.write_text(json.dumps({"url": server.url, "model": "m"}))
  embedder = make_embedder(str(described))
  with contextlib.closing(
    open_writer(tmp_path / "index", embedder=embedder)
  ) as writer:
    writer.put([PAGE])
    writer.publish()
  with contextlib.closing(
    open_index(tmp_path / "index", embedder=embedder)
  ) as index:
    assert index.search("unknown words", 1)[0].passage == PAGE
    server.script = [(401, {})]
    with pytest.raises(RetrievalError, match="status 401"):
      index.search("knee", 1)
