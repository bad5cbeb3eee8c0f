"""Whose a folder is, said by name, and small files that are never half."""

import dataclasses
import errno
import json
import os

import pytest

from varl_jax import files
from varl_jax.config import MAY_CHANGE, SHAPES_REPLIES, Config
from varl_jax.run_folder import RunError, check_claim, claim, run_id

OTHER = dataclasses.replace(
  Config(),
  seed=5,
  train=dataclasses.replace(Config().train, learning_rate=2e-6),
)


def test_a_refusal_names_what_differs_and_what_may(tmp_path):
  claim(Config(), tmp_path)
  with pytest.raises(RunError) as caught:
    check_claim(OTHER, tmp_path)
  said = str(caught.value)
  assert "another config (seed, train.learning_rate);" in said
  for name in (*MAY_CHANGE, *SHAPES_REPLIES):
    assert name in said.partition("What may change")[2], name
  assert "Only" not in said


def test_many_differences_are_not_all_listed(tmp_path):
  claim(Config(), tmp_path)
  settings = json.loads((tmp_path / "config.json").read_text())
  del settings["pool"]
  settings["fingerprint"] = "of an earlier version"
  (tmp_path / "config.json").write_text(json.dumps(settings))
  with pytest.raises(RunError, match=r"\(pool\.window, .* and more\);"):
    check_claim(Config(), tmp_path)


def test_what_may_change_is_no_other_run(tmp_path):
  claim(Config(), tmp_path)
  longer = dataclasses.replace(Config().train, steps=7)
  check_claim(dataclasses.replace(Config(), train=longer), tmp_path)


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
  done = []
  for name in ("fsync", "replace"):
    real = getattr(os, name)
    monkeypatch.setattr(
      files.os, name, lambda *a, n=name, r=real: (done.append(n), r(*a))[1]
    )
  files.replace_text(tmp_path / "a", "text")
  assert done == ["fsync", "replace"]
  assert (tmp_path / "a").read_text() == "text"


def test_a_full_disk_leaves_the_old_text_and_no_draft(tmp_path, monkeypatch):
  (tmp_path / "a").write_text("old")

  def full(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(files.os, "fsync", full)
  with pytest.raises(OSError, match="No space left"):
    files.replace_text(tmp_path / "a", "new")
  assert [p.name for p in tmp_path.iterdir()] == ["a"]
  assert (tmp_path / "a").read_text() == "old"


def test_an_empty_name_of_a_run_is_none(tmp_path):
  (tmp_path / "run_id").write_text("")
  name = run_id(tmp_path)
  assert name and run_id(tmp_path) == name
