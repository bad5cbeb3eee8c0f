"""The event log, in sqlite and in PostgreSQL alike."""

import sqlite3

import pytest

from tests import fakes
from tests.service.store_contract import (
  KINDS,
  PostgresHome,
  SqliteHome,
  event,
  task_event,
)
from varl_jax.methods import METHODS
from varl_jax.service import projections
from varl_jax.service.event_log import PAGE, Event, StoreError
from varl_jax.service.evidence import read_cases, read_history
from varl_jax.service.store import Store


@pytest.fixture(params=KINDS)
def home(request, tmp_path):
  if request.param == "sqlite":
    return SqliteHome(tmp_path)
  return PostgresHome(request.getfixturevalue("postgres_server"))


@pytest.fixture
def store(home):
  opened = home.open()
  yield opened
  opened.close()


def names(store):
  return [found.uid for found in store.events()]


def test_events_keep_their_order_over_a_reopening(home):
  store = home.open()
  assert store.event_number() == 0
  written = [event("a", 0, x=1), event("b", x="\ud800 \u2028 \0 ? %s")]
  assert store.commit(written) == 2
  store.close()
  again = home.open()
  assert list(again.events()) == written
  assert next(again.events(uid="b")) == written[1]
  assert list(again.events(uid="c")) == []
  again.close()


def test_many_events_are_read_page_by_page(store):
  store.commit(event(f"e{n}") for n in range(2 * PAGE + 1))
  assert names(store) == [f"e{n}" for n in range(2 * PAGE + 1)]


def test_a_second_event_of_a_name_is_ignored(store):
  store.commit([event("a", x=1)])
  assert store.commit([event("a", x=2), event("b"), event("b")]) == 2
  assert next(store.events(uid="a")).payload == {"x": 1}
  assert store.has("b") and not store.has("c")
  assert store.commit([]) == 2


def test_rewind_drops_step_bound_events_only_and_rebuilds_tables(store):
  remembered = store.commit([task_event("t1", 0), task_event("t2", None)])
  store.commit([task_event("t3", 1), task_event("t4", None)])
  store.commit([event("late", 2)])
  store.rewind(remembered)
  assert names(store) == ["t1", "t2", "t4"]
  rows = store.rows("SELECT task_id FROM tasks ORDER BY task_id")
  assert rows == [("t1",), ("t2",), ("t4",)]
  assert not store.has("late")
  assert store.commit([event("late", 2)]) == store.event_number() == 5


def test_rewinding_to_nothing_empties_the_store(store):
  store.commit([task_event("t1", 0)])
  store.rewind(0)
  assert store.event_number() == 0
  assert store.rows("SELECT * FROM tasks") == []


def test_rewinding_past_the_end_names_the_wrong_store(home, store):
  store.commit([event("a")])
  with pytest.raises(StoreError, match="before event 7") as caught:
    store.rewind(7)
  assert home.where in str(caught.value)
  assert names(store) == ["a"]


def test_a_second_writer_is_refused_until_the_first_closes(home):
  store = home.open()
  with pytest.raises(StoreError, match="in use by another process") as caught:
    home.open()
  assert home.where in str(caught.value)
  assert store.commit([event("a")]) == 1
  store.close()
  store.close()
  home.open().close()


def test_a_crashed_writer_leaves_what_it_committed_and_no_lock(home):
  store = home.open()
  store.commit([event("a"), task_event("t1", 0)])
  home.crash(store)
  again = home.open()
  assert names(again) == ["a", "t1"]
  assert again.rows("SELECT task_id FROM tasks") == [("t1",)]
  again.close()


def test_readers_need_no_lock_and_cannot_write(home, store):
  store.commit([event("a")])
  reader = home.open(read_only=True)
  assert names(reader) == ["a"]
  with pytest.raises(StoreError):
    reader.commit([event("b")])
  with pytest.raises(StoreError):
    reader.rewind(0)
  reader.close()
  assert store.commit([event("b")]) == 2
  with pytest.raises(StoreError, match="There is no "):
    home.other()


def test_a_full_disk_is_a_clear_error_and_saves_nothing(home, store):
  store.commit([event("a")])
  home.fill_up(store)
  with pytest.raises(StoreError, match="No space left"):
    store.commit([event("b"), event("c", text="x" * 100_000)])
  assert names(store) == ["a"]
  assert not store.has("b")
  assert store.commit([event("d")]) == 2


def test_a_failing_projection_leaves_no_event(store):
  bad = Event(uid="bad", kind="task", payload={"task": {}})
  with pytest.raises(KeyError):
    store.commit([event("a"), bad])
  assert store.event_number() == 0 and not store.has("a")
  assert store.commit([event("a")]) == 1


def test_not_a_number_is_refused(store):
  with pytest.raises(ValueError):
    store.commit([event("a", x=float("nan"))])
  assert names(store) == []


def test_a_closed_store_says_so(home):
  store = home.open()
  store.close()
  with pytest.raises(StoreError):
    store.commit([event("a")])
  with pytest.raises(StoreError):
    store.event_number()


def test_a_bad_query_is_a_store_error_and_breaks_nothing(store):
  with pytest.raises(StoreError):
    store.rows("SELECT nothing FROM nowhere")
  assert store.commit([event("a")]) == 1


def test_texts_are_sorted_by_bytes(store):
  written = ["b", "B", "a_1", "a-1", "a1", "é"]
  store.commit(task_event(uid, 0) for uid in written)
  found = store.rows("SELECT task_id FROM tasks ORDER BY task_id")
  assert [row[0] for row in found] == sorted(written)


def run_service(store):
  service = METHODS["rri"](
    fakes.config(), roles=fakes.roles(), store=store, checks=fakes.CHECKS
  )
  for step in range(6):
    groups = [
      (task, fakes.rollouts(task, step)) for task in service.poll(step, 4)
    ]
    service.report(step, service.grade(step, groups))
  service.close()


def test_a_run_leaves_the_same_in_both(tmp_path, postgres_server):
  """All events, all tables, everything a report reads; after a rewind too."""
  found = []
  for home in (SqliteHome(tmp_path), PostgresHome(postgres_server)):
    run_service(home.open())
    store = home.open()
    for _ in range(2):
      tables = {
        name: sorted(store.rows(f"SELECT * FROM {name}"))
        for name in projections.NAMES
      }
      cases = read_cases(store, limit=3, repaired=True)
      found.append((list(store.events()), tables, read_history(store), cases))
      store.rewind(store.event_number() // 2)
    store.close()
  assert len(found[0][0]) > 30 and all(found[0][1].values())
  assert found[:2] == found[2:]


def test_a_file_that_is_no_store_is_refused(tmp_path):
  path = tmp_path / "service.sqlite"
  path.write_text("This is no database, just a long enough line of text." * 9)
  with pytest.raises(StoreError, match="cannot be read as a store"):
    Store(path)


def test_writes_are_synchronous_and_ahead_logged(tmp_path):
  path = tmp_path / "service.sqlite"
  store = Store(path)
  assert store.rows("PRAGMA journal_mode") == [("wal",)]
  assert store.rows("PRAGMA synchronous") == [(2,)]
  store.close()
  connection = sqlite3.connect(path)
  assert connection.execute("SELECT 1").fetchone() == (1,)
  connection.close()
