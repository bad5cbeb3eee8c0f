"""Runs the generation service in a process of its own: parses and wires.

    python -m varl_jax.serve --config=configs/story.py --port=8700
    python -m varl_jax.main --config=configs/story.py \
        --config.service.url=http://127.0.0.1:8700

The service listens to this machine alone; any other --host needs a token in the
environment variable that `service.token_env` names. SIGTERM and Ctrl-C end it
with its state saved; the same command goes on where it stopped, and a trainer
that waited goes on too.

Exit codes: 0 stopped, 2 wrong input.
"""

import pathlib

from absl import app, flags, logging
from ml_collections import config_flags

from varl_jax import serving
from varl_jax.command_line import last_line, parse, refuse
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.llm.journal import JournalError
from varl_jax.prompts.loader import PromptError
from varl_jax.run_folder import RunError
from varl_jax.service.store import StoreError

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file, such as configs/story.py or ...:VARIANT."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the service's state; runs/NAME without it."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at.")
_PORT = flags.DEFINE_integer("port", 8700, "Port to listen at; 0 for a free.")
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> int:
  """Serves until a signal; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  logging.set_verbosity(logging.WARNING)
  try:
    config = from_config_dict(_CONFIG.value)
    workdir = pathlib.Path(_WORKDIR.value or f"runs/{config.name}")
    return serving.serve(config, workdir, host=_HOST.value, port=_PORT.value)
  except (ConfigError, JournalError, PromptError) as error:
    return refuse(str(error))
  except (RunError, StoreError) as error:
    return refuse(str(error))
  except OSError as error:  # the config file could not be loaded
    return refuse(last_line(error))


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
