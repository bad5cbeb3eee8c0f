"""Answer keys verified against passages, the task, and arithmetic."""

import asyncio
import contextlib
import dataclasses
import json
import random

import pytest

from tests import fakes
from varl_jax.config import ConfigError, RetrievalConfig, from_config_dict
from varl_jax.methods import METHODS
from varl_jax.retrieval.opening import open_writer
from varl_jax.retrieval.passage import Passage as Found
from varl_jax.retrieval.passage import RetrievalError
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.answer_key import (
  check_key,
  nearest_passages,
  with_flags,
)
from varl_jax.service.grounding import CUT, IndexPassages, open_passages
from varl_jax.service.passages import Passage, PassageError
from varl_jax.service.store import Store
from varl_jax.types import Message

PAGE = Passage(
  name="dailymed:1",
  title="Paracetamol",
  text="Give 15 mg/kg, at most 4 g a day.",
)
OTHER = Passage(name="icd10cm:R50", text="Fever above 38.0 is R50.9.")


def task(*texts, question="A child of 20 kg has a fever."):
  made = fakes.task(*((text, 8, None) for text in texts))
  return dataclasses.replace(
    made, prompt=(Message(role="user", content=question),)
  )


def found(text, **more):
  made = task(text, **more)
  return check_key(made.rubric, made.prompt[-1].content, [PAGE, OTHER])


def test_a_value_is_traced_to_the_passage_that_states_it():
  [finding] = found("Stays below 4,000 mg in all.")
  assert finding.passage == "dailymed:1" and finding.supported
  [finding] = found("Calls 38.0 the limit.")
  assert finding.passage == "icd10cm:R50"


def test_a_value_of_the_task_or_computed_is_supported():
  [weight] = found("Uses the weight of 20 kg.")
  assert weight.in_task and weight.supported
  [dose] = found("Gives 300 mg a dose.")
  assert dose.computed == "20 kg x 15 mg/kg = 300 mg"
  per, kilos, total = found("Gives 15 mg/kg x 20 kg = 300 mg.")
  assert per.passage and kilos.in_task and total.computed


def test_a_criterion_is_traced_to_the_likest_passage():
  rubric = task(
    "Warns that a fever above 38.0 needs care.",
    "Gives paracetamol by weight.",
    "Sends nobody home.",
  ).rubric
  names = nearest_passages(rubric, [PAGE, OTHER])
  assert names == ("icd10cm:R50", "dailymed:1", "")
  assert nearest_passages(rubric, ()) == ("", "", "")


def test_what_nothing_supports_is_flagged():
  flagged = with_flags(
    task(
      "Gives 350 mg a dose.",
      "Names the fever.",
      "Repeats it after 6 hours, and never beyond 4 g.",
      "Gives 15 mg/kg x 20 kg = 320 mg.",
    ),
    [PAGE, OTHER],
  )
  assert flagged.key_flags == (
    "criterion 1: 350 mg",
    "criterion 3: 6 hours",
    "criterion 4: 320 mg",
  )
  assert with_flags(task("Names the fever."), ()).key_flags == ()


def generator(reading):
  items = [
    {"criterion_text": f"Brings {n} mg of it to the fox.", "points": 8}
    for n in (15, 350, 4)[: int(reading.blocks["POSITIVE COUNT"])]
  ]
  items += [
    {"criterion_text": "Speaks of a 'dragon' at length.", "points": -6}
  ] * int(reading.blocks["NEGATIVE COUNT"])
  return json.dumps(
    {
      "question": reading.blocks["REQUEST"],
      "use_case": reading.blocks["USE CASE"],
      "rubric_items": items,
    }
  )


class Shelf:
  """One page for everything."""

  async def passages(self, request):
    return [Passage(name="p", text="15 mg, or 4 mg.")]

  def seed_passage(self, rng):
    return Passage(name="s", text="Seed.")


@pytest.mark.parametrize("verify", [False, True])
def test_a_run_flags_keys_only_where_it_is_asked_to(tmp_path, verify):
  tree = fakes.config().to_dict()
  tree["retrieval"]["verify_answer_key"] = verify
  service = METHODS["generation_only"](
    from_config_dict(tree),
    roles=fakes.roles(generator=generator),
    store=Store(tmp_path / "service.sqlite"),
    checks=CheckRegistry(checks=fakes.CHECKS.checks),
    passages=Shelf(),
  )
  tasks = service.poll(0, 4)
  flags = [t.key_flags for t in tasks]
  assert flags == [("criterion 2: 350 mg",) if verify else ()] * 4
  groups = [(t, fakes.rollouts(t, 0)) for t in tasks]
  metrics = service.report(0, service.grade(0, groups))
  assert (metrics.get("pool/key_flagged", 0) >= 4) == verify
  service.close()


@pytest.fixture
def index(tmp_path):
  """The folder of an index with a seed source and one that is none."""
  sizes = {"icd10cm": 60, "medlineplus": 2, "pubmedqa": 3, "pubmed": 3}
  with contextlib.closing(open_writer(tmp_path / "index")) as writer:
    writer.put(
      [
        Found(
          passage_id=f"{source}:{number}",
          source=source,
          title=f"Fever {number}",
          text="fever " * 100,
        )
        for source, count in sizes.items()
        for number in range(count)
      ]
    )
    writer.publish()
  return tmp_path / "index"


def test_seeds_and_grounding_come_from_their_collections(index):
  settings = RetrievalConfig(index=str(index), passages=70, max_chars=50)
  source = open_passages(settings)
  assert source is not None
  with contextlib.closing(source):
    seeds = [source.seed_passage(random.Random(i)) for i in range(60)]
    drawn = [seed.name.split(":")[0] for seed in seeds]
    assert set(drawn) == {"icd10cm", "medlineplus"}
    assert 20 <= drawn.count("medlineplus") <= 40
    hits = asyncio.run(source.passages("a fever"))
  found = {hit.name.split(":")[0] for hit in hits}
  assert len(hits) == 65
  assert found == {"icd10cm", "medlineplus", "pubmedqa"}
  assert all(h.text.endswith(f"fever{CUT}") and len(h.text) < 60 for h in hits)
  assert hits[0].title.startswith("Fever")


def test_a_users_own_index_serves_for_both(tmp_path):
  with contextlib.closing(open_writer(tmp_path / "own")) as writer:
    writer.put(
      [Found(passage_id="folder:1", source="folder", title="t", text="rule")]
    )
    writer.publish()
  source = open_passages(RetrievalConfig(index=str(tmp_path / "own")))
  assert source is not None
  with contextlib.closing(source):
    assert source.seed_passage(random.Random(0)).name == "folder:1"
    assert len(asyncio.run(source.passages("a rule"))) == 1


def test_no_index_is_no_source_and_a_missing_one_an_error(tmp_path):
  assert open_passages(RetrievalConfig()) is None
  with pytest.raises(ConfigError, match=r"There is no index in .*none; build"):
    open_passages(RetrievalConfig(index=str(tmp_path / "none")))


class Broken:
  """An index whose disk is gone."""

  def search(self, query, k, *, sources=None):
    raise RetrievalError("The disk is gone.")

  def draw(self, rng, *, sources=None):
    raise RetrievalError("The disk is gone.")

  def counts(self):
    return {"icd10cm": 1}


def test_a_failed_search_is_a_passage_error():
  source = IndexPassages(index=Broken(), count=1, max_chars=9)  # pyright: ignore
  with pytest.raises(PassageError, match="disk is gone"):
    asyncio.run(source.passages("x"))
  with pytest.raises(PassageError, match="disk is gone"):
    source.seed_passage(random.Random(0))
