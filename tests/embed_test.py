"""Encoders injected and served give one index the same vectors."""

import contextlib
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.models import tiny_bert
from varl_jax.embed import FolderEmbedder, model_id, resolve
from varl_jax.models.encoder import TextEncoder
from varl_jax.models.errors import ModelError
from varl_jax.retrieval.endpoint_embedder import EndpointEmbedder
from varl_jax.retrieval.opening import open_index, open_writer
from varl_jax.retrieval.passage import (
  Passage,
  RecipeMismatch,
  RetrievalError,
)

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  Passage(passage_id=f"a:{i}", source="a", title=title, text=text)
  for i, (title, text) in enumerate(
    [("knee", "a sore knee hurts"), ("fever", "the child"), ("gout", "gouty")]
  )
]


def test_sides_have_their_own_encoder_prefix_and_length(tmp_path):
  tiny_bert.write(tmp_path / "query", seed=1)
  tiny_bert.write(tmp_path / "article", seed=2)
  embedder = FolderEmbedder(
    tmp_path / "article",
    query_folder=tmp_path / "query",
    query_prefix="fever ",
    query_length=20,
    pooling="cls",
    form="{title}[SEP]{text}",
  )
  query = TextEncoder(tmp_path / "query", pooling="cls", max_length=20)
  article = TextEncoder(tmp_path / "article", pooling="cls")
  assert embedder.embed_queries(["knee"]) == pytest.approx(
    query.encode(["fever knee"])
  )
  assert embedder.embed_passages(PAGES) == pytest.approx(
    article.encode([(p.title, p.text) for p in PAGES])
  )
  assert embedder.recipe.query.max_length == 20
  assert embedder.recipe.query.model == f"query@{query.digest}"
  assert embedder.recipe.document.model == f"article@{article.digest}"


def test_an_index_refuses_other_weights(tmp_path):
  tiny_bert.write(tmp_path / "tiny", seed=1)
  embedder = FolderEmbedder(tmp_path / "tiny")
  folder = tmp_path / "index"
  with contextlib.closing(open_writer(folder, embedder=embedder)) as writer:
    writer.put(PAGES)
    writer.publish()
  with contextlib.closing(open_index(folder, embedder=embedder)) as index:
    assert len(index.search("zyx", 3)) == 3
    assert index.search("gouty", 1)[0].passage == PAGES[2]
  tiny_bert.write(tmp_path / "tiny", seed=2)
  with pytest.raises(RecipeMismatch, match=r"query.model = 'tiny@"):
    open_index(folder, embedder=FolderEmbedder(tmp_path / "tiny"))


def test_the_packaged_encoder_knows_what_is_alike():
  try:
    folder = resolve("minilm")
  except ModelError:
    pytest.skip("the extra embed is not installed")
  encoder = TextEncoder(folder)
  assert model_id("minilm", encoder) == "minilm@0147dd92681809c0"
  found = encoder.encode(
    ["a heart attack", "acute myocardial infarction", "a kidney stone"]
  )
  near = found @ found[0]
  assert near[1] > 0.5 > near[2]


@pytest.mark.slow
def test_a_served_encoder_is_the_injected_one(tmp_path):
  tiny_bert.write(tmp_path / "tiny")
  process = subprocess.Popen(
    [
      sys.executable,
      "-m",
      "varl_jax.embed",
      f"--model={tmp_path / 'tiny'}",
      "--port=0",
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None and process.stderr is not None
  try:
    line = process.stdout.readline()
    assert line.startswith("Serving --encoder=http://127.0.0.1:"), (
      process.stderr.read()
    )
    url, _, model = line.split("=")[1].strip().partition("#")
    served = EndpointEmbedder.at(url, model)
    ours = FolderEmbedder(tmp_path / "tiny")
    for text in ("knee", "", "gouty child"):
      [found] = served.embed_queries([text or " "])
      assert found == pytest.approx(ours.embed_queries([text])[0], abs=1e-6)
    many = served.embed_passages(PAGES * 40)
    assert np.abs(many - ours.embed_passages(PAGES * 40)).max() < 1e-6
    with pytest.raises(RetrievalError, match="status 404"):
      EndpointEmbedder.at(url, "other")
  finally:
    process.send_signal(signal.SIGTERM)
    with process.stdout, process.stderr:
      assert process.wait(timeout=30) == 0


def test_wrong_input_is_one_sentence(tmp_path):
  for argument, message in (
    ("--port=0", "--model names no encoder"),
    (f"--model={tmp_path}", "has no config.json"),
  ):
    done = subprocess.run(
      [sys.executable, "-m", "varl_jax.embed", argument],
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("varl_jax: ") and message in done.stderr
    assert done.stderr.count("\n") == 1
