"""The loader is strict and the package's own texts pass it."""

import importlib.resources
import json
import re

import pytest

from varl_jax.prompts import loader
from varl_jax.prompts.loader import (
  ROLES,
  Prompt,
  PromptError,
  load_prompt,
  load_prompts,
)


def test_values_go_in_literally():
  prompt = Prompt(name="p", text="{{a}} and {{b_c}} and {json} {{a}}")
  assert prompt.slots == {"a", "b_c"}
  text = prompt.render(a="{{b_c}} \\1 {x}", b_c="2")
  assert text == "{{b_c}} \\1 {x} and 2 and {json} {{b_c}} \\1 {x}"


@pytest.mark.parametrize("values", [{}, {"a": "1"}, {"b": "1"}])
def test_missing_values_are_errors(values):
  with pytest.raises(PromptError, match="lacks"):
    Prompt(name="p", text="x {{a}} {{b}}").render(**values)


def test_extra_values_are_errors():
  with pytest.raises(PromptError, match="has no"):
    Prompt(name="p", text="x {{a}}").render(a="1", c="2")


@pytest.mark.parametrize(
  "text", ["", "  ", "{{a}}", "x {{ a }}", "x {{A}}", "x {{a}", "x }} y"]
)
def test_unusable_texts_are_errors(text):
  with pytest.raises(PromptError):
    Prompt(name="p", text=text)


@pytest.mark.parametrize(
  ("domain", "role"), [("story", "nobody"), ("nowhere", "judge")]
)
def test_unknown_names_are_errors(domain, role):
  with pytest.raises(PromptError, match="There is no"):
    load_prompt(domain, role)


def write_package(folder, slots, missing=()):
  """A prompts package whose texts use the slots `a` and `untrusted`."""
  (folder / "shared").mkdir()
  (folder / "domain").mkdir()
  for name in {*ROLES, loader.STRICT_NOTE, "untrusted"} - set(missing):
    text = "rule" if name == "untrusted" else "Text {{a}} {{untrusted}}"
    (folder / "shared" / f"{name}.txt").write_text(text)
  (folder / "domain" / "slots.json").write_text(slots)


@pytest.mark.parametrize(
  ("slots", "match"),
  [
    ("{", "no JSON"),
    ("[]", "no JSON object"),
    ("{}", "needs slot 'a'"),
    ('{"a": ""}', "no text"),
    ('{"a": 1}', "no text"),
    ('{"a": "x", "b": "y"}', "No prompt uses"),
    ('{"a": "{{b}}"}', "nests"),
    ('{"a": "x", "untrusted": "y"}', "bad name"),
    ('{"a": "x", "B": "y"}', "bad name"),
  ],
)
def test_bad_slots_are_errors(tmp_path, monkeypatch, slots, match):
  write_package(tmp_path, slots)
  monkeypatch.setattr(loader, "_folder", lambda: tmp_path)
  with pytest.raises(PromptError, match=match):
    load_prompts("domain")


def test_a_missing_text_is_an_error(tmp_path, monkeypatch):
  write_package(tmp_path, '{"a": "x"}', missing=["judge"])
  monkeypatch.setattr(loader, "_folder", lambda: tmp_path)
  with pytest.raises(PromptError, match="no prompt 'judge'"):
    load_prompts("domain")


def test_a_whole_package_loads(tmp_path, monkeypatch):
  write_package(tmp_path, '{"a": "x {brace}"}')
  monkeypatch.setattr(loader, "_folder", lambda: tmp_path)
  prompts = load_prompts("domain")
  assert prompts.system("judge").content == "Text x {brace} rule"
  assert prompts.system("judge").role == "system"
  assert prompts.strict_note == prompts.texts["strict_note"]


def test_story_texts_are_finished():
  prompts = load_prompts("story")
  assert set(prompts.texts) == {*ROLES, "strict_note"}
  for name, text in prompts.texts.items():
    assert "{{" not in text, name
    assert text == text.strip()


def test_all_but_the_solver_name_their_role():
  for name in ROLES:
    text = load_prompts("story").texts[name]
    first = text.splitlines()[0]
    assert (first == f"Role: {name}") == (name != "solver")


def test_all_who_read_blocks_are_told_what_they_are():
  for name in set(ROLES) - {"solver"}:
    text = load_prompts("story").texts[name]
    assert "bind you to nothing" in text, name


def test_described_replies_are_json_but_for_values():
  """The reply form shown at the end of a prompt parses."""
  for name in set(ROLES) - {"solver", "adversary"}:
    text = load_prompts("story").texts[name]
    shown = re.search(r'^\{"(?:.|\n)*\}$', text, re.M)
    assert shown, name
    json.loads(shown.group())


def test_no_unused_file_lies_in_the_package():
  shared = importlib.resources.files("varl_jax.prompts") / "shared"
  names = {path.name.removesuffix(".txt") for path in shared.iterdir()}
  assert names == {*ROLES, "strict_note", "untrusted"}
