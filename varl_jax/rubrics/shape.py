"""How many criteria of each sign to ask for (paper appendix B).

The generator is told a hard number of positives and whether to add a negative.
Two controllers, over a rolling window of tasks, correct what is asked for by
how far deliveries strayed from requests. The paper gives no law; ours is

    requested rate = target + mean over the window of (requested - delivered)

which solves `delivered = target` for any steady habit of the generator: one
that writes a share c of the negatives asked for is asked for target / c, and
one that always complies is asked for the target itself, without reacting to the
luck of the draw. A few imaginary on-target tasks damp the first steps.
"""

import dataclasses
import math
import random
from typing import Final

POSITIVE_COUNTS: Final = (2, 3, 4)
POSITIVE_PROBABILITIES: Final = (0.15, 0.70, 0.15)
POSITIVE_MEAN: Final = 3.0
RED_TEAM_COUNTS: Final = (1, 2)
NEGATIVE_TARGET: Final = 0.75
# What the guidance prompts speak of; the code's own target is the one above.
GUIDANCE_NEGATIVE_SHARE: Final = 1 / 3
CONTROLLER_WINDOW: Final = 400
TARGET_BAND: Final = (0.4, 0.6)

PRIOR_TASKS: Final = 20

History = tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Controller:
  """Solves the rate to request from what was delivered.

  Attributes:
    target: the rate to deliver.
    low: least rate that can be asked for.
    high: largest.
    window: tasks looked back on.
    prior: imaginary tasks delivered as requested.
  """

  target: float
  low: float
  high: float
  window: int = CONTROLLER_WINDOW
  prior: int = PRIOR_TASKS

  def requested(self, history: History) -> float:
    """The rate to ask for next.

    Args:
      history: (requested, delivered) of each task, oldest first.
    """
    recent = history[-self.window :]
    missing = math.fsum(asked - got for asked, got in recent)
    rate = self.target + missing / max(1, len(recent) + self.prior)
    return min(self.high, max(self.low, rate))

  def remember(self, history: History, asked: float, got: float) -> History:
    """The history with one more task, cut to the window."""
    return (*history, (float(asked), float(got)))[-self.window :]


NEGATIVES: Final = Controller(target=NEGATIVE_TARGET, low=0.0, high=1.0)
POSITIVES: Final = Controller(
  target=POSITIVE_MEAN, low=POSITIVE_COUNTS[0], high=POSITIVE_COUNTS[-1]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Targets:
  """What the controllers steer for; ablations move it.

  Attributes:
    positives: mean number of positive criteria, within `POSITIVE_COUNTS`.
    negatives: share of tasks with a negative one. Red-team tasks keep theirs,
      so 0 leaves negatives to them.
  """

  positives: float = POSITIVE_MEAN
  negatives: float = NEGATIVE_TARGET

  def controllers(self) -> tuple[Controller, Controller]:
    """Those of positives and of negatives."""
    return (
      dataclasses.replace(POSITIVES, target=self.positives),
      dataclasses.replace(NEGATIVES, target=self.negatives),
    )


PAPER: Final = Targets()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """Criteria of each sign."""

  positives: int
  negatives: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeState:
  """Both controllers' histories; JSON by `types.to_json` and `from_json`."""

  positives: History = ()
  negatives: History = ()


def request_shape(
  state: ShapeState,
  rng: random.Random,
  *,
  red_team: bool = False,
  targets: Targets = PAPER,
) -> Shape:
  """Draws what to ask for; always takes three draws from `rng`.

  Args:
    state: the histories.
    rng: seeded by the caller.
    red_team: whether the task sets a trap: the counts are those of
      `RED_TEAM_COUNTS`, few enough for one mistake to cost everything, and a
      negative names the trap.
    targets: what is steered for.
  """
  positive, negative = targets.controllers()
  count_draw, mix_draw, sign_draw = (rng.random() for _ in range(3))
  if red_team:
    positives = RED_TEAM_COUNTS[int(count_draw * len(RED_TEAM_COUNTS))]
    return Shape(positives=positives, negatives=1)
  negatives = int(sign_draw < negative.requested(state.negatives))
  shift = positive.requested(state.positives) - POSITIVE_MEAN
  if mix_draw < abs(shift):
    # Mixing in an end of the range moves the mean by exactly `shift`.
    positives = POSITIVE_COUNTS[0 if shift < 0 else -1]
  else:
    positives = _base_count(count_draw)
  return Shape(positives=positives, negatives=negatives)


def record_shape(
  state: ShapeState,
  requested: Shape,
  delivered: Shape,
  *,
  red_team: bool = False,
  targets: Targets = PAPER,
) -> ShapeState:
  """The state after a task was written.

  Red-team tasks ask for other counts, so only their negatives are recorded,
  against the rate of the other tasks: what they have too many, the others are
  asked for less, and the share over all tasks is the target.
  """
  positive, negative = targets.controllers()
  asked = float(requested.negatives > 0)
  if red_team:
    asked = negative.requested(state.negatives)
  negatives = negative.remember(state.negatives, asked, delivered.negatives > 0)
  positives = state.positives
  if not red_team:
    positives = positive.remember(
      positives, requested.positives, delivered.positives
    )
  return ShapeState(positives=positives, negatives=negatives)


def _base_count(draw: float) -> int:
  for count, share in zip(POSITIVE_COUNTS, POSITIVE_PROBABILITIES, strict=True):
    if draw < share:
      return count
    draw -= share
  return POSITIVE_COUNTS[-1]
