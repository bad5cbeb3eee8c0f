"""Trains a policy: parses flags, builds the parts, runs the trainer.

    python -m varl_jax.main --config=configs/story.py
    python -m varl_jax.main --config=configs/story.py:generation_only \
        --config.train.steps=10 --workdir=runs/mine

With `--plan` it only prints the calls, tokens and cost to expect (`--json` for
programs) and loads neither jax nor a model.

Exit codes: 0 done, 2 wrong input, 3 a model, the judge, the store or the disk
failed on the way (state saved), 130 interrupted (state saved). The same command
goes on where a run stopped.
"""

import pathlib

from absl import app, flags, logging
from ml_collections import config_flags

from varl_jax.command_line import last_line, parse, refuse
from varl_jax.config import Config, ConfigError, from_config_dict
from varl_jax.run_folder import RunError
from varl_jax.team import Alone, Team, crash

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file, such as configs/story.py or ...:VARIANT."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run; runs/NAME without it."
)
_PLAN = flags.DEFINE_boolean(
  "plan", False, "Print what the run will ask of its frozen models, and end."
)
_JSON = flags.DEFINE_boolean("json", False, "Print the plan as JSON.")
_COORDINATOR = flags.DEFINE_string(
  "coordinator", "", "HOST:PORT of process 0 of a run of several processes."
)
_PROCESSES = flags.DEFINE_integer("processes", 0, "How many processes it has.")
_PROCESS = flags.DEFINE_integer("process", -1, "Which of them this is, from 0.")
_DISTRIBUTED = flags.DEFINE_boolean(
  "distributed", False, "Let jax find the other processes by itself."
)
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> int:
  """Runs; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  logging.set_verbosity(logging.WARNING)
  team = Alone()
  try:
    config = from_config_dict(_CONFIG.value)
    if _PLAN.value:
      return show_plan(config, as_json=_JSON.value)
    from varl_jax.build import run  # loads jax, which a plan does without

    team = join_others(config)
    workdir = pathlib.Path(_WORKDIR.value or f"runs/{config.name}")
    return team.leave(run(config, workdir, team), together=True)
  except (ConfigError, RunError) as error:
    code = refuse(str(error))
  except OSError as error:  # the config file could not be loaded
    code = refuse(last_line(error))
  except KeyboardInterrupt:
    refuse(
      "Stopped at once; the same command goes on from the last checkpoint."
    )
    code = 130
  except Exception:
    crash(team)
    raise
  return team.leave(code, together=False)


def join_others(config: Config) -> Team:
  """The processes of the run that the flags and the environment speak of."""
  from varl_jax import processes

  launch = processes.find_launch(
    coordinator=_COORDINATOR.value,
    count=_PROCESSES.value,
    index=_PROCESS.value,
    distributed=_DISTRIBUTED.value,
  )
  return processes.join(launch, config)


def show_plan(config: Config, *, as_json: bool) -> int:
  """Prints the plan; returns the exit code."""
  from varl_jax import plan  # loaded only where it is asked for

  print(plan.show(plan.make_plan(config), as_json=as_json))
  return 0


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
