"""The build command: resumed, killed, damaged files, wrong input."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from varl_jax.retrieval import build
from varl_jax.retrieval.build_log import BuildLog
from varl_jax.retrieval.corpora import SOURCES
from varl_jax.retrieval.opening import make_embedder, open_index, open_writer
from varl_jax.retrieval.passage import RetrievalError

ROOT = pathlib.Path(__file__).parents[2]


def topics(first, count):
  rows = "".join(
    f'<health-topic title="Topic {i}" id="{i}" url="u{i}">'
    f"<full-summary>&lt;p&gt;About word{i}.&lt;/p&gt;</full-summary>"
    "</health-topic>"
    for i in range(first, first + count)
  )
  return f"<health-topics>{rows}</health-topics>"


@pytest.fixture
def corpus(tmp_path):
  folder = tmp_path / "corpus"
  folder.mkdir()
  for number in range(3):
    (folder / f"{number}.xml").write_text(topics(number * 1000, 700))
  return folder


def run(corpus, index, *more, source="medlineplus"):
  return build.main(
    [f"--source={source}", f"--path={corpus}", f"--index={index}", *more]
  )


def counts(index, **settings):
  with contextlib.closing(open_index(index, **settings)) as opened:
    return opened.counts()


def test_a_build_says_what_it_did_and_is_searched(tmp_path, corpus, capsys):
  assert run(corpus, tmp_path / "index") == 0
  said = capsys.readouterr().out
  assert "medlineplus 2/3 1.xml: 700 passages, done" in said
  assert "2100 passages from 3 files (0 done before, 0 unreadable)" in said
  assert "Licence: US government work" in said
  with contextlib.closing(open_index(tmp_path / "index")) as index:
    [hit] = index.search("word1042", 5)
    assert hit.passage.passage_id == "medlineplus:1042_0"
    assert hit.passage.attribution == "MedlinePlus.gov, NLM"


def test_what_is_done_is_not_read_again(tmp_path, corpus, capsys):
  run(corpus, tmp_path / "index")
  (corpus / "3.xml").write_text(topics(5000, 10))
  capsys.readouterr()
  assert run(corpus, tmp_path / "index") == 0
  said = capsys.readouterr().out
  assert "10 passages from 1 files (3 done before" in said
  assert counts(tmp_path / "index") == {"medlineplus": 2110}


def test_sources_share_an_index(tmp_path, corpus):
  run(corpus, tmp_path / "index")
  (tmp_path / "own.md").write_text("# Rule\nWash your hands.\n")
  assert (
    run(
      tmp_path / "own.md",
      tmp_path / "index",
      "--licence=mine",
      "--attribution=me",
      source="folder",
    )
    == 0
  )
  with contextlib.closing(open_index(tmp_path / "index")) as index:
    assert index.counts() == {"medlineplus": 2100, "folder": 1}
    found = index.search("hand washing", 1)[0].passage
    assert (found.licence, found.attribution) == ("mine", "me")


def test_damaged_files_are_named_and_add_nothing(tmp_path, corpus, capsys):
  whole = topics(1000, 700)
  (corpus / "1.xml").write_text(whole[: len(whole) * 9 // 10])
  (corpus / "2.xml").write_text("version https://git-lfs.github.com/spec/v1\n")
  assert run(corpus, tmp_path / "index") == 1
  said = capsys.readouterr().out
  assert "1.xml is truncated" in said and "2.xml is a Git LFS pointer" in said
  assert "700 passages from 1 files (0 done before, 2 unreadable)" in said
  assert counts(tmp_path / "index") == {"medlineplus": 700}
  (corpus / "1.xml").write_text(whole)
  (corpus / "2.xml").write_text(topics(2000, 5))
  assert run(corpus, tmp_path / "index") == 0
  assert counts(tmp_path / "index") == {"medlineplus": 1405}


def test_a_changed_file_is_not_mixed_with_the_old_one(tmp_path, corpus, capsys):
  run(corpus, tmp_path / "index")
  (corpus / "0.xml").write_text(topics(0, 2))
  assert run(corpus, tmp_path / "index") == 2
  assert "has changed since it was indexed" in capsys.readouterr().err
  assert run(corpus, tmp_path / "index", "--replace") == 0
  assert "2100 passages removed" in capsys.readouterr().out
  assert counts(tmp_path / "index") == {"medlineplus": 1402}


def test_wrong_input_is_one_sentence(tmp_path, corpus, capsys):
  assert run(tmp_path / "none", tmp_path / "index") == 2
  assert "none does not exist." in capsys.readouterr().err
  assert run(corpus, tmp_path / "i2", "--encoder=nonsense") == 2
  assert "There is no encoder 'nonsense'" in capsys.readouterr().err
  assert run(corpus, corpus) == 2
  assert "holds other files" in capsys.readouterr().err
  assert run(corpus, tmp_path / "i3", "--engine=milvus") == 2
  assert "give an encoder" in capsys.readouterr().err
  with pytest.raises(SystemExit):
    run(corpus, tmp_path / "index", source="nonsense")
  capsys.readouterr()
  with contextlib.closing(open_writer(tmp_path / "index")):
    assert run(corpus, tmp_path / "index") == 2
    assert "is being written by process" in capsys.readouterr().err


def test_an_index_keeps_its_encoder(tmp_path, corpus, capsys):
  assert run(corpus, tmp_path / "index", "--encoder=hashing") == 0
  assert run(corpus, tmp_path / "index") == 2
  assert "was built with the encoder hashing-1" in capsys.readouterr().err
  with pytest.raises(RetrievalError, match="give that encoder"):
    open_index(tmp_path / "index")
  embedder = make_embedder("hashing")
  with contextlib.closing(
    open_index(tmp_path / "index", embedder=embedder)
  ) as index:
    assert index.search("word1042", 1)[0].passage.title == "Topic 1042"


def test_an_interruption_keeps_what_was_put(tmp_path, corpus, monkeypatch):
  source = SOURCES["medlineplus"]
  seen = 0

  class Interrupting(BuildLog):
    def note(self, *args, **kwargs):
      nonlocal seen
      super().note(*args, **kwargs)
      seen += 1
      if seen == 4:
        raise KeyboardInterrupt

  monkeypatch.setattr(build, "BuildLog", Interrupting)
  assert run(corpus, tmp_path / "index") == 130
  monkeypatch.undo()
  read = []

  def counted(file):
    for number, piece in enumerate(source.parse(file)):
      read.append((file.name, number))
      yield piece

  monkeypatch.setitem(SOURCES, "medlineplus", _replaced(source, parse=counted))
  assert run(corpus, tmp_path / "index") == 0
  assert {name for name, _ in read} == {"1.xml", "2.xml"}
  assert counts(tmp_path / "index") == {"medlineplus": 2100}


def _replaced(source, **changed):
  import dataclasses

  return dataclasses.replace(source, **changed)


@pytest.mark.slow
def test_a_killed_build_goes_on_and_ends_the_same(tmp_path, corpus):
  """kill -9 at several moments; the result is that of an unbroken build."""
  for number in range(12):
    (corpus / f"x{number}.xml").write_text(topics(10_000 * (1 + number), 900))
  command = [sys.executable, "-m", "varl_jax.retrieval.build"]
  command += ["--source=medlineplus", f"--path={corpus}"]
  whole = subprocess.run(
    [*command, f"--index={tmp_path / 'whole'}"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert whole.returncode == 0, whole.stderr
  killed = 0
  for after in (1, 3, 4):
    process = subprocess.Popen(
      [*command, f"--index={tmp_path / 'index'}"],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for number, _ in enumerate(process.stdout, 1):
      if number == after:
        process.send_signal(signal.SIGKILL)
        killed += 1
        break
    process.stdout.close()
    process.wait()
  assert killed == 3
  assert run(corpus, tmp_path / "index") == 0
  with (
    contextlib.closing(open_index(tmp_path / "whole")) as whole_index,
    contextlib.closing(open_index(tmp_path / "index")) as index,
  ):
    assert index.counts() == whole_index.counts() == {"medlineplus": 12_900}
    for word in ("word1042", "word30500", "word120899"):
      assert index.search(word, 3) == whole_index.search(word, 3)
