"""What only a database server does: other runs, lost sessions, secrets."""

import contextlib
import sys
import threading
import time
import traceback
import uuid

import psycopg
import pytest

from tests.service.store_contract import PostgresHome, event, task_event
from varl_jax.service.event_log import StoreError
from varl_jax.service.postgres_store import PostgresStore, schema_of

SECRET = uuid.uuid4().hex


@pytest.fixture
def home(postgres_server):
  return PostgresHome(postgres_server)


@pytest.fixture
def store(home):
  opened = home.open()
  yield opened
  opened.close()


def end_session(home, store):
  """Ends the store's session from outside, as a server may at any time."""
  number = store._connection.info.backend_pid
  with home.server.connect() as admin:
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", (number,))


def names(store):
  return [found.uid for found in store.events()]


def test_runs_share_a_database_and_nothing_else(postgres_server):
  stores = [PostgresHome(postgres_server).open() for _ in range(3)]
  for number, store in enumerate(stores):
    store.commit([event(f"e{number}"), task_event(f"t{number}", 0)])
  for number, store in enumerate(stores):
    assert names(store) == [f"e{number}", f"t{number}"]
    assert store.rows("SELECT task_id FROM tasks") == [(f"t{number}",)]
  stores[0].rewind(0)
  assert names(stores[0]) == ["e0"]
  assert names(stores[1]) == ["e1", "t1"]
  for store in stores:
    store.close()


def test_a_runs_schema_is_readable_plain_and_unique():
  found = [schema_of(run) for run in ("Story 1", "story-1", "x" * 90, "'\"; é")]
  assert found[0].startswith("varl_story_1_")
  assert len(set(found)) == 4
  assert all(name.isidentifier() and len(name) < 63 for name in found)
  with pytest.raises(StoreError, match="needs a name"):
    schema_of(" ")


def test_commits_wait_for_the_disk(home, store):
  assert store.rows("SHOW synchronous_commit") == [("on",)]
  assert store.rows("SHOW fsync") == [("on",)]
  address = home.server.address() + "&options=-c%20synchronous_commit%3Doff"
  other = PostgresStore(address, run="impatient")
  assert other.rows("SHOW synchronous_commit") == [("on",)]
  other.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_is_survived(home, store, mode):
  store.commit([event("a")])
  home.server.stop(mode=mode)
  again = threading.Timer(0.3, home.server.start)
  again.start()
  assert store.commit([event("b")]) == 2
  again.join()
  assert names(store) == ["a", "b"]
  with pytest.raises(StoreError, match="in use by another process"):
    home.open()


def test_a_server_that_stays_away_is_a_clear_error(home):
  store = home.open(patience=0.2)
  store.commit([event("a")])
  home.server.stop()
  try:
    with pytest.raises(StoreError, match="cannot be reached") as caught:
      store.commit([event("b")])
    assert "Resume the run" in str(caught.value)
    assert home.run in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not store.has("b")
    with pytest.raises(StoreError, match="cannot be reached"):
      home.open()
  finally:
    home.server.start()
  assert store.commit([event("b")]) == 2
  store.close()


def test_a_lost_session_is_made_anew_for_reads_and_writes(home, store):
  store.commit([task_event("a", 0)])
  end_session(home, store)
  assert names(store) == ["a"]
  end_session(home, store)
  assert store.commit([task_event("b", 1)]) == 2
  end_session(home, store)
  store.rewind(1)
  assert names(store) == ["a"]
  reader = home.open(read_only=True)
  end_session(home, reader)
  assert names(reader) == ["a"]
  with pytest.raises(StoreError):
    reader.commit([event("c")])
  reader.close()


def test_a_session_lost_within_a_transaction_leaves_all_or_nothing(home, store):
  store.commit([event("a")])
  execute, broken = store._execute, []

  def cut(query, values=()):
    if "INSERT" in query and values[1] == "c" and not broken:
      broken.append(query)
      end_session(home, store)
    return execute(query, values)

  store._execute = cut
  assert store.commit([event("b"), event("c")]) == 3
  assert broken and names(store) == ["a", "b", "c"]


