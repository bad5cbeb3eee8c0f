"""Checkpoints of a run: arrays and their metadata as one composite of Orbax.

A checkpoint is written beside its final name and renamed when complete, so a
crash leaves the older one in force. The metadata (event number of the store,
seed, config fingerprint) lies inside the checkpoint: it can never belong to
other weights. A save in the background has copied the state when it returns;
its failure is raised by whoever waits for it, and the next save does.
"""

import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp

from varl_jax.service.failpoints import failpoint

# Left behind by a save or a removal that was cut short.
_UNFINISHED = re.compile(r"\d+\.(orbax-checkpoint-tmp.*|removed)")
# What Orbax and TensorStore raise for disk trouble, bad trees and bad files.
_FAILURES = (OSError, ValueError, KeyError, TypeError, RuntimeError)


class CheckpointError(RuntimeError):
  """A checkpoint that cannot be written or read; one sentence says why."""


class SaveError(CheckpointError):
  """A checkpoint could not be written; older ones are untouched."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
  """The checkpoints in a folder, one subfolder a step.

  Attributes:
    folder: created by the first save.
    keep: newest checkpoints that stay after a save.
    interval: steps between scheduled checkpoints, see `due`.
    agree: gives every process of a run what process 0 finds; all of them ask
      the same in the same order.
    background: whether a save goes on while the caller does; see `wait`.
  """

  folder: pathlib.Path
  keep: int = 2
  interval: int = 5
  agree: Callable[[Callable[[], list[int]]], list[int]] = lambda find: find()
  background: bool = False
  _under_way: list[tuple[int, ocp.AsyncCheckpointer]] = dataclasses.field(
    default_factory=list, init=False, repr=False, compare=False
  )

  def due(self, step: int) -> bool:
    """Whether the schedule asks for a checkpoint after `step` steps."""
    return step > 0 and step % self.interval == 0

  def steps(self) -> list[int]:
    """Steps with a complete checkpoint, ascending."""
    return self.agree(self._found)

  def _found(self) -> list[int]:
    folder = pathlib.Path(self.folder)
    if not folder.is_dir():
      return []
    return sorted(
      int(path.name)
      for path in folder.iterdir()
      if path.name.isdecimal() and _complete(path)
    )

  def damaged(self) -> list[int]:
    """Steps whose checkpoint was completed once and cannot be read now.

    A checkpoint gets its plain number when it is complete, so a numbered folder
    that is not complete was damaged later.
    """
    folder = pathlib.Path(self.folder)
    if not folder.is_dir():
      return []
    numbered = (int(p.name) for p in folder.iterdir() if p.name.isdecimal())
    return sorted(set(numbered) - set(self._found()))

  def latest(self) -> int | None:
    """The newest step with a complete checkpoint, None without any."""
    return max(self.steps(), default=None)

  def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
    """Writes a checkpoint, then removes those beyond `keep`.

    In the background, both come to their end in `wait`.

    Args:
      step: must not have a complete checkpoint yet.
      state: pytree of arrays.
      meta: JSON values; `step` is added.

    Raises:
      SaveError: it could not be written; older ones are untouched.
    """
    self.wait()
    folder = pathlib.Path(self.folder).absolute()
    if step in self.steps():
      raise CheckpointError(
        f"Step {step} already has a checkpoint in {self.folder}."
      )
    try:
      header = {"meta": {**meta, "step": step}, "leaves": _leaves(state)}
      json.dumps(header, allow_nan=False)
      folder.mkdir(parents=True, exist_ok=True)
      self._sweep(step)
      _check_space(folder, state)
      parts = ocp.args.Composite(
        state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(header)
      )
      if self.background:
        writer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        self._under_way.append((step, writer))
        writer.save(folder / str(step), args=parts)
        return
      with _checkpointer() as checkpointer:
        checkpointer.save(folder / str(step), args=parts)
    except _FAILURES as error:
      self._under_way.clear()
      raise self._not_saved(step, error) from error
    self._complete(step)

  def wait(self) -> None:
    """Waits for the save under way, if there is one.

    Raises:
      SaveError: it could not be written; older ones are untouched.
    """
    while self._under_way:
      step, writer = self._under_way.pop()
      try:
        with writer:
          writer.wait_until_finished()
      except _FAILURES as error:
        raise self._not_saved(step, error) from error
      self._complete(step)

  def _not_saved(self, step: int, error: BaseException) -> SaveError:
    return SaveError(
      f"Could not save the checkpoint of step {step} in {self.folder}:"
      f" {_reason(error)}."
    )

  def _complete(self, step: int) -> None:
    """Checks what was written and makes room."""
    failpoint("checkpoint/written")
    if step not in self.steps():
      raise SaveError(
        f"The checkpoint of step {step} in {self.folder} is incomplete after"
        " saving."
      )
    if jax.process_index() == 0:
      for old in self._found()[: -self.keep]:
        _remove(pathlib.Path(self.folder) / str(old))

  def meta(self, step: int) -> dict[str, Any]:
    """The metadata alone, which needs no state to restore into.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    return self._header(step)["meta"]

  def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
    """Reads a checkpoint back, bit for bit.

    Args:
      step: one of `steps()`.
      like: the state's structure, shapes, types and placement: arrays or
        `jax.ShapeDtypeStruct`s.

    Raises:
      CheckpointError: no such checkpoint, or one of another structure, shape
        or type.
    """
    header = self._header(step)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    place = f"the checkpoint of step {step} in {self.folder}"
    problem = _difference(header["leaves"], _leaves(abstract))
    if problem:
      raise CheckpointError(f"Could not restore {place}: {problem}.")
    try:
      with _checkpointer() as checkpointer:
        found = checkpointer.restore(
          pathlib.Path(self.folder).absolute() / str(step),
          args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)),
        )
    except _FAILURES as error:
      raise CheckpointError(
        f"Could not restore {place}: {_reason(error)}. Remove its folder to go"
        " on from the one before."
      ) from error
    return found.state, header["meta"]

  def _header(self, step: int) -> dict[str, Any]:
    if step not in self.steps():
      have = ", ".join(map(str, self.steps())) or "none"
      raise CheckpointError(
        f"No complete checkpoint of step {step} in {self.folder}; steps"
        f" there: {have}."
      )
    return _read_header(pathlib.Path(self.folder) / str(step))

  def _sweep(self, step: int) -> None:
    """Removes what an earlier crash left, which is in the way or useless."""
    if jax.process_index() != 0:
      return
    for path in pathlib.Path(self.folder).iterdir():
      if path.name == str(step) or _UNFINISHED.fullmatch(path.name):
        shutil.rmtree(path)


