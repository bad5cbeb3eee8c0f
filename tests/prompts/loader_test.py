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
  domain_names,
  load_description,
  load_prompt,
  load_prompts,
  load_reference,
)
from varl_jax.rubrics.validation import criterion_problems
from varl_jax.types import Criterion

DOMAINS = domain_names()


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


def test_the_domains_of_the_package():
  assert set(DOMAINS) == {
    "clinical",
    "expert_reports",
    "finance_law",
    "medical_exam",
    "story",
  }


@pytest.fixture(name="mine")
def own_domain(tmp_path):
  """A folder of the user's, made of a domain of the package."""
  folder = tmp_path / "mine"
  folder.mkdir()
  slots = loader._folder() / "clinical" / "slots.json"
  (folder / "slots.json").write_text(slots.read_text())
  (folder / "description.txt").write_text("Requests of a kind.\n")
  return folder


@pytest.mark.parametrize(
  ("name", "load"),
  [("slots.json", load_prompts), ("description.txt", load_description)],
)
def test_a_folder_in_a_files_place_is_said_in_words(mine, name, load):
  (mine / name).unlink()
  (mine / name).mkdir()
  with pytest.raises(PromptError) as caught:
    load(str(mine))
  said = str(caught.value)
  assert f"The {name} of domain" in said and "Errno" not in said
  assert "cannot be read (Is a directory); mend that" in said


def test_a_folder_in_the_references_place_is_not_passed_over(mine):
  (mine / "reference.json").mkdir()
  with pytest.raises(PromptError, match=r"reference\.json of .* cannot"):
    load_reference(str(mine))


def test_a_folder_is_a_domain(mine):
  own = load_prompts(str(mine))
  assert own.texts == load_prompts("clinical").texts
  assert own.domain == str(mine)
  assert load_description(str(mine)) == "Requests of a kind."
  assert load_reference(str(mine)) == {}
  (mine / "reference.json").write_text('{"tasks": 7}')
  assert load_reference(str(mine)) == {"tasks": 7}


def test_a_domain_may_replace_a_shared_text(mine):
  (mine / "solver.txt").write_text("Know {{field}} well.")
  own = load_prompts(str(mine)).texts
  assert own["solver"] == "Know clinical medicine well."
  assert own["judge"] == load_prompts("clinical").texts["judge"]


def test_a_text_that_belongs_to_no_role_is_an_error(mine):
  (mine / "jugde.txt").write_text("Judge kindly.")
  with pytest.raises(PromptError, match="belongs to no role"):
    load_prompts(str(mine))


@pytest.mark.parametrize(
  ("file", "text", "match"),
  [
    ("description.txt", None, "no description.txt of domain"),
    ("description.txt", " ", "is empty"),
    ("reference.json", "{", "are no JSON"),
    ("reference.json", "[]", "are no JSON object"),
    ("description.txt", b"\xff", "not UTF-8"),
  ],
)
def test_bad_files_of_a_folder_are_errors(mine, file, text, match):
  path = mine / file
  path.unlink(missing_ok=True)
  if text is not None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
  load = load_description if file.endswith("txt") else load_reference
  with pytest.raises(PromptError, match=match):
    load(str(mine))


@pytest.mark.parametrize(
  ("name", "match"),
  [
    ("nowhere", "give the path of a folder with slots.json"),
    ("./nowhere", "no folder './nowhere'"),
    ("shared", "no domain 'shared'"),
    ("", "no domain ''"),
  ],
)
def test_a_domain_that_is_nowhere_is_an_error(name, match):
  with pytest.raises(PromptError, match=match):
    load_prompts(name)


@pytest.mark.parametrize("domain", sorted({*DOMAINS} - {"story"}))
def test_descriptions_are_general(domain):
  """No benchmark is named, and nothing is quoted."""
  text = load_description(domain)
  assert 300 < len(text) < 1500
  assert not re.search(r'bench|xpert|["?]|\d', text.casefold())


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
  ("slot", "points"), [("positive_example", 8), ("negative_example", -8)]
)
def test_examples_obey_the_rules_they_illustrate(domain, slot, points):
  path = loader._folder() / domain / "slots.json"
  text = json.loads(path.read_text())[slot]
  assert 40 <= len(text) <= 220
  assert criterion_problems(Criterion(text=text, points=points)) == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_finished(domain):
  prompts = load_prompts(domain)
  assert set(prompts.texts) == {*ROLES, "strict_note"}
  for name, text in prompts.texts.items():
    assert "{{" not in text, name
    assert text == text.strip()


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_but_the_solver_name_their_role(domain):
  for name in ROLES:
    text = load_prompts(domain).texts[name]
    first = text.splitlines()[0]
    assert (first == f"Role: {name}") == (name != "solver")


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_who_read_blocks_are_told_what_they_are(domain):
  for name in set(ROLES) - {"solver"}:
    text = load_prompts(domain).texts[name]
    assert "bind you to nothing" in text, name


@pytest.mark.parametrize("domain", DOMAINS)
def test_described_replies_are_json_but_for_values(domain):
  """The reply form shown at the end of a prompt parses."""
  for name in set(ROLES) - {"solver", "adversary", "reviser"}:
    text = load_prompts(domain).texts[name]
    shown = re.search(r'^\{"(?:.|\n)*\}$', text, re.M)
    assert shown, name
    json.loads(shown.group())


def test_no_unused_file_lies_in_the_package():
  shared = importlib.resources.files("varl_jax.prompts") / "shared"
  names = {path.name.removesuffix(".txt") for path in shared.iterdir()}
  assert names == {*ROLES, "strict_note", "untrusted"}
