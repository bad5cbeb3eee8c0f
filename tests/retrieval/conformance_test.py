"""One suite over every engine: embedded, Milvus Lite, a Milvus server.

A server is taken from VARL_JAX_MILVUS_URI. Without one, Lite's own server
stands in, which speaks the same protocol over a port.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from varl_jax.retrieval.embedder import HashingEmbedder
from varl_jax.retrieval.opening import open_index, open_writer
from varl_jax.retrieval.passage import (
  IndexInUse,
  Passage,
  RecipeMismatch,
  RetrievalError,
)

ROOT = pathlib.Path(__file__).parents[2]
ENGINES = ("local", "lite", "server")


def passage(name, text, *, source="a", title="", **more):
  return Passage(
    passage_id=f"{source}:{name}",
    source=source,
    title=title,
    text=text,
    licence="MIT",
    attribution="Nobody",
    **more,
  )


PAGES = (
  passage("gout", "Gout is arthritis from crystals of uric acid."),
  passage("flu", "Influenza is an infection of the airways by a virus."),
  passage("boil", "A boil is an infected hair root.", source="b"),
  passage("stone", "A kidney stone is hard and hurts.", source="b"),
)


@dataclasses.dataclass(frozen=True)
class Engine:
  """Opens indexes of one engine."""

  name: str
  uri: str = ""
  width: int = 64

  @property
  def kind(self):
    return "local" if self.name == "local" else "milvus"

  def writer(self, folder, **changed):
    settings = dict(
      embedder=HashingEmbedder(width=self.width),
      engine=self.kind,
      uri=self.uri,
    )
    return open_writer(folder, **{**settings, **changed})

  def index(self, folder, **changed):
    settings = dict(embedder=HashingEmbedder(width=self.width))
    return open_index(folder, **{**settings, **changed})

  def fill(self, folder, passages=PAGES):
    with contextlib.closing(self.writer(folder)) as writer:
      writer.put(passages)
      writer.publish()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  """The address of a Milvus server."""
  given = os.environ.get("VARL_JAX_MILVUS_URI")
  if given:
    yield given
    return
  pytest.importorskip("milvus_lite")
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  data = tmp_path_factory.mktemp("milvus")
  command = [sys.executable, "-m", "milvus_lite", "server"]
  command += ["--data-dir", str(data), "--host", "127.0.0.1"]
  process = subprocess.Popen(
    [*command, "--port", str(port)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    for _ in range(300):
      with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        break
      assert process.poll() is None, "the server ended"
      time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
  finally:
    process.terminate()
    process.wait()


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
  if request.param != "local":
    pytest.importorskip("pymilvus")
  if request.param == "server":
    return Engine("server", uri=request.getfixturevalue("server"))
  return Engine(request.param)


@pytest.fixture(scope="module")
def opened(engine, tmp_path_factory):
  """The folder of an index over PAGES, and the index; for reading alone."""
  folder = tmp_path_factory.mktemp(engine.name) / "index"
  engine.fill(folder)
  with contextlib.closing(engine.index(folder)) as index:
    yield folder, index


def names(hits):
  return [hit.passage.passage_id for hit in hits]


def test_what_was_put_is_found_with_all_that_was_kept(opened):
  _, index = opened
  hits = index.search("uric acid crystals", 2)
  assert hits[0].passage == PAGES[0]
  assert hits[0].score > hits[1].score
  assert index.counts() == {"a": 2, "b": 2}
  assert index.get("b:boil") == PAGES[2]
  assert index.get("b:none") is None


def test_searches_repeat_exactly_from_many_threads(opened):
  _, index = opened
  queries = ["infected hair", "a virus", "kidney"] * 4
  alone = [index.search(query, 4) for query in queries]
  found = [None] * len(queries)

  def search(place):
    found[place] = index.search(queries[place], 4)

  threads = [threading.Thread(target=search, args=(i,)) for i in range(12)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == alone


def test_a_known_id_is_replaced(engine, tmp_path):
  engine.fill(tmp_path / "index")
  new = passage("gout", "Podagra of the toe.")
  engine.fill(tmp_path / "index", (new, new))
  with contextlib.closing(engine.index(tmp_path / "index")) as index:
    assert index.get("a:gout") == new
    assert names(index.search("podagra", 1)) == ["a:gout"]
    assert index.counts() == {"a": 2, "b": 2}
    found = index.search("uric acid crystals", 9)
  assert all("uric" not in hit.passage.text for hit in found)


def test_deleted_passages_are_gone(engine, tmp_path):
  folder = tmp_path / "index"
  engine.fill(folder)
  with contextlib.closing(engine.writer(folder)) as writer:
    assert writer.delete(["a:gout", "a:none"]) == 1
    assert writer.delete_source("b") == 2
    assert writer.delete_source("b") == 0
    assert writer.counts() == {"a": 1}
    writer.publish()
  with contextlib.closing(engine.index(folder)) as index:
    assert names(index.search("gout uric boil virus stone", 9)) == ["a:flu"]
    assert index.get("a:gout") is None
    assert index.counts() == {"a": 1}


def test_sources_are_filtered(opened):
  _, index = opened
  query = "infection by a virus, an infected hair"
  assert {name[0] for name in names(index.search(query, 9))} == {"a", "b"}
  for source in "ab":
    found = names(index.search(query, 9, sources=(source,)))
    assert len(found) == 2 and {name[0] for name in found} == {source}
  assert index.search(query, 9, sources=("none",)) == []
  assert index.search(query, 9, sources=()) == []


def test_passages_are_drawn_evenly_and_repeatably(opened):
  _, index = opened
  drawn = [index.draw(random.Random(i)) for i in range(60)]
  assert drawn == [index.draw(random.Random(i)) for i in range(60)]
  assert {p.passage_id for p in drawn} == {p.passage_id for p in PAGES}
  only = {index.draw(random.Random(i), sources="b").source for i in range(20)}
  assert only == {"b"}
  with pytest.raises(RetrievalError, match="no passage of none"):
    index.draw(random.Random(0), sources=("none",))


def test_an_empty_index_answers(engine, tmp_path):
  engine.fill(tmp_path / "index", ())
  with contextlib.closing(engine.index(tmp_path / "index")) as index:
    assert index.search("anything", 3) == []
    assert index.counts() == {}
    with pytest.raises(RetrievalError, match="no passage of any source"):
      index.draw(random.Random(0))


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of and", "zyx" * 90])
def test_queries_without_a_word_are_no_error(opened, query):
  _, index = opened
  assert len(index.search(query, 2)) <= 2
  with pytest.raises(ValueError, match="at least 1"):
    index.search("gout", 0)


def test_any_script_and_any_sign_is_kept_and_found(engine, tmp_path):
  pages = (
    passage("ü'\"\\", "Überempfindlichkeit gegen Bienengift \U0001f41d\n\ttab"),
    passage("喉", "急性咽头炎 喉痛", title="咽炎"),
    passage("ε" * 100, "Οξεία φαρυγγίτιδα και πυρετός"),
    passage("ар", "التهاب البلعوم الحاد"),
    passage("braces", "{title} {text} %s \\u0000 </a> ] \x7f"),
  )
  engine.fill(tmp_path / "index", pages)
  with contextlib.closing(engine.index(tmp_path / "index")) as index:
    for query, place in [
      ("uberempfindlichkeit", 0),
      ("咽头炎", 1),
      ("φαρυγγίτιδα", 2),
      ("البلعوم", 3),
    ]:
      assert index.search(query, 1)[0].passage == pages[place]
    assert [index.get(p.passage_id) for p in pages] == list(pages)


@pytest.mark.slow
def test_another_process_reads_what_was_published(engine, tmp_path):
  folder = tmp_path / "index"
  engine.fill(folder)
  with contextlib.closing(engine.index(folder)):
    if engine.name == "lite":
      assert "IndexInUse" in _other_process(engine, folder)
    else:
      assert json.loads(_other_process(engine, folder)) == ["a:flu"]
  assert json.loads(_other_process(engine, folder)) == ["a:flu"]


def _other_process(engine, folder):
  """What a search in a process of its own prints, or its error's name."""
  code = (
    "import json, sys\n"
    "from varl_jax.retrieval.embedder import HashingEmbedder\n"
    "from varl_jax.retrieval.opening import open_index\n"
    "from varl_jax.retrieval.passage import RetrievalError\n"
    "try:\n"
    "  index = open_index(sys.argv[1],"
    f" embedder=HashingEmbedder(width={engine.width}))\n"
    "except RetrievalError as error:\n"
    "  sys.exit(print(type(error).__name__, error))\n"
    "hits = index.search('influenza', 1)\n"
    "print(json.dumps([hit.passage.passage_id for hit in hits]))\n"
    "index.close()\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code, str(folder)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0 and done.stderr == "", done.stderr
  return done.stdout


def test_two_readers_and_a_writer_work_at_once(engine, tmp_path):
  folder = tmp_path / "index"
  engine.fill(folder)
  with contextlib.closing(engine.index(folder)) as first:
    with contextlib.closing(engine.index(folder)) as second:
      with contextlib.closing(engine.writer(folder)) as writer:
        writer.put([passage("mumps", "Mumps swells the parotid gland.")])
        writer.publish()
      found = [names(i.search("uric acid", 1)) for i in (first, second)]
      assert found == [["a:gout"]] * 2
    assert names(first.search("uric acid", 1)) == ["a:gout"]
  with contextlib.closing(engine.index(folder)) as third:
    assert names(third.search("parotid", 1)) == ["a:mumps"]


def test_a_second_writer_is_told_who_has_the_index(engine, tmp_path):
  with contextlib.closing(engine.writer(tmp_path / "index")):
    with pytest.raises(IndexInUse, match=f"process {os.getpid()}; wait"):
      engine.writer(tmp_path / "index")
  engine.writer(tmp_path / "index").close()


def test_another_encoder_is_refused_by_name(engine, opened):
  folder, _ = opened
  other = HashingEmbedder(width=32)
  with pytest.raises(RecipeMismatch, match=r"width = 64.*has 32"):
    engine.index(folder, embedder=other)
  with pytest.raises(RecipeMismatch, match=r"width = 64.*has 32"):
    engine.writer(folder, embedder=other)
  with pytest.raises(RecipeMismatch, match="give that encoder"):
    engine.index(folder, embedder=None)
  with pytest.raises(RecipeMismatch, match="word table 'clinical'"):
    engine.writer(folder, lexicon="")
  with contextlib.closing(
    engine.index(folder, embedder=None, lexical_only=True)
  ) as index:
    assert names(index.search("uric acid", 1)) == ["a:gout"]
  engine.writer(folder).close()


def test_an_unfinished_index_says_so(engine, tmp_path):
  with pytest.raises(RetrievalError, match="There is no index in"):
    engine.index(tmp_path / "index")
  with contextlib.closing(engine.writer(tmp_path / "index")) as writer:
    writer.put(PAGES)
  with pytest.raises(RetrievalError, match="unfinished"):
    engine.index(tmp_path / "index")
  with contextlib.closing(engine.writer(tmp_path / "index")) as writer:
    assert writer.counts() == {"a": 2, "b": 2}
    writer.publish()
  engine.index(tmp_path / "index").close()


KILLED = """
import pathlib, sys
from varl_jax.retrieval.embedder import HashingEmbedder
from varl_jax.retrieval.opening import open_writer
from varl_jax.retrieval.passage import Passage
folder, kind, uri, width = sys.argv[1:]
writer = open_writer(
  folder, embedder=HashingEmbedder(width=int(width)), engine=kind, uri=uri
)
number = 0
while True:
  writer.put([
    Passage(passage_id=f"k:{number + i}", source="k", title="", text=f"word{i}")
    for i in range(50)
  ])
  number += 50
  print(number, flush=True)
  if number == 200:
    writer.publish()
    print("published", flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_had_put(engine, tmp_path):
  folder = tmp_path / "index"
  process = subprocess.Popen(
    [sys.executable, "-c", KILLED, folder, engine.kind, engine.uri, "64"],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None
  last = 0
  for line in process.stdout:
    last = last if "published" in line else int(line)
    if last >= 400:
      process.send_signal(signal.SIGKILL)
      break
  rest = [line for line in process.stdout if line.endswith("\n")]
  process.stdout.close()
  assert process.wait() == -signal.SIGKILL
  last = max([last, *map(int, rest)])
  with contextlib.closing(engine.index(folder)) as index:
    assert index.counts() == {"k": 200}
    assert index.get("k:199") is not None
  with contextlib.closing(engine.writer(folder)) as writer:
    assert writer.counts()["k"] in (last, last + 50)
    writer.publish()
  with contextlib.closing(engine.index(folder)) as index:
    assert index.counts()["k"] in (last, last + 50)
    assert index.get(f"k:{last - 1}") is not None
