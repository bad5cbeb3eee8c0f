"""A service's whole run in a process of its own, which a failpoint may kill.

    python -m tests.service.failing_run FOLDER [SECONDS]

takes the trainer's part: it goes back to its checkpoint, does the steps that
are left and writes down everything that the service then knows. Replies come
from the scripted models through the call journal; every call that gets past it
is a line of `paid.txt`. With SECONDS it only holds the store open.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time

from tests import fakes
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.journal import Journal, JournaledChat
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.methods import METHODS
from varl_jax.roles.bundle import make_roles
from varl_jax.service import projections
from varl_jax.service.event_log import EventStore, StoreError
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.postgres_store import PostgresStore
from varl_jax.service.store import Store

STEPS = 6
BATCH = 4
CHECKPOINT_EVERY = 2
STORE_ENV = "TEST_STORE"
# One round of evolution finds its optimizer away.
FAILING = "evolve/4/optimizer"


@dataclasses.dataclass(frozen=True)
class PaidChat:
  """Writes a line for every reply it gives, as a bill would."""

  inner: ScriptedChat
  bill: int

  @property
  def name(self) -> str:
    return self.inner.name

  async def complete(self, request: ChatRequest) -> ChatReply:
    if request.operation.startswith(FAILING):
      raise ChatError("timeout", "Too slow.")
    reply = await self.inner.complete(request)
    os.write(self.bill, (request.operation + "\n").encode())
    return reply


def open_store(folder: pathlib.Path) -> EventStore:
  """In the database of the environment variable, or in the folder."""
  address = os.environ.get(STORE_ENV, "")
  if address:
    return PostgresStore(address, run=str(folder))
  return Store(folder / "service.sqlite")


def make_service(
  folder: pathlib.Path, store: EventStore, journal: Journal
) -> GenerationService:
  bill = os.open(
    folder / "paid.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
  )
  paid = PaidChat(fakes.chat(), bill)
  # Room for new tasks, so that the memo has probes to be measured by.
  config = fakes.config(
    pool__capacity=24, judge__votes=1, discriminator__on=True
  )
  return METHODS["rri"](
    config,
    roles=make_roles(
      JournaledChat(paid, journal), "story", config.judge, fakes.CHECKS
    ),
    store=store,
    checks=fakes.CHECKS,
    verifiers=fakes.CHECKS.describe(),
  )


def run(folder: pathlib.Path, service: GenerationService) -> None:
  """From the checkpoint to the end."""
  checkpoint = folder / "checkpoint.json"
  done, number = 0, 0
  if checkpoint.exists():
    done, number = json.loads(checkpoint.read_text())
  service.rewind(number)
  for step in range(done + 1, STEPS + 1):
    tasks = service.poll(step, BATCH)
    answers = [(task, fakes.rollouts(task, step)) for task in tasks]
    service.report(step, service.grade(step, answers))
    if step % CHECKPOINT_EVERY == 0:
      draft = folder / "checkpoint.draft"
      draft.write_text(json.dumps([step, service.event_number()]))
      os.replace(draft, checkpoint)


def known(service: GenerationService, store: EventStore) -> dict:
  """The final state: events, tables, and what the service decides from."""
  state = {
    name: repr(sorted(value) if isinstance(value, set) else value)
    for name, value in vars(service._ledger.state).items()
    if name not in ("_config", "_handlers", "pool")
  }
  pool = service._ledger.state.pool
  return {
    "events": [dataclasses.asdict(event) for event in store.events()],
    "tables": {
      name: sorted(map(list, store.rows(f"SELECT * FROM {name}")))
      for name in projections.NAMES
    },
    "state": state,
    "pool": {name: repr(value) for name, value in vars(pool).items()},
  }


def main(arguments: list[str]) -> int:
  folder = pathlib.Path(arguments[0])
  try:
    store = open_store(folder)
  except StoreError as error:
    print(error, file=sys.stderr)
    return 2
  if arguments[1:]:
    print("open", flush=True)
    time.sleep(float(arguments[1]))
    return 0
  journal = Journal(folder / "calls.sqlite")
  service = make_service(folder, store, journal)
  try:
    run(folder, service)
    found = known(service, store)
  finally:
    service.close()
    journal.close()
  (folder / "final.json").write_text(json.dumps(found))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
