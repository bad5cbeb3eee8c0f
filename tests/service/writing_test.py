"""Tasks written from passages keep their names; without a source none."""

import asyncio
import contextlib
import dataclasses
import json
import random
import re

import pytest

from tests import fakes
from varl_jax.llm.chat import ChatError
from varl_jax.methods import METHODS
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.passages import Passage, PassageError, passage_text
from varl_jax.service.store import Store
from varl_jax.service.writing import Order, Writer
from varl_jax.types import Task, from_json, to_json

ORDER = Order(
  task_id="t000001",
  request="Tell of fox lamp rope",
  use_case="tale",
  red_team=False,
  positives=3,
  negatives=0,
  solver_mean=None,
  guidance=0,
  memo=0,
)


@dataclasses.dataclass
class Shelf:
  """A collection of three pages; keeps what it was asked for."""

  found: tuple[str, ...] = ("p1", "p2")
  broken: str = ""
  asked: list[str] = dataclasses.field(default_factory=list)

  async def passages(self, request):
    self.asked.append(request)
    if self.broken:
      raise PassageError(self.broken)
    return [Passage(name=name, text=f"Text of {name}.") for name in self.found]

  def seed_passage(self, rng: random.Random):
    if self.broken:
      raise PassageError(self.broken)
    name = f"seed{rng.randrange(1000)}"
    return Passage(name=name, text=f"Text of {name}.", title="A page")


def writer(source=None, **changed):
  seen = []

  def watched(role):
    def reply(reading):
      seen.append((role, dict(reading.blocks)))
      return changed.get(role, fakes.RESPONDERS[role])(reading)

    return reply

  roles = fakes.roles(**{r: watched(r) for r in ("proposer", "generator")})
  made = Writer(
    proposer=roles.proposer,
    generator=roles.generator,
    checks=fakes.CHECKS,
    verifiers="",
    description="Short texts.",
    seed=3,
    source=source,
  )
  return made, seen


def run(work):
  return asyncio.run(work)


def test_without_a_source_nothing_is_said_of_passages():
  made, seen = writer()
  requests = run(made.propose(20, batch=0, guidance="")).requests
  assert len(requests) == 20 and len(seen) == 2
  assert all(request.seed_passage == "" for request in requests)
  task = run(made.write(ORDER, guidance="", memo="")).task
  assert task is not None and task.passages == ()
  assert all(
    "PASSAGES" not in blocks and "SEED PASSAGE" not in blocks
    for _, blocks in seen
  )


def test_the_specialty_that_the_generator_names_stays_with_the_task():
  def specialist(reading):
    reply = json.loads(fakes.generator(reading))
    return json.dumps({**reply, "specialty": "Fables"})

  made, _ = writer(generator=specialist)
  task = run(made.write(ORDER, guidance="", memo="")).task
  assert task is not None and task.specialty == "Fables"
  assert from_json(Task, to_json(task)) == task


def test_every_call_of_the_proposer_starts_from_a_passage_of_its_own():
  made, seen = writer(Shelf())
  requests = run(made.propose(10, batch=0, guidance="")).requests
  assert len(requests) == 10
  counts = [int(blocks["COUNT"]) for _, blocks in seen]
  assert sorted(counts) == [2, 4, 4]
  shown = {
    re.search(r"\[(seed\d+)\] A page\nText of \1\.", b["SEED PASSAGE"])[1]
    for _, b in seen
  }
  assert len(shown) == 3
  assert {request.seed_passage for request in requests} == shown
  again, _ = writer(Shelf())
  assert run(again.propose(10, batch=0, guidance="")).requests == requests
  assert run(again.propose(10, batch=1, guidance="")).requests != requests


def test_a_proposer_without_a_reply_is_told_of():
  def fails(reading):
    raise ChatError("unavailable", "Nobody at m at host.")

  made, _ = writer(proposer=fails)
  proposed = run(made.propose(20, batch=0, guidance=""))
  assert proposed.requests == ()
  assert proposed.problem == "Nobody at m at host."


