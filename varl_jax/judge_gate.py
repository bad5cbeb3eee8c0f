"""Measures the judge before a run relies on it, and may refuse the run.

The numbers are left in the folder as `calibration.json`, where the report
finds them; a run that goes on is not measured again.
"""

import asyncio
import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any, Final

from varl_jax.config import Config, ConfigError
from varl_jax.files import replace_text
from varl_jax.llm.chat import ChatError
from varl_jax.roles.bundle import Roles
from varl_jax.roles.calibration import Calibration, calibrate

CALIBRATION: Final = "calibration.json"


def pass_gate(
  config: Config,
  roles: Roles,
  folder: pathlib.Path,
  *,
  say: Callable[[str], None],
) -> None:
  """Does what `config.gate` asks for.

  Args:
    config: the run's settings.
    roles: whose judge and referee are measured.
    folder: of the run.
    say: told what falls short where the run may go on.

  Raises:
    ConfigError: the judge falls short and `gate.mode` is `refuse`, or it cannot
      be asked.
  """
  gate = config.gate
  if gate.mode == "off":
    return
  found = read_calibration(folder)
  if found is None or found.judge != roles.judge.name:
    found = _measure(config, roles)
    tree = dataclasses.asdict(found) | {"levels": dataclasses.asdict(gate)}
    replace_text(folder / CALIBRATION, json.dumps(tree, indent=2) + "\n")
  short = found.shortfalls(
    min_agreement=gate.min_agreement,
    max_flip_rate=gate.max_flip_rate,
    max_position_bias=gate.max_position_bias,
  )
  if not short:
    return
  told = f"{found.judge} falls short as a judge: {'; '.join(short)}."
  if gate.mode == "refuse":
    raise ConfigError(
      f"{told} Choose a stronger one by endpoints.judge, or set gate.mode to"
      " warn to train on its verdicts all the same."
    )
  say(told)


def _measure(config: Config, roles: Roles) -> Calibration:
  try:
    return asyncio.run(
      calibrate(
        roles.judge,
        roles.referee,
        seed=config.seed,
        concurrency=config.judge.concurrency,
      )
    )
  except ChatError as error:
    raise ConfigError(f"The judge cannot be measured: {error}") from error


def read_calibration(folder: pathlib.Path) -> Calibration | None:
  """What was measured for the run of a folder; None if nothing was."""
  try:
    tree: dict[str, Any] = json.loads(
      (folder / CALIBRATION).read_text(encoding="utf-8")
    )
    tree.pop("levels", None)
    return Calibration(**tree)
  except FileNotFoundError:
    return None
  except (ValueError, TypeError, AttributeError) as error:
    raise ConfigError(
      f"{folder / CALIBRATION} is damaged ({error}); delete it, and the judge"
      " is measured anew."
    ) from error
