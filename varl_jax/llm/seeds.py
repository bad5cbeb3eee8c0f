"""Seeds that depend on what is asked, not on when or in which order."""

import hashlib


def derive_seed(seed: int, operation: str) -> int:
  """The seed of one operation of a run.

  Args:
    seed: the run's seed.
    operation: unique name of the operation.

  Returns:
    An integer in [0, 2^31), the same on every machine and Python version.
  """
  digest = hashlib.sha256(f"{seed}\0{operation}".encode()).digest()
  return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
