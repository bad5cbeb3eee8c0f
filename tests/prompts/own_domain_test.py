"""What docs/own_domain.md says of a domain's files is so."""

import json
import pathlib
import re

import pytest

from varl_jax import benchmarks
from varl_jax.config import from_config_dict
from varl_jax.domains import load_domain
from varl_jax.prompts import loader
from varl_jax.prompts.loader import ROLES, load_prompts

TEXT = (pathlib.Path(__file__).parents[2] / "docs/own_domain.md").read_text()
ROWS = re.findall(r"^\| (`[^|]*) \| [^|]* \| ([^|]*) \|$", TEXT, re.M)
BLOCKS = re.findall(r"```json\n(.*?)```", TEXT, re.S)


def slots_of(domain):
  return json.loads((loader._folder() / domain / "slots.json").read_text())


def test_the_table_lists_every_slot():
  told = [name for names, _ in ROWS for name in re.findall(r"`(\w+)`", names)]
  assert sorted(told) == sorted(slots_of("clinical"))


@pytest.mark.parametrize(("names", "place"), ROWS)
def test_a_slot_stands_where_the_table_says(names, place):
  """The words before the dots come right before the slot, line ends apart."""
  before = place.partition("...")[0].strip()
  if before in ("-", "that is", "For example:"):
    return
  shared = [
    " ".join((loader._folder() / "shared" / f"{role}.txt").read_text().split())
    for role in ROLES
  ]
  [name] = re.findall(r"`(\w+)`", names)
  assert any(f"{before} {{{{{name}}}}}" in text for text in shared) or any(
    f"{before}{{{{{name}}}}}" in text for text in shared
  )


def test_the_examples_can_be_read(tmp_path):
  reference, task = BLOCKS
  (tmp_path / "slots.json").write_text(json.dumps(slots_of("finance_law")))
  (tmp_path / "description.txt").write_text("Requests of a kind.")
  (tmp_path / "reference.json").write_text(reference)
  config = from_config_dict(
    {"domain": str(tmp_path), "endpoints": {"roles": {"model": "m"}}}
  )
  known = load_domain(config).reference
  assert known is not None and known.specialties == 12
  path = tmp_path / "tasks.jsonl"
  path.write_text(" ".join(task.split()))
  assert benchmarks.load("tasks", path)[0].groups["use_case"] == ("legal",)


def test_every_domain_has_the_same_slots():
  for domain in loader.domain_names():
    assert set(slots_of(domain)) == set(slots_of("clinical")), domain
    assert set(load_prompts(domain).texts) == {*ROLES, "strict_note"}
