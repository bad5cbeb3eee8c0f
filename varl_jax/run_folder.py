"""The folder of a run: whose it is, and that one process works in it."""

import fcntl
import json
import pathlib
import uuid
from collections.abc import Mapping
from typing import IO, Any, Final

from varl_jax.config import MAY_CHANGE, SHAPES_REPLIES, Config
from varl_jax.files import replace_text

RUN_ID: Final = "run_id"
LOCK: Final = "trainer.lock"
# Of changed settings, in a message.
_MOST_NAMED: Final = 4


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
    found = json.loads(path.read_text(encoding="utf-8"))
    theirs = found["fingerprint"]
  except (ValueError, KeyError, TypeError) as error:
    raise RunError(
      f"{path} cannot be read ({error}); choose another --workdir."
    ) from error
  if theirs != config.fingerprint():
    names = _changed(found, config)
    raise RunError(
      f"{workdir} holds a run of another config{names and f' ({names})'};"
      " choose another --workdir or remove the folder. (What may change:"
      f" {', '.join(MAY_CHANGE)}, and of endpoints all but"
      f" {', '.join(SHAPES_REPLIES)}.)"
    )


def claim(config: Config, workdir: pathlib.Path) -> None:
  """Makes the folder this config's."""
  tree = {"fingerprint": config.fingerprint(), **config.to_dict()}
  replace_text(workdir / "config.json", json.dumps(tree, indent=2) + "\n")


def run_id(workdir: pathlib.Path) -> str:
  """The run's name for services elsewhere; made when there is none yet."""
  path = workdir / RUN_ID
  if not path.exists() or not path.read_text(encoding="utf-8").strip():
    replace_text(path, uuid.uuid4().hex + "\n")
  return path.read_text(encoding="utf-8").strip()


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


def disk_error(error: OSError, workdir: pathlib.Path) -> RunError:
  """What the system refused, with the mend."""
  return RunError(
    f"{error.strerror or error}: {error.filename or workdir}. What was saved is"
    " kept; run the same command once it is mended."
  )


def _changed(found: Mapping[str, Any], config: Config) -> str:
  """Names of settings that differ from those of `config.json`; "" for none."""
  known = _flat(found)
  # What counts is whether there is one, see `Config.shaping`.
  known["retrieval.index"] = bool(known.get("retrieval.index"))
  names = [
    name
    for name, value in _flat(config.shaping()).items()
    if name not in known or known[name] != value
  ]
  more = " and more" if len(names) > _MOST_NAMED else ""
  return ", ".join(names[:_MOST_NAMED]) + more


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """A tree of settings by dotted name."""
  flat: dict[str, Any] = {}
  for key, value in tree.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f"{prefix}{key}.")
    else:
      flat[f"{prefix}{key}"] = value
  return flat
