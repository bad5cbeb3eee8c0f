"""The folder of a run: whose it is, and that one process works in it."""

import fcntl
import json
import os
import pathlib
import uuid
from typing import IO, Final

from varl_jax.config import Config

RUN_ID: Final = "run_id"
LOCK: Final = "trainer.lock"


class RunError(Exception):
  """A run that cannot start or go on; one sentence with the mend."""


def check_claim(config: Config, workdir: pathlib.Path) -> None:
  """Checks that the run in the folder, if there is one, is this one.

  Raises:
    RunError: the folder belongs to another config, or is no folder.
  """
  if workdir.exists() and not workdir.is_dir():
    raise RunError(f"{workdir} is a file; choose another --workdir.")
  path = workdir / "config.json"
  if not path.exists():
    return
  try:
    found = json.loads(path.read_text())["fingerprint"]
  except (ValueError, KeyError, TypeError) as error:
    raise RunError(
      f"{path} cannot be read ({error}); choose another --workdir."
    ) from error
  if found != config.fingerprint():
    raise RunError(
      f"{workdir} holds a run of another config; choose another --workdir"
      " or remove the folder. (Only train.steps may change.)"
    )


def claim(config: Config, workdir: pathlib.Path) -> None:
  """Makes the folder this config's."""
  tree = {"fingerprint": config.fingerprint(), **config.to_dict()}
  replace_text(workdir / "config.json", json.dumps(tree, indent=2) + "\n")


def run_id(workdir: pathlib.Path) -> str:
  """The run's name for services elsewhere; made when there is none yet."""
  path = workdir / RUN_ID
  if not path.exists():
    replace_text(path, uuid.uuid4().hex + "\n")
  return path.read_text().strip()


def lock(workdir: pathlib.Path) -> IO[str]:
  """Keeps a second trainer out of the folder until the handle is closed.

  Raises:
    RunError: there is one in it.
  """
  handle = open(workdir / LOCK, "w", encoding="utf-8")
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    handle.close()
    raise RunError(
      f"{workdir} is in use by another process; one trainer works in a folder."
    ) from error
  return handle


def replace_text(path: pathlib.Path, text: str) -> None:
  """Writes a small file so that it is never seen half-written."""
  draft = path.with_name(f"{path.name}.draft")
  draft.write_text(text, encoding="utf-8")
  os.replace(draft, path)
