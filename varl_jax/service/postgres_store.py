"""A run's durable state in a PostgreSQL database: see `event_log`.

Every run has a schema of its own, named after it, so that several runs share a
database. The writer holds an advisory lock of its session: a transaction is
only ever written through the connection that holds the lock, which shuts out a
second writer even where connections break. Connect to the server itself, since
a pooler that shares sessions would share the lock.

A lost connection (a restart of the server, say) is made anew for a while. What
was asked for last is then looked up: it is either there as a whole or done
again, and anything else in the log is another writer's work and an error.

The address holds a password, so it comes from the environment and no message
repeats it.
"""

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from varl_jax.service import projections
from varl_jax.service.event_log import (
  EVENTS_TABLE,
  EventLog,
  Head,
  StoreError,
)

if TYPE_CHECKING:
  import psycopg

# For how long a lost server is waited for, in seconds.
PATIENCE: Final = 20.0
PAUSE: Final = 0.25
# For how long a server may keep the lock of a session that has ended, seconds.
RELEASE: Final = 1.0
CONNECT_TIMEOUT: Final = 10
# Of a server that is there; the driver has no code for a refused session.
_LOGIN: Final = (
  "authentication failed",
  "no password supplied",
  "no pg_hba.conf entry",
  "does not exist",
)

Value = TypeVar("Value")


