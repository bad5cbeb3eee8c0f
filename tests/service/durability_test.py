"""What a rewind, a failed optimizer or a used-up quota must not spoil."""

import asyncio
import dataclasses
import json

import pytest

from tests import fakes
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.methods import METHODS
from varl_jax.roles.bundle import make_roles
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.state import ServiceState
from varl_jax.service.store import Event, Store


@pytest.fixture
def open_service(tmp_path):
  opened = []

  def make(config=None, *, path="run", chat=None, **changed):
    config = config or fakes.config(pool__capacity=24)
    service = METHODS["rri"](
      config,
      roles=make_roles(
        chat or fakes.chat(**changed), "story", config.judge, fakes.CHECKS
      ),
      store=Store(tmp_path / f"{path}.sqlite"),
      checks=fakes.CHECKS,
    )
    opened.append(service)
    return service

  yield make
  for service in opened:
    service.close()


def graded(service, step):
  tasks = service.poll(step, 4)
  return service.grade(
    step, [(task, fakes.rollouts(task, step)) for task in tasks]
  )


def run_step(service, step):
  return service.report(step, graded(service, step))


def events(service, kind=None):
  found = list(service._store.events())
  return [event for event in found if kind in (None, event.kind)]


def state_of(service) -> ServiceState:
  return service._ledger.state


# Numbers of guidance and memo.


def guided(words):
  """A meta-optimizer that says the next of `words` to the generator."""
  left = iter(words)

  def meta_optimizer(reading):
    return json.dumps(
      {
        "query_proposer_guidance": "Vary.",
        "task_rubric_generator_guidance": next(left),
        "summary": "s",
      }
    )

  return meta_optimizer


@pytest.mark.parametrize(
  ("second", "number"), [("Other text.", 2), ("First text.", 1)]
)
def test_a_rewound_guidance_keeps_its_number_and_its_orders(
  open_service, second, number
):
  """Background orders outlive the rewind of the guidance they name."""
  seen = []

  def generator(reading):
    seen.append(reading.blocks["GUIDANCE"])
    return fakes.generator(reading)

  service = open_service(
    fakes.config(admission__barrier=False, pool__capacity=200),
    meta_optimizer=guided(["First text.", second, "Third text."]),
    generator=generator,
  )
  run_step(service, 1)
  remembered = service.event_number()
  run_step(service, 2)
  run_step(service, 3)  # orders under guidance 1
  kept = [e for e in events(service, "requests") if e.payload["guidance"]]
  assert kept[-1].payload["guidance"]["generator"] == "First text."
  open_orders = dict(state_of(service).orders)
  service.rewind(remembered)
  state = state_of(service)
  assert [g.version for g in state.guidance] == [0]
  # An order that was still open is written under the text it names.
  seen.clear()
  for step in (2, 3):
    run_step(service, step)
  state = state_of(service)
  assert [g.version for g in state.guidance] == [0, number]
  texts: dict[int, set[str]] = {}
  for event in events(service, "requests"):
    guidance = event.payload["guidance"]
    texts.setdefault(guidance["version"], set()).add(guidance["generator"])
  assert all(len(found) == 1 for found in texts.values())
  if open_orders:
    assert "First text." in seen


def test_an_open_order_of_a_rewound_guidance_is_written_under_its_text(
  open_service,
):
  service = open_service(
    fakes.config(admission__barrier=False), generator=fakes.generator
  )
  order = {
    "task_id": "t000000",
    "request": "Tell of fox lamp rope",
    "use_case": "tale",
    "red_team": False,
    "positives": 3,
    "negatives": 0,
    "solver_mean": None,
    "guidance": 4,
    "memo": 3,
  }
  guidance = {
    "version": 4,
    "proposer": "p",
    "generator": "Lost words.",
    "summary": "",
  }
  service._ledger.commit(
    [
      Event(
        uid="requests/0",
        kind="requests",
        payload={
          "orders": [order],
          "guidance": guidance,
          "memo": {"version": 3, "text": "Lost memo."},
        },
      )
    ]
  )
  service.rewind(0)
  asked = []
  writer = service._supply._writer

  async def write(order, *, guidance, memo):
    asked.append((order.task_id, guidance, memo))
    return await type(writer).write(writer, order, guidance=guidance, memo=memo)

  service._supply._writer = _Spy(writer, write)
  service.poll(1, 4)
  assert ("t000000", "Lost words.", "Lost memo.") in asked


class _Spy:
  def __init__(self, writer, write):
    self.propose, self.write = writer.propose, write


# What the meta-optimizer hears of the adversary.


def test_the_adversary_is_measured_over_the_whole_interval(open_service):
  heard = []

  def meta_optimizer(reading):
    heard.append(reading.blocks["HACKABILITY"])
    return fakes.meta_optimizer(reading)

  service = open_service(
    fakes.config(pool__capacity=200, evolution={"interval": 3, "cases": 8}),
    meta_optimizer=meta_optimizer,
  )
  for step in range(1, 7):
    run_step(service, step)
  found: list[list[float]] = [[]]
  for event in events(service):
    if event.kind == "task" and event.payload["task"]:
      lead = event.payload["admission"]["lead"]
      found[-1] += [] if lead is None else [lead]
    elif event.kind == "guidance":
      assert event.payload["probes"] == len(found[-1])
      found.append([])
  assert len(heard) == 2
  for text, leads in zip(heard, found, strict=False):
    assert len(leads) > 4
    assert text.startswith(f"{len(leads)} probes")
    assert f"{sum(leads) / len(leads):+.3f}" in text


