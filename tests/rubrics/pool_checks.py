"""Verifiers that misbehave, for worker processes to import."""

import os
import re
import sys
import time

from varl_jax.rubrics.checks import CheckError, CheckRegistry


def has(answer: str, word: str) -> bool:
  """The word is there."""
  return word in answer.split()


def hangs(answer: str) -> bool:
  """Never ends, with the interpreter held."""
  return re.fullmatch(r"(a+)+b", "a" * 60) is not None


def sleeps(answer: str) -> bool:
  """Never ends, politely."""
  time.sleep(3600)
  return True


def dies(answer: str) -> bool:
  """Takes the process along."""
  os._exit(7)


def breaks(answer: str) -> bool:
  """Has a bug."""
  raise KeyError(answer)


def refuses(answer: str) -> bool:
  """Does not know its arguments."""
  raise CheckError("No such thing.")


def prints(answer: str) -> bool:
  """Writes where it should not."""
  print("noise", flush=True)
  return True


def frameworks(answer: str) -> bool:
  """An array framework or the trainer is loaded."""
  return any(
    name in sys.modules
    for name in ("jax", "numpy", "torch", "varl_jax.main", "varl_jax.trainer")
  )


def process(answer: str, number: str) -> bool:
  """This process has that number."""
  return os.getpid() == int(number)


CHECKS = CheckRegistry(
  checks={
    check.__name__: check
    for check in (
      has,
      hangs,
      sleeps,
      dies,
      breaks,
      refuses,
      prints,
      frameworks,
      process,
    )
  }
)
NOT_A_REGISTRY = 3
