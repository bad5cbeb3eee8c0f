"""How tests open, break and look into stores of either kind."""

import pathlib
import uuid

from varl_jax.service.event_log import Event, EventLog
from varl_jax.service.postgres_store import PostgresStore, schema_of
from varl_jax.service.store import Store

KINDS = ("sqlite", "postgres")


def event(uid: str, step: int | None = None, **payload: object) -> Event:
  return Event(uid=uid, step=step, kind="note", payload=payload)


def task_event(uid: str, step: int | None, version: int = 0) -> Event:
  task = {"task_id": uid, "rubric": {"version": version}, "patches": 0}
  return Event(uid=uid, step=step, kind="task", payload={"task": task})


class SqliteHome:
  """One run's store in a file."""

  kind = "sqlite"

  def __init__(self, folder: pathlib.Path):
    self.path = folder / "service.sqlite"
    self.where = str(self.path)

  def open(self, *, read_only: bool = False) -> EventLog:
    return Store(self.path, read_only=read_only)

  def other(self) -> EventLog:
    """A reader of a run that does not exist."""
    return Store(self.path.with_name("other"), read_only=True)

  def fill_up(self, store: EventLog) -> None:
    """Leaves no room for more than a little."""
    pages = store.rows("PRAGMA page_count")[0][0]
    store.rows(f"PRAGMA max_page_count = {pages + 1}")

  def crash(self, store: EventLog) -> None:
    """Lets the store go as a killed process would: nothing is finished."""
    assert isinstance(store, Store) and store._lock is not None
    store._connection.close()
    store._lock.close()


class PostgresHome:
  """One run's store on the tests' server."""

  kind = "postgres"

  def __init__(self, server):
    self.server = server
    self.run = f"Run {uuid.uuid4().hex}"
    self.where = self.run

  def open(self, *, read_only: bool = False, **settings) -> PostgresStore:
    return PostgresStore(
      self.server.address(), run=self.run, read_only=read_only, **settings
    )

  def other(self) -> EventLog:
    return PostgresStore(self.server.address(), run="other", read_only=True)

  def fill_up(self, store: EventLog) -> None:
    """The server says about long texts what it says about a full disk.

    A disk cannot be filled in a test; what is tested is the error's way here.
    """
    schema = schema_of(self.run)
    with self.server.connect() as admin:
      admin.execute(
        f"""CREATE FUNCTION "{schema}".full_disk() RETURNS trigger AS $$
        BEGIN
          IF length(NEW.payload) > 1000 THEN
            RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full';
          END IF;
          RETURN NEW;
        END $$ LANGUAGE plpgsql"""
      )
      admin.execute(
        f'CREATE TRIGGER full_disk BEFORE INSERT ON "{schema}".events'
        f' FOR EACH ROW EXECUTE FUNCTION "{schema}".full_disk()'
      )

  def crash(self, store: EventLog) -> None:
    assert isinstance(store, PostgresStore)
    store._connection.pgconn.finish()
    # The server frees the lock once it notices the closed socket.
    import time

    for _ in range(400):
      with self.server.connect() as admin:
        held = admin.execute(
          "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
          " AND ((classid::bigint << 32) | objid::bigint) = %s",
          (store._key,),
        ).fetchone()
      if held == (0,):
        return
      time.sleep(0.01)
    raise AssertionError("The lock of a dead session is still held.")
