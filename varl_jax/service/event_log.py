"""What a run's durable state is, whatever database holds it.

Every change is an event with a unique name. Events and the tables derived from
them (`projections`) are written in one transaction, so a crash leaves either
all of a change or nothing. One process at a time may have a store open for
writing.

Events that belong to a training step carry it; `rewind` drops those after a
remembered number, which is how a run resumes from its checkpoint. Events
without a step (work done in the background and already paid for) stay.

`EventStore` is what the service and the reports ask for. `EventLog` is all of
it but the database: `store.Store` adds sqlite, `postgres_store.PostgresStore`
adds PostgreSQL, and one suite of tests holds for both.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from varl_jax.service import projections
from varl_jax.service.failpoints import failpoint

EVENTS_TABLE: Final = """
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  step INTEGER,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL
)
"""
# Events read at once.
PAGE: Final = 500

# Number and name of the last event; (0, "") in an empty store.
Head = tuple[int, str]


class StoreError(Exception):
  """The store cannot be opened, read or written; one clear sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """One change.

  Attributes:
    uid: unique within a run; a second event of that name is ignored.
    kind: what happened, a key of `state.ServiceState`'s handlers.
    payload: plain JSON values.
    step: the training step it belongs to, None for work bound to no step.
  """

  uid: str
  kind: str
  payload: Mapping[str, Any]
  step: int | None = None


class EventStore(Protocol):
  """A run's events with their projections."""

  @property
  def name(self) -> str:
    """Where it is, for messages; holds no secret."""
    ...

  def commit(self, events: Iterable[Event]) -> int:
    """Writes the new ones of `events` with their projections, all or none.

    Returns:
      The number of the last event in the store.

    Raises:
      StoreError: nothing was written, for example because the disk is full.
    """
    ...

  def has(self, uid: str) -> bool:
    """Whether an event of that name is in the store."""
    ...

  def event_number(self) -> int:
    """Number of the last event, 0 in an empty store."""
    ...

  def events(self, *, uid: str | None = None) -> Iterator[Event]:
    """All events in order, or the one named `uid`."""
    ...

  def rewind(self, seq: int) -> None:
    """Drops step-bound events after number `seq`; rebuilds the projections.

    Raises:
      StoreError: the store never got as far as `seq`.
    """
    ...

  def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    """Reads from the tables; `?` stands for a value. Raises StoreError."""
    ...

  def close(self) -> None:
    """Lets the store and its lock go; harmless when repeated."""
    ...


class EventLog(abc.ABC):
  """An `EventStore` but for its database.

  A subclass connects, then calls `_load`.
  """

  def __init__(self) -> None:
    self._uids: set[str] = set()

  @property
  @abc.abstractmethod
  def name(self) -> str:
    """See `EventStore`."""

  @abc.abstractmethod
  def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple]:
    """See `EventStore`."""

  @abc.abstractmethod
  def close(self) -> None:
    """See `EventStore`."""

  @abc.abstractmethod
  def _atomically(
    self,
    work: Callable[[projections.Execute], None],
    *,
    before: Head,
    after: Head,
  ) -> None:
    """Does all of `work` in one transaction, or nothing of it.

    Args:
      work: gets a function that runs one statement.
      before: the last event when this was asked for.
      after: the last event once it is done; tells a commit whose answer was
        lost from one that never happened.

    Raises:
      StoreError: nothing was written.
    """

  def commit(self, events: Iterable[Event]) -> int:
    """See `EventStore`."""
    before = self._head()
    fresh: dict[str, Event] = {}
    for event in events:
      if event.uid not in self._uids:
        fresh.setdefault(event.uid, event)
    if not fresh:
      return before[0]

    def write(execute: projections.Execute) -> None:
      failpoint("transaction/open")
      for number, event in enumerate(fresh.values(), before[0] + 1):
        payload = json.dumps(
          event.payload, separators=(",", ":"), allow_nan=False
        )
        execute(
          "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
          (number, event.uid, event.step, event.kind, payload),
        )
        projections.project(execute, event.kind, event.step, event.payload)
      failpoint("transaction/written")

    after = (before[0] + len(fresh), next(reversed(fresh)))
    self._atomically(write, before=before, after=after)
    self._uids.update(fresh)
    failpoint("transaction/done")
    return after[0]

  def has(self, uid: str) -> bool:
    """See `EventStore`."""
    return uid in self._uids

  def event_number(self) -> int:
    """See `EventStore`."""
    return self._head()[0]

  def events(self, *, uid: str | None = None) -> Iterator[Event]:
    """See `EventStore`."""
    if uid is not None:
      query = "SELECT seq, uid, step, kind, payload FROM events WHERE uid = ?"
      yield from map(_event, self.rows(query, (uid,)))
      return
    query = (
      "SELECT seq, uid, step, kind, payload FROM events WHERE seq > ?"
      " ORDER BY seq LIMIT ?"
    )
    seen = 0
    while found := self.rows(query, (seen, PAGE)):
      seen = found[-1][0]
      yield from map(_event, found)

  def rewind(self, seq: int) -> None:
    """See `EventStore`."""
    before = self._head()
    if seq > before[0]:
      raise StoreError(
        f"{self.name} ends at event {before[0]}, before event {seq} of the"
        " checkpoint; it is not the store of that run. Restore it, or choose"
        " another --workdir."
      )
    kept = "seq <= ? OR step IS NULL"
    last = self.rows(
      f"SELECT seq, uid FROM events WHERE {kept} ORDER BY seq DESC LIMIT 1",
      (seq,),
    )

    def write(execute: projections.Execute) -> None:
      failpoint("rewind/open")
      execute(f"DELETE FROM events WHERE NOT ({kept})", (seq,))
      for table in projections.NAMES:
        execute(f"DELETE FROM {table}", ())
      query = "SELECT step, kind, payload FROM events ORDER BY seq"
      for step, kind, payload in execute(query, ()):
        projections.project(execute, kind, step, json.loads(payload))
      failpoint("rewind/written")

    self._atomically(
      write, before=before, after=_head_of(last[0] if last else None)
    )
    self._load()
    failpoint("rewind/done")

  def _load(self) -> None:
    self._uids = {row[0] for row in self.rows("SELECT uid FROM events")}

  def _head(self) -> Head:
    found = self.rows("SELECT seq, uid FROM events ORDER BY seq DESC LIMIT 1")
    return _head_of(found[0] if found else None)


def _head_of(row: tuple | None) -> Head:
  return (row[0], row[1]) if row else (0, "")


def _event(row: tuple) -> Event:
  _, uid, step, kind, payload = row
  return Event(uid=uid, step=step, kind=kind, payload=json.loads(payload))
