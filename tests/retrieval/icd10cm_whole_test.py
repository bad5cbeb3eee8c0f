"""All of ICD-10-CM, parsed and searched with hand-written queries."""

import importlib.util
import json
import pathlib

import pytest

from varl_jax.retrieval.corpora import SOURCES
from varl_jax.retrieval.fusion import best
from varl_jax.retrieval.lexical import LexicalIndex, keys_of
from varl_jax.retrieval.lexicon import load_lexicon

ROOT = pathlib.Path(__file__).parents[2]
QUERIES = ROOT / "experiments" / "speed" / "icd10cm_queries.json"
# The tabular list of April 2026.
CODES = 46_881

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def passages():
  found = importlib.util.find_spec("simple_icd_10_cm")
  if found is None or found.origin is None:
    pytest.skip("the package with the tabular list is not installed")
  [file] = (pathlib.Path(found.origin).parent / "data").glob("*tabular*.xml")
  return list(SOURCES["icd10cm"].passages(file))


def test_every_code_is_read(passages):
  assert len(passages) == CODES
  assert len({p.passage_id for p in passages}) == CODES
  by_id = {p.passage_id: p for p in passages}
  assert by_id["icd10cm:I10"].title == "I10 Essential (primary) hypertension"
  assert "Seventh character: A initial encounter" in (
    by_id["icd10cm:S72.001"].text
  )
  assert all(p.text and p.title and "</" not in p.text for p in passages)


def test_plain_words_find_the_right_codes(passages):
  """27 of 30, and as many of those that nothing was tuned on."""
  sets = json.loads(QUERIES.read_text(encoding="utf-8"))
  index = LexicalIndex.build([keys_of(p) for p in passages])
  lexicon = load_lexicon("clinical")

  def found(entry):
    scores = index.scores(entry["query"], lexicon)
    top = {passages[i].passage_id[8:] for i in best(scores, 5, above=0.0)}
    return bool(top & set(entry["codes"]))

  counts = {n: sum(map(found, sets[n])) for n in ("tuned_on", "held_out")}
  assert counts["tuned_on"] >= 27, counts
  assert counts["held_out"] >= 18, counts
  assert len(sets["tuned_on"]) == 30 and len(sets["held_out"]) == 20


def test_no_query_is_copied_from_an_entry(passages):
  sets = json.loads(QUERIES.read_text(encoding="utf-8"))
  titles = {key.casefold() for p in passages for key in p.keys}
  asked = {
    entry["query"].casefold()
    for name in ("tuned_on", "held_out")
    for entry in sets[name]
  }
  copied = asked & titles
  assert copied <= {"chickenpox", "hashimoto's"}
