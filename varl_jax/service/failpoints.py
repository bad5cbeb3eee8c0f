"""Places where a test may kill the process, to prove that nothing is lost.

    VARL_JAX_FAILPOINT=served/saved@3 python -m varl_jax.main ...

ends the process by SIGKILL, as a power cut would, when it gets to that place
for the third time. Without the variable a failpoint is one comparison.
"""

import os
import signal
from typing import Final

VARIABLE: Final = "VARL_JAX_FAILPOINT"

# Every kind of event: about to be written, and written but not yet followed.
KINDS: Final = (
  "requests",
  "task",
  "served",
  "judged",
  "windows",
  "case",
  "patch",
  "sealed",
  "rankings",
  "memo",
  "guidance",
  "failure",
  "reported",
)
NAMES: Final = (
  *(f"{kind}/{when}" for kind in KINDS for when in ("due", "saved")),
  # Around any transaction.
  "transaction/open",
  "transaction/written",
  "transaction/done",
  "rewind/open",
  "rewind/written",
  "rewind/done",
  # Calls were answered, and nothing of it is in the store yet.
  "supply/proposed",
  "supply/written",
  "supply/admitted",
  "report/refereed",
  "report/repaired",
  "report/remembered",
  "report/evolved",
  "evolve/diagnosed",
  "memo/observed",
)
# Those of the trainer and its checkpoints.
TRAINER_NAMES: Final = (
  "record/written",
  "step/polled",
  "step/graded",
  "checkpoint/begun",
  "checkpoint/written",
  "step/updated",
  "step/reported",
  "checkpoint/saved",
)


class FailpointError(Exception):
  """The environment variable names no failpoint."""


def armed(setting: str) -> tuple[str, int]:
  """Reads `NAME` or `NAME@HIT`; ("", 0) for "".

  Raises:
    FailpointError: there is no such place, so that it would never be reached.
  """
  if not setting:
    return "", 0
  name, _, hit = setting.partition("@")
  if name not in NAMES + TRAINER_NAMES or not (hit or "1").isdigit():
    raise FailpointError(
      f"{VARIABLE} is NAME@HIT with a name of failpoints.NAMES,"
      f" got {setting!r}."
    )
  return name, int(hit or 1)


_name, _left = armed(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
  """Kills the process here when the environment asks for it."""
  if name == _name:
    _reached()


def _reached() -> None:
  global _left
  _left -= 1
  if _left == 0:
    os.kill(os.getpid(), signal.SIGKILL)