class PostgresStore(EventLog):
  """Event log and projections of one run, in a schema of a database."""

  def __init__(
    self,
    address: str,
    *,
    run: str,
    read_only: bool = False,
    patience: float = PATIENCE,
  ):
    """Opens the run's store, or creates it.

    Args:
      address: `postgresql://user:password@host:port/database`.
      run: the run's name; another name is another store.
      read_only: for reports; takes no lock and refuses writes.
      patience: for how long a lost server is waited for, in seconds.

    Raises:
      StoreError: another process has it open, the server cannot be reached, or
        there is no such run to read.
    """
    super().__init__()
    self.read_only = read_only
    self._patience = patience
    self._driver = _load_driver()
    self._settings = _read_address(address, self._driver)
    self._schema = schema_of(run)
    self._key = _lock_key(self._schema)
    self._name = f"run {run!r} in {_place(self._settings)}"
    self._seen: Head | None = None
    self._closed = False
    self._connection = self._connect()
    try:
      if read_only:
        self._check_there()
      else:
        self._prepare(run)
      self._load()
      self._seen = self._head()
    except BaseException:
      self.close()
      raise

  @property
  def name(self) -> str:
    """The run, the database and its server."""
    return self._name

  def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    """See `event_log.EventStore`."""
    return self._lasting(lambda: self._execute(query, values))

  def close(self) -> None:
    """Ends the session and its lock; harmless when repeated."""
    self._closed = True
    self._connection.close()

  def _atomically(
    self,
    work: Callable[[projections.Execute], None],
    *,
    before: Head,
    after: Head,
  ) -> None:
    self._seen = before

    def write() -> None:
      if self._head_now() == after != before:
        return  # Done, and the connection broke before that was known.
      with self._connection.transaction():
        work(self._execute)

    self._lasting(write, allowed=(before, after))
    self._seen = after

  def _execute(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    cursor = self._connection.execute(
      query.replace("?", "%s").encode(), tuple(values)
    )
    return cursor.fetchall() if cursor.description else []

  def _head_now(self) -> Head:
    found = self._execute(
      "SELECT seq, uid FROM events ORDER BY seq DESC LIMIT 1"
    )
    return (found[0][0], found[0][1]) if found else (0, "")

  def _lasting(
    self, work: Callable[[], Value], *, allowed: Sequence[Head] = ()
  ) -> Value:
    """Runs `work`; once more on a new connection where the old one is lost.

    Args:
      work: is given up as a whole when the connection is lost.
      allowed: last events that may be found after that, by default the last
        one seen.
    """
    deadline = time.monotonic() + self._patience
    while True:
      try:
        if self._connection.closed and not self._closed:
          self._reconnect(allowed or (self._seen,), deadline)
        return work()
      except self._driver.Error as error:
        if self._closed or not self._connection.closed:
          raise self._problem(error) from error
        if time.monotonic() >= deadline:
          raise self._lost(error) from error

  def _reconnect(self, allowed: Sequence[Head | None], deadline: float) -> None:
    """Takes session and lock again.

    Raises:
      StoreError: not in time, or somebody else wrote in between.
    """
    while True:
      try:
        connection = self._connect()
        break
      except StoreError:
        if time.monotonic() >= deadline:
          raise
        time.sleep(PAUSE)
    self._connection = connection
    if self.read_only or None in allowed:
      return
    found = self._head_now()
    if found not in allowed:
      connection.close()
      self._closed = True
      raise StoreError(
        f"{self._name} was written by another process while the connection was"
        " lost; nothing of this change was saved. Resume the run."
      )

  def _connect(self) -> "psycopg.Connection":
    """A session of the run's schema, with its lock unless it only reads."""
    try:
      connection = self._driver.connect(
        **self._settings, autocommit=True, prepare_threshold=None
      )
    except self._driver.Error as error:
      raise self._lost(error) from None
    try:
      connection.execute("SET client_encoding TO 'UTF8'")
      connection.execute("SET synchronous_commit TO on")
      connection.execute(f'SET search_path TO "{self._schema}"'.encode())
      if self.read_only:
        connection.execute("SET default_transaction_read_only TO on")
      elif not self._lock(connection):
        raise StoreError(
          f"{self._name} is in use by another process; a store has one writer."
        )
    except self._driver.Error as error:
      connection.close()
      raise self._lost(error) from error
    except StoreError:
      connection.close()
      raise
    return connection

  def _lock(self, connection: "psycopg.Connection") -> bool:
    """Takes the run's lock, which the server may hold for one just ended."""
    deadline = time.monotonic() + RELEASE
    while True:
      taken = connection.execute(
        "SELECT pg_try_advisory_lock(%s)", (self._key,)
      ).fetchone()
      if taken and taken[0]:
        return True
      if time.monotonic() >= deadline:
        return False
      time.sleep(RELEASE / 20)

  def _prepare(self, run: str) -> None:
    tables = (EVENTS_TABLE, *projections.TABLES)

    def create() -> None:
      with self._connection.transaction():
        self._execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
        for statement in tables:
          # Sorted by bytes, as sqlite does, whatever the database's language.
          self._execute(statement.replace("TEXT", 'TEXT COLLATE "C"'))

    self._lasting(create)

  def _check_there(self) -> None:
    found = self.rows(
      "SELECT 1 FROM information_schema.tables"
      " WHERE table_schema = ? AND table_name = 'events'",
      (self._schema,),
    )
    if not found:
      raise StoreError(f"There is no {self._name}.")

  def _problem(self, error: Exception) -> StoreError:
    """The server's refusal of a statement, in one sentence."""
    if isinstance(error, self._driver.errors.DiskFull):
      return StoreError(
        f"No space left on the server to write {self._name}; nothing of this"
        " change was saved. Free some space and resume the run."
      )
    return StoreError(
      f"{self._name} cannot be used ({self._told(error)}); nothing of this"
      " change was saved."
    )

  def _lost(self, error: Exception) -> StoreError:
    told = self._told(error)
    if any(words in told for words in _LOGIN):
      return StoreError(
        f"The server of {self._name} refuses the login ({told}); what was"
        " committed is kept. Mend user, password or database in the address,"
        " which stands in the variable that service.store_env names."
      )
    return StoreError(
      f"The server of {self._name} cannot be reached ({told}); what was"
      " committed is kept. Resume the run once the server is there."
    )

  def _told(self, error: Exception) -> str:
    """What the driver says, on one line and without the password."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    password = self._settings.get("password")
    return text.replace(password, "***") if password else text


def schema_of(run: str) -> str:
  """The schema of a run: readable, unique by a hash, a plain identifier.

  Raises:
    StoreError: the name is empty.
  """
  if not run.strip():
    raise StoreError("A run in PostgreSQL needs a name; give it one.")
  readable = re.sub(r"[^a-z0-9]+", "_", run.lower()).strip("_")[:40]
  digest = hashlib.sha256(run.encode()).hexdigest()[:12]
  return f"varl_{readable}_{digest}"


def _lock_key(schema: str) -> int:
  digest = hashlib.sha256(f"varl_jax/{schema}".encode()).digest()
  return int.from_bytes(digest[:8], "big", signed=True)


def _load_driver() -> Any:
  try:
    import psycopg
  except ImportError as error:
    raise StoreError(
      "A store in PostgreSQL needs psycopg; install the extra:"
      " pip install 'varl_jax[postgres]'."
    ) from error
  return psycopg


def _read_address(address: str, driver: Any) -> dict[str, Any]:
  """The address's parts; its text stays out of every error.

  Raises:
    StoreError: it is no address; which part is wrong may be a secret.
  """
  try:
    parts = driver.conninfo.conninfo_to_dict(address)
  except driver.Error:
    parts = None
  # A password with one of these in it would be read as host or database, and
  # those stand in messages.
  login, at, _ = address.partition("://")[2].rpartition("@")
  if not parts or (at and re.search("[/@?#]", login)):
    raise StoreError(
      "The store's address is none; it has the form"
      " postgresql://user:password@host:port/database, with / @ : # ? and % in"
      " a password written as %2F %40 %3A %23 %3F and %25."
    )
  defaults = {
    "connect_timeout": CONNECT_TIMEOUT,
    "application_name": "varl_jax",
    # A dead server is noticed within a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
  }
  return defaults | parts


def _place(settings: dict[str, Any]) -> str:
  database = settings.get("dbname", "of the default name")
  host = settings.get("host", "the local host")
  port = f":{settings['port']}" if "port" in settings else ""
  return f"PostgreSQL database {database} on {host}{port}"
