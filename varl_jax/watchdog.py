"""Says what a run waits for when nothing has moved for long.

It ends nothing: deadlines of calls and the patience with servers are those of
`config.EndpointConfig`. It tells people where to look.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from varl_jax.timeline import Span, Timeline

# Seconds between two looks, at most.
LOOK_S: Final = 5.0
# Who is at work in a stage.
_WORK: Final = {
  "tasks": "the service writes the tasks of step {}",
  "sample": "the policy answers the tasks of step {}",
  "judge": "the judge grades step {}",
  "update": "the weights are updated in step {}",
  "repair": "the service repairs rubrics after step {}",
  "examine": "the policy answers the held-out tasks after step {}",
  "evaluate": "the held-out answers of step {} are scored",
  "checkpoint": "the checkpoint of step {} is written",
}


class Watchdog:
  """Looks at a timeline from a thread of its own; a context manager.

  Args:
    timeline: of the run.
    seconds: without a stage that begins or ends, after which it speaks; it
      speaks again after as many more. 0 never speaks.
    say: told one sentence.
  """

  def __init__(
    self, timeline: Timeline, *, seconds: float, say: Callable[[str], None]
  ):
    self._timeline = timeline
    self._seconds = seconds
    self._say = say
    self._spoken = float("-inf")
    self._end = threading.Event()
    self._thread = threading.Thread(
      target=self._watch, name="watchdog", daemon=True
    )

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self._thread.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._end.set()
    if self._seconds:
      self._thread.join()

  def look(self) -> str | None:
    """The sentence that is due now, if one is."""
    now = self._timeline.clock()
    moved, waits, going = self._timeline.standing()
    if now - max(moved, self._spoken) < self._seconds:
      return None
    self._spoken = now
    return sentence(now - moved, waits, going, now=now)

  def _watch(self) -> None:
    while not self._end.wait(min(LOOK_S, self._seconds / 4)):
      said = self.look()
      if said is not None:
        self._say(said)


def sentence(
  still: float, waits: Sequence[str], going: Sequence[Span], *, now: float
) -> str:
  """What everyone waits for, in one sentence.

  Args:
    still: seconds since a stage began or ended.
    waits: what completes "the training waits for ...".
    going: stages under way, the oldest first.
    now: seconds since the epoch.
  """
  said = f"Nothing has moved for {still:.0f} s"
  if waits:
    said += f": the training waits for {' and '.join(waits)}"
  if not going:
    return f"{said}; no stage is under way."
  work = [
    f"{_WORK.get(s.stage, s.stage + ' of step {}').format(s.step)}"
    f" ({now - s.start:.0f} s)"
    for s in going
  ]
  return f"{said}{' while' if waits else ':'} {' and '.join(work)}."
