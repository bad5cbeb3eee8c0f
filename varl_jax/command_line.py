"""Flags read and errors said the same way by every command."""

import sys

from absl import flags


def parse(argv: list[str]) -> list[str]:
  """Reads the flags, the config file among them; ends the process if it can't.

  A config file is code: what it raises for its input is said in its own words.
  """
  try:
    return flags.FLAGS(argv)
  except (AttributeError, KeyError) as error:
    sys.exit(refuse(f"The config has no setting {error}."))
  except (flags.Error, ValueError) as error:
    sys.exit(refuse(last_line(error)))


def last_line(error: Exception) -> str:
  """What was raised in the first place, without the traces around it."""
  return str(error).splitlines()[-1].strip().removeprefix("ValueError: ")


def refuse(sentence: str) -> int:
  """Says why nothing was done; returns the exit code."""
  print(f"varl_jax: {sentence}", file=sys.stderr)
  return 2
