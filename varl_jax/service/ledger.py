"""The store together with its mirror in memory; the two never differ."""

from collections.abc import Iterable

from varl_jax.config import Config
from varl_jax.service.event_log import Event, EventStore
from varl_jax.service.failpoints import failpoint
from varl_jax.service.state import ServiceState


class Ledger:
  """Commits events to a store and applies them to the state."""

  def __init__(self, store: EventStore, *, config: Config):
    self.store = store
    self._config = config
    self.state = self._rebuilt()

  def commit(self, events: Iterable[Event]) -> int:
    """Writes events in one transaction, then follows the new ones.

    Returns:
      The number of the last event.

    Raises:
      StoreError: nothing was written, and the state is as before.
    """
    fresh: dict[str, Event] = {}
    for event in events:
      if not self.store.has(event.uid):
        fresh.setdefault(event.uid, event)
    for event in fresh.values():
      failpoint(f"{event.kind}/due")
    number = self.store.commit(fresh.values())
    for event in fresh.values():
      failpoint(f"{event.kind}/saved")
      self.state.apply(event)
    return number

  def rewind(self, seq: int) -> None:
    """Drops step-bound events after `seq` and rebuilds the state."""
    self.store.rewind(seq)
    self.state = self._rebuilt()

  def _rebuilt(self) -> ServiceState:
    state = ServiceState(self._config)
    for event in self.store.events():
      state.apply(event)
    return state
