"""How far an evaluation is, told now and then."""

import time
from collections.abc import Callable

from varl_jax.evaluation import State


class Pace:
  """Says now and then how far an evaluation is, with cost and time left.

  Args:
    say: shows a sentence.
    cost: US dollars so far.
    every_s: seconds between two sentences.
  """

  def __init__(
    self,
    say: Callable[[str], None],
    *,
    cost: Callable[[], float],
    every_s: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._say = say
    self._cost = cost
    self._every_s = every_s
    self._clock = clock
    self._began = self._last = clock()
    self._first: int | None = None

  def show(self, state: State, total: int) -> None:
    """Called after every answer and grading."""
    now = self._clock()
    if self._first is None:
      self._first = state.graded
    if now - self._last < self._every_s and state.graded < total:
      return
    self._last = now
    done = state.graded - self._first
    left = "?"
    if done:
      left = duration((now - self._began) / done * (total - state.graded))
    votes = state.votes + state.failed_votes
    self._say(
      f"answers {len(state.answers)}/{total}  graded {state.graded}/{total}"
      f"  votes {votes} ({state.failed_votes} failed)"
      f"  cost ${self._cost():.2f}  left {left}"
    )


def duration(seconds: float) -> str:
  """Hours, minutes or seconds, as people say them."""
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}h {minutes:02d}m"
  return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