def test_the_generator_reads_what_was_found_and_the_task_keeps_its_names():
  shelf = Shelf(found=("p1", "s", "p2"))
  made, seen = writer(shelf)
  order = dataclasses.replace(ORDER, seed_passage="s")
  task = run(made.write(order, guidance="", memo="")).task
  assert shelf.asked == [ORDER.request]
  assert seen[-1][1]["PASSAGES"] == (
    "[p1]\nText of p1.\n\n[s]\nText of s.\n\n[p2]\nText of p2."
  )
  assert task is not None and task.passages == ("s", "p1", "p2")


def test_the_search_is_made_once_for_all_attempts():
  def broken(reading):
    return json.dumps({"question": "", "use_case": "", "rubric_items": []})

  shelf = Shelf()
  made, seen = writer(shelf, generator=broken)
  written = run(made.write(ORDER, guidance="", memo=""))
  assert written.task is None
  assert len(shelf.asked) == 1 and len(seen) > 2


def test_a_failed_search_drops_the_request_and_says_so():
  made, seen = writer(Shelf(broken="The index is in use."))
  written = run(made.write(ORDER, guidance="", memo=""))
  assert written.task is None and written.attempts == 0
  assert written.rejected == ("passages",)
  assert written.problem == "The index is in use."
  assert not seen


def test_a_source_without_seeds_stops_the_run():
  made, _ = writer(Shelf(broken="The index is in use."))
  with pytest.raises(ServiceFailure, match="index is in use"):
    run(made.propose(4, batch=0, guidance=""))


def test_an_empty_search_leaves_the_block_out():
  assert passage_text([]) == ""
  made, seen = writer(Shelf(found=()))
  task = run(made.write(ORDER, guidance="", memo="")).task
  assert task is not None and task.passages == ()
  assert "PASSAGES" not in seen[-1][1]


def test_orders_of_older_stores_are_read():
  tree = dataclasses.asdict(ORDER)
  del tree["seed_passage"]
  assert from_json(Order, tree) == ORDER


def poll_with(tmp_path, **changed):
  service = METHODS["generation_only"](
    fakes.config(),
    roles=fakes.roles(**changed),
    store=Store(tmp_path / "service.sqlite"),
    checks=fakes.CHECKS,
  )
  with contextlib.closing(service), pytest.raises(ServiceFailure) as caught:
    service.poll(0, 4)
  return str(caught.value)


def test_an_empty_pool_says_what_the_proposer_met(tmp_path):
  def fails(reading):
    raise ChatError("unavailable", "No reply from m at host: refused.")

  said = poll_with(tmp_path, proposer=fails)
  assert "(No reply from m at host: refused)." in said
  assert "base_url" in said and "endpoints.roles" in said
  assert "resume the run" in said


def test_an_empty_pool_says_what_the_generator_met(tmp_path):
  def fails(reading):
    raise ChatError("malformed", "No JSON object ends.")

  said = poll_with(tmp_path, generator=fails)
  assert "the last for: No JSON object ends. Check" in said
  assert ".." not in said


def test_the_event_of_a_task_names_its_passages(tmp_path):
  service = METHODS["generation_only"](
    fakes.config(),
    roles=fakes.roles(),
    store=Store(tmp_path / "service.sqlite"),
    checks=CheckRegistry(checks=fakes.CHECKS.checks),
    passages=Shelf(),
  )
  tasks = service.poll(0, 4)
  assert all({"p1", "p2"} <= {*task.passages} for task in tasks)
  service.close()
  with contextlib.closing(Store(tmp_path / "service.sqlite")) as store:
    kept = [
      event.payload["task"]["passages"]
      for event in store.events()
      if event.kind == "task" and event.payload["task"]
    ]
  assert kept and all({"p1", "p2"} <= {*names} for names in kept)