def lose_answer(home, store):
  """The next commit is done, and the connection breaks before that is known."""
  connection = store._connection

  @contextlib.contextmanager
  def transaction():
    with psycopg.Connection.transaction(connection):
      yield
    end_session(home, store)
    connection.execute("SELECT 1")

  connection.transaction = transaction


def test_a_commit_whose_answer_is_lost_is_not_done_twice(home, store):
  store.commit([task_event("a", 0)])
  lose_answer(home, store)
  assert store.commit([task_event("b", 1), event("c")]) == 3
  assert names(store) == ["a", "b", "c"]
  lose_answer(home, store)
  store.rewind(1)
  assert names(store) == ["a", "c"]


def test_a_commit_of_unknown_end_is_never_built_upon(home):
  """It was said to be unwritten; that it was is noticed, not passed over."""
  store = home.open(patience=0)
  store.commit([event("a")])
  lose_answer(home, store)
  with pytest.raises(StoreError, match="cannot be reached"):
    store.commit([event("b")])
  for _ in range(2):
    with pytest.raises(StoreError):
      store.commit([event("c")])
  store.close()
  again = home.open()
  assert names(again) == ["a", "b"]
  again.close()


def test_a_writer_that_lost_its_lock_gives_way(home):
  first = home.open(patience=0.2)
  first.commit([event("a")])
  end_session(home, first)
  second = home.open()
  with pytest.raises(StoreError, match="in use by another process"):
    first.commit([event("b")])
  second.commit([event("c")])
  second.close()
  with pytest.raises(StoreError, match="written by another process"):
    first.commit([event("b")])
  first.close()
  third = home.open()
  assert names(third) == ["a", "c"]
  third.close()


def told(error):
  """Everything that a traceback of the error could show."""
  return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
  "address",
  [
    "postgresql://me:{0}@localhost:1/db",
    "postgresql://me:{0}@nowhere.invalid/db",
    "postgresql://me:{0}@localhost:port/db",
    "postgresql://me:{0}/x@localhost/db",
    "postgresql://me:x/{0}@localhost/db",
    "postgresql://me:x@{0}@localhost/db",
    "postgresql://me:x?{0}@localhost/db",
    "postgresql://me:x#{0}@localhost/db",
    "postgresql://me:%zz{0}@localhost/db",
    "host=localhost port=1 password={0}",
    "host=localhost password=x {0}",
    "host=localhost port=1 password='{0}",
    "{0}",
  ],
)
def test_no_message_holds_the_password(address):
  with pytest.raises(StoreError) as caught:
    PostgresStore(address.format(SECRET), run="r", patience=0)
  assert SECRET not in told(caught.value)


def test_a_refused_password_is_not_repeated(home):
  address = home.server.address(password=SECRET)
  with pytest.raises(StoreError, match="password authentication") as caught:
    PostgresStore(address, run="r", patience=0)
  assert SECRET not in told(caught.value)
  assert "refuses the login" in str(caught.value)
  assert "service.store_env" in str(caught.value)
  assert "once the server is there" not in str(caught.value)


def test_a_database_that_is_not_there_is_no_lost_server(home):
  address = home.server.address(database="nowhere")
  with pytest.raises(StoreError, match="Mend user, password or database"):
    PostgresStore(address, run="r", patience=0)


def test_a_lost_server_does_not_tell_the_password(home):
  store = home.open(patience=0)
  home.server.stop()
  try:
    with pytest.raises(StoreError) as caught:
      store.commit([event("a")])
  finally:
    home.server.start()
  assert home.server.password not in told(caught.value)
  assert home.server.password not in store.name + repr(store)
  store.close()


def test_a_missing_driver_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "psycopg", None)
  with pytest.raises(StoreError, match=r"varl_jax\[postgres\]"):
    PostgresStore("postgresql://localhost/db", run="r")


def test_a_writer_waits_a_while_for_the_lock_of_its_own_dead_session(home):
  """A server may take a moment to notice that a session is gone."""
  store = home.open(patience=5)
  store.commit([event("a")])
  end_session(home, store)
  thief = home.open()
  release = threading.Timer(0.4, thief.close)
  release.start()
  started = time.monotonic()
  assert store.commit([event("b")]) == 2
  assert time.monotonic() - started < 5
  release.join()
  store.close()