def _check_space(folder: pathlib.Path, state: Any) -> None:
  """Refuses early: a disk that fills up half-way fails in many threads."""
  needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
  free = shutil.disk_usage(folder).free
  if free < needed:
    raise OSError(
      f"it may take {needed / 2**20:.1f} MiB and the disk has"
      f" {free / 2**20:.1f} MiB left"
    )


def _checkpointer() -> ocp.Checkpointer:
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler())


def _remove(path: pathlib.Path) -> None:
  """Renames before deleting: half a deleted checkpoint must not look whole."""
  doomed = path.with_name(f"{path.name}.removed")
  path.rename(doomed)
  shutil.rmtree(doomed)


def _complete(path: pathlib.Path) -> bool:
  """Whether Orbax finished the folder and its parts are all there."""
  try:
    return (
      ocp.utils.is_checkpoint_finalized(path)
      and (path / "_CHECKPOINT_METADATA").is_file()
      and (path / "state" / "_METADATA").is_file()
      and (path / "state" / "manifest.ocdbt").is_file()
      and bool(_read_header(path))
    )
  except (OSError, ValueError):
    return False


def _read_header(path: pathlib.Path) -> dict[str, Any]:
  header = json.loads((path / "meta" / "metadata").read_text())
  if not isinstance(header, dict) or not {"meta", "leaves"} <= header.keys():
    raise ValueError(f"Not the metadata of a checkpoint: {path}.")
  return header


def _leaves(tree: Any) -> dict[str, str]:
  """The path of each leaf with its type and shape, such as `float32[3, 4]`."""
  return {
    jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def _difference(saved: dict[str, str], wanted: dict[str, str]) -> str:
  """What keeps the saved leaves from filling the wanted ones, "" if nothing."""
  for name in wanted:
    if name not in saved:
      return f"it lacks {name}"
    if saved[name] != wanted[name]:
      return f"{name} is {saved[name]} there and {wanted[name]} in this run"
  for name in saved:
    if name not in wanted:
      return f"its {name} has no place in this run's state"
  return ""


def _reason(error: BaseException) -> str:
  """The first line of the message, without a final stop."""
  text = str(error).strip() or type(error).__name__
  return text.splitlines()[0][:160].rstrip(".")
