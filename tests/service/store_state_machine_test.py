"""Any order of commits, rewinds, crashes and readings against a model."""

import contextlib
import json
import pathlib
import tempfile

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from tests.service.store_contract import PostgresHome, SqliteHome
from varl_jax.service.event_log import Event, StoreError

UIDS = [f"e{number}" for number in range(12)]
TASKS = ["a", "b", "c"]


def notes():
  return st.builds(
    lambda uid, step, text: Event(
      uid=uid, step=step, kind="note", payload={"text": text}
    ),
    st.sampled_from(UIDS),
    st.none() | st.integers(0, 3),
    st.text(max_size=5),
  )


def tasks():
  """Events with a table: the last task of a name is what it shows."""
  return st.builds(
    lambda uid, step, name, version: Event(
      uid=uid,
      step=step,
      kind="task",
      payload={
        "task": {"task_id": name, "rubric": {"version": version}, "patches": 0}
      },
    ),
    st.sampled_from(UIDS),
    st.none() | st.integers(0, 3),
    st.sampled_from(TASKS),
    st.integers(0, 3),
  )


class Model:
  """What a store promises, as a list of numbered events."""

  def __init__(self):
    self.log: list[tuple[int, Event]] = []

  @property
  def number(self) -> int:
    return self.log[-1][0] if self.log else 0

  @property
  def events(self) -> list[Event]:
    return [event for _, event in self.log]

  def has(self, uid: str) -> bool:
    return any(event.uid == uid for event in self.events)

  def commit(self, events: list[Event]) -> int:
    for event in events:
      if not self.has(event.uid):
        self.log.append((self.number + 1, event))
    return self.number

  def rewind(self, seq: int) -> None:
    self.log = [
      (number, event)
      for number, event in self.log
      if number <= seq or event.step is None
    ]

  @property
  def tasks(self) -> list[tuple[str, int]]:
    shown = {
      event.payload["task"]["task_id"]: event.payload["task"]["rubric"][
        "version"
      ]
      for event in self.events
      if event.kind == "task"
    }
    return sorted(shown.items())


class StoreMachine(stateful.RuleBasedStateMachine):
  """Subclasses say where the store is."""

  def make_home(self):
    raise NotImplementedError

  def __init__(self):
    super().__init__()
    self.model = Model()
    self.home = self.make_home()
    self.store = self.home.open()
    self.reader = None

  @stateful.rule(events=st.lists(notes() | tasks(), max_size=4))
  def commit(self, events):
    assert self.store.commit(events) == self.model.commit(events)

  @stateful.rule(events=st.lists(notes(), max_size=2))
  def commit_that_fails(self, events):
    """The last event cannot be projected: none of them is written."""
    bad = Event(uid="bad", step=0, kind="task", payload={"task": {}})
    with pytest.raises(KeyError):
      self.store.commit([*events, bad])

  @stateful.precondition(lambda self: self.model.log)
  @stateful.rule(data=st.data())
  def rewind(self, data):
    seq = data.draw(st.integers(0, self.model.number))
    self.store.rewind(seq)
    self.model.rewind(seq)

  @stateful.rule(beyond=st.integers(1, 3))
  def rewind_too_far(self, beyond):
    with pytest.raises(StoreError, match="before event"):
      self.store.rewind(self.model.number + beyond)

  @stateful.rule()
  def reopen(self):
    self.store.close()
    self.store = self.home.open()

  @stateful.rule()
  def crash(self):
    self.home.crash(self.store)
    self.store = self.home.open()

  @stateful.rule()
  def second_writer(self):
    with pytest.raises(StoreError, match="in use by another process"):
      self.home.open()

  @stateful.rule()
  def open_reader(self):
    if self.reader is not None:
      self.reader.close()
    self.reader = self.home.open(read_only=True)

  @stateful.precondition(lambda self: self.reader is not None)
  @stateful.rule()
  def read(self):
    """A reader that stays open sees what was committed since."""
    assert self.reader is not None
    assert list(self.reader.events()) == self.model.events
    with pytest.raises(StoreError):
      self.reader.commit([Event(uid="no", kind="note", payload={})])

  @stateful.invariant()
  def the_store_is_the_model(self):
    assert self.store.event_number() == self.model.number
    assert list(self.store.events()) == self.model.events
    assert [uid for uid in UIDS if self.store.has(uid)] == [
      uid for uid in UIDS if self.model.has(uid)
    ]
    rows = self.store.rows(
      "SELECT task_id, version, body FROM tasks ORDER BY task_id"
    )
    assert [row[:2] for row in rows] == self.model.tasks
    for name, version, body in rows:
      task = json.loads(body)
      assert (task["task_id"], task["rubric"]["version"]) == (name, version)

  def teardown(self):
    if self.reader is not None:
      self.reader.close()
    self.store.close()


@pytest.mark.slow
def test_sqlite_keeps_its_promises():
  with contextlib.ExitStack() as folders:

    class Machine(StoreMachine):
      def make_home(self):
        folder = folders.enter_context(tempfile.TemporaryDirectory())
        return SqliteHome(pathlib.Path(folder))

    stateful.run_state_machine_as_test(
      Machine,
      settings=hypothesis.settings(max_examples=120, stateful_step_count=30),
    )


@pytest.mark.slow
def test_postgres_keeps_its_promises(postgres_server):
  class Machine(StoreMachine):
    def make_home(self):
      return PostgresHome(postgres_server)

  stateful.run_state_machine_as_test(
    Machine,
    settings=hypothesis.settings(
      max_examples=12,
      stateful_step_count=20,
      suppress_health_check=[hypothesis.HealthCheck.too_slow],
    ),
  )
