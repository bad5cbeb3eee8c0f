"""The event log: atomic, unique, locked, rewindable."""

import sqlite3

import pytest

from varl_jax.service.store import Event, Store, StoreError


def event(uid: str, step: int | None = None, **payload: object) -> Event:
  return Event(uid=uid, step=step, kind="note", payload=payload)


def task_event(uid: str, step: int | None, version: int = 0) -> Event:
  task = {"task_id": uid, "rubric": {"version": version}, "patches": 0}
  return Event(uid=uid, step=step, kind="task", payload={"task": task})


@pytest.fixture
def path(tmp_path):
  return tmp_path / "service.sqlite"


def test_events_keep_their_order_over_a_reopening(path):
  store = Store(path)
  assert store.event_number() == 0
  assert store.commit([event("a", 0, x=1), event("b", x="\ud800 \u2028")]) == 2
  store.close()
  again = Store(path)
  assert [(e.uid, e.step) for e in again.events()] == [("a", 0), ("b", None)]
  assert next(again.events(uid="b")).payload == {"x": "\ud800 \u2028"}
  again.close()


def test_a_second_event_of_a_name_is_ignored(path):
  store = Store(path)
  store.commit([event("a", x=1)])
  assert store.commit([event("a", x=2), event("b"), event("b")]) == 2
  assert next(store.events(uid="a")).payload == {"x": 1}
  assert store.has("b") and not store.has("c")
  store.close()


def test_rewind_drops_step_bound_events_only_and_rebuilds_tables(path):
  store = Store(path)
  remembered = store.commit([task_event("t1", 0), task_event("t2", None)])
  store.commit([task_event("t3", 1), task_event("t4", None)])
  store.commit([event("late", 2)])
  store.rewind(remembered)
  assert [e.uid for e in store.events()] == ["t1", "t2", "t4"]
  rows = store.rows("SELECT task_id FROM tasks ORDER BY task_id")
  assert rows == [("t1",), ("t2",), ("t4",)]
  assert not store.has("late")
  assert store.commit([event("late", 2)]) == store.event_number()
  store.close()


def test_rewinding_past_the_end_names_the_wrong_store(path):
  store = Store(path)
  store.commit([event("a")])
  with pytest.raises(StoreError, match="before event 7"):
    store.rewind(7)
  store.close()


def test_a_second_opener_is_refused_until_the_first_closes(path):
  store = Store(path)
  with pytest.raises(StoreError, match="in use by another process"):
    Store(path)
  store.close()
  store.close()
  Store(path).close()


def test_readers_need_no_lock_and_cannot_write(path):
  store = Store(path)
  store.commit([event("a")])
  reader = Store(path, read_only=True)
  assert [e.uid for e in reader.events()] == ["a"]
  with pytest.raises(StoreError):
    reader.commit([event("b")])
  reader.close()
  store.close()
  with pytest.raises(StoreError, match="no store"):
    Store(path.with_name("other"), read_only=True)


def test_a_full_disk_is_a_clear_error_and_saves_nothing(path):
  store = Store(path)
  store.commit([event("a")])
  pages = store.rows("PRAGMA page_count")[0][0]
  store.rows(f"PRAGMA max_page_count = {pages + 1}")
  with pytest.raises(StoreError, match="No space left"):
    store.commit([event("b"), event("c", text="x" * 100_000)])
  assert [e.uid for e in store.events()] == ["a"]
  assert not store.has("b")
  store.close()


def test_a_failing_projection_leaves_no_event(path):
  store = Store(path)
  bad = Event(uid="bad", kind="task", payload={"task": {}})
  with pytest.raises(KeyError):
    store.commit([event("a"), bad])
  assert store.event_number() == 0 and not store.has("a")
  store.close()


def test_a_file_that_is_no_store_is_refused(path):
  path.write_text("This is no database, just a long enough line of text." * 9)
  with pytest.raises(StoreError, match="cannot be read as a store"):
    Store(path)


def test_writes_are_synchronous_and_ahead_logged(path):
  store = Store(path)
  assert store.rows("PRAGMA journal_mode") == [("wal",)]
  assert store.rows("PRAGMA synchronous") == [(2,)]
  store.close()
  assert sqlite3.connect(path).execute("SELECT 1").fetchone() == (1,)