def test_probes_are_kept_when_the_optimizer_fails(open_service):
  heard = []

  def meta_optimizer(reading):
    heard.append(int(reading.blocks["HACKABILITY"].split()[0]))
    raise ChatError("timeout", "Too slow.")

  service = open_service(meta_optimizer=meta_optimizer)
  for step in range(1, 5):
    run_step(service, step)
  assert len(heard) == 2 and heard[1] > heard[0]


# A report that failed between its two commits.


@dataclasses.dataclass(frozen=True)
class Counted:
  """Keeps the role of every call."""

  inner: ScriptedChat
  roles: list[str]
  name: str = "fake"

  async def complete(self, request: ChatRequest) -> ChatReply:
    self.roles.append(request.role)
    return await self.inner.complete(request)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_report_goes_on_from_its_first_commit(open_service, reopened):
  whole = open_service(path="whole")
  expected = [run_step(whole, step) for step in (1, 2)]
  roles: list[str] = []
  broke = [True]

  def meta_optimizer(reading):
    if broke.pop():
      broke.append(False)
      raise ChatError("quota", "Nothing left.")
    broke.append(False)
    return fakes.meta_optimizer(reading)

  chat = Counted(fakes.chat(meta_optimizer=meta_optimizer), roles)
  service = open_service(path="broken", chat=chat)
  found = [run_step(service, 1)]
  groups = graded(service, 2)
  with pytest.raises(ServiceFailure, match="quota"):
    service.report(2, groups)
  assert "referee" in roles and events(service, "windows")[-1].step == 2
  if reopened:
    service.close()
    service = open_service(path="broken", chat=chat)
  roles.clear()
  found.append(service._loop.run(service._reporter.report(2, groups)))
  assert set(roles) == {"analyst", "meta_optimizer"}
  assert found == expected
  assert events(service) == events(whole)


# Failed calls of the optimizers.


def test_a_failed_meta_optimizer_is_an_event(open_service):
  def meta_optimizer(reading):
    raise ChatError("refusal", "Not today.")

  service = open_service(meta_optimizer=meta_optimizer)
  metrics = [run_step(service, step) for step in (1, 2)]
  assert metrics[1]["guidance/failures"] == 1
  (event,) = events(service, "failure")
  assert event.step == 2
  assert event.payload == {
    "role": "meta_optimizer",
    "kind": "refusal",
    "message": "Not today.",
  }
  assert state_of(service).failures == {"meta_optimizer": 1}
  assert state_of(service).samples  # kept for the next round


def test_a_failed_memo_optimizer_is_an_event(open_service):
  def memo_optimizer(reading):
    raise ChatError("timeout", "Too slow.")

  service = open_service(
    fakes.config(pool__capacity=200), memo_optimizer=memo_optimizer
  )
  for step in range(1, 9):
    run_step(service, step)
  failed = [e for e in events(service, "memo") if e.payload["failure"]]
  found = events(service, "failure")
  assert found
  assert [e.step for e in found] == [e.step for e in failed]
  assert {e.payload["role"] for e in found} == {"memo_optimizer"}
  assert {e.payload["kind"] for e in found} == {"timeout"}


# Work that goes on beside a fatal failure.


@dataclasses.dataclass
class Tracked:
  """A slow model that breaks at one call and knows what is still going on."""

  inner: ScriptedChat
  breaks_at: int
  role: str = "generator"
  name: str = "tracked"
  asked: int = 0
  running: int = 0
  ended: int = 0

  async def complete(self, request: ChatRequest) -> ChatReply:
    if request.role != self.role:
      return await self.inner.complete(request)
    self.asked += 1
    if self.asked == self.breaks_at:
      await asyncio.sleep(0.01)
      raise ChatError("quota", "Nothing left.")
    self.running += 1
    try:
      # Far longer than the test: only a cancellation ends it.
      await asyncio.sleep(0.02 if self.asked < self.breaks_at else 300)
      return await self.inner.complete(request)
    except asyncio.CancelledError:
      self.ended += 1
      raise
    finally:
      self.running -= 1


@pytest.mark.parametrize("barrier", [True, False])
def test_a_fatal_failure_ends_all_other_calls(open_service, barrier):
  chat = Tracked(fakes.chat(), breaks_at=1)
  service = open_service(fakes.config(admission__barrier=barrier), chat=chat)
  with pytest.raises(ServiceFailure, match="quota"):
    service.poll(1, 4)
  assert chat.running == 0 and chat.ended == 3
  assert len(state_of(service).orders) == 4  # still to be written
  asked = chat.asked
  service._loop.run(asyncio.sleep(0.05))
  assert chat.asked == asked


def test_a_failure_in_the_background_ends_the_rest_at_once(open_service):
  """Not only when the next batch is asked for."""
  chat = Tracked(fakes.chat(), breaks_at=5)
  service = open_service(
    fakes.config(admission__barrier=False, pool__capacity=200), chat=chat
  )
  groups = graded(service, 1)  # the next four orders are being written

  async def ended():
    while chat.asked < 8 or chat.running:
      await asyncio.sleep(0.005)

  service._loop.run(asyncio.wait_for(ended(), 20))
  assert chat.ended == 3
  service.report(1, groups)
  with pytest.raises(ServiceFailure, match="quota"):
    service.poll(2, 4)
  assert len(state_of(service).orders) == 4
  chat.breaks_at, chat.asked = 10**6, 0
  assert len(service.poll(2, 4)) == 4  # mended, and it goes on
