"""Trains a policy: parses flags, builds the parts, runs the trainer.

    python -m varl_jax.main --config=configs/story.py
    python -m varl_jax.main --config=configs/story.py:generation_only \
        --config.train.steps=10 --workdir=runs/mine

Exit codes: 0 done, 2 wrong input, 3 the judge failed too often (state saved),
130 interrupted (state saved). The same command goes on where a run stopped.
"""

import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from varl_jax.build import RunError, run
from varl_jax.config import ConfigError, from_config_dict

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file, such as configs/story.py or ...:VARIANT."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run; runs/NAME without it."
)
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> int:
  """Runs; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  logging.set_verbosity(logging.WARNING)
  try:
    config = from_config_dict(_CONFIG.value)
    workdir = pathlib.Path(_WORKDIR.value or f"runs/{config.name}")
    return run(config, workdir)
  except (ConfigError, RunError) as error:
    return refuse(str(error))
  except OSError as error:  # the config file could not be loaded
    return refuse(_last_line(error))
  except KeyboardInterrupt:
    refuse(
      "Stopped at once; the same command goes on from the last checkpoint."
    )
    return 130


def parse(argv: list[str]) -> list[str]:
  """Reads the flags, the config file among them; ends the process if it can't.

  A config file is code: what it raises for its input is said in its own words.
  """
  try:
    return flags.FLAGS(argv)
  except (AttributeError, KeyError) as error:
    sys.exit(refuse(f"The config has no setting {error}."))
  except (flags.Error, ValueError) as error:
    sys.exit(refuse(_last_line(error)))


def _last_line(error: Exception) -> str:
  """What was raised in the first place, without the traces around it."""
  return str(error).splitlines()[-1].strip().removeprefix("ValueError: ")


def refuse(sentence: str) -> int:
  """Says why nothing was done; returns the exit code."""
  print(f"varl_jax: {sentence}", file=sys.stderr)
  return 2


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
