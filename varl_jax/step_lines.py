"""Files of a run with one JSON object a step, which survive crashes.

They are only ever appended to, one flushed and synced line a step, so a killed
run leaves at most one incomplete last line, which is dropped when the file is
opened again. NaN and infinity are refused: JSON has neither.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any


class MetricsError(Exception):
  """Records cannot be read or written; one clear sentence."""


class RecordError(MetricsError):
  """A record could not be written; those before it are untouched."""


class StepLines:
  """Appends the records of one run to a file.

  Args:
    path: the file; its folder is made when there is none. An incomplete last
      line is dropped.

  Raises:
    MetricsError: the file is damaged.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.path.parent.mkdir(parents=True, exist_ok=True)
    records, sound = read_lines(self.path)
    if self.path.exists() and sound < self.path.stat().st_size:
      os.truncate(self.path, sound)
    self._file = open(self.path, "ab", buffering=0)
    self._last = records[-1]["step"] if records else None

  @property
  def last_step(self) -> int | None:
    """The step of the last record, None when there is none."""
    return self._last

  def check_follows(self, step: int) -> None:
    """Checks that a step may be written next.

    Raises:
      ValueError: it does not follow the last one.
    """
    if self._last is not None and step <= self._last:
      raise ValueError(
        f"Step {step} does not follow step {self._last}, which is recorded;"
        " rewind first."
      )

  def write(self, record: Mapping[str, Any]) -> None:
    """Appends a record, which has a `step`; it is on disk on return.

    Raises:
      ValueError: its step does not follow the last one.
      RecordError: it could not be written; nothing of it is kept.
    """
    self.check_follows(record["step"])
    self._append(json.dumps(record, allow_nan=False).encode() + b"\n")
    self._last = record["step"]

  def rewind(self, step: int) -> None:
    """Drops the records above `step`, all or none of them.

    The step a run resumes from is that of its checkpoint; what came after is
    done, and recorded, again.
    """
    records, _ = read_lines(self.path)
    kept = [record for record in records if record["step"] <= step]
    self._file.close()
    draft = self.path.with_name(self.path.name + ".draft")
    with open(draft, "wb") as file:
      for record in kept:
        file.write(json.dumps(record).encode() + b"\n")
      file.flush()
      os.fsync(file.fileno())
    os.replace(draft, self.path)
    _sync_folder(self.path.parent)
    self._file = open(self.path, "ab", buffering=0)
    self._last = kept[-1]["step"] if kept else None

  def close(self) -> None:
    """Closes the file; harmless when repeated."""
    self._file.close()

  def _append(self, line: bytes) -> None:
    start = os.fstat(self._file.fileno()).st_size
    try:
      written = self._file.write(line)
      if written != len(line):
        raise OSError("the line was cut short")
      os.fsync(self._file.fileno())
    except OSError as error:
      os.ftruncate(self._file.fileno(), start)
      raise RecordError(
        f"{self.path} cannot be written ({error.strerror or error}); the"
        " run can be resumed once it can."
      ) from error


def read_lines(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
  """Records in order, and the number of bytes that hold them.

  An incomplete last line is left out; a file that is not there holds nothing.

  Raises:
    MetricsError: a line before the last is damaged.
  """
  data = path.read_bytes() if path.exists() else b""
  return parse_lines(data, name=str(path))


def parse_lines(
  data: bytes, *, name: str, first: int = 1
) -> tuple[list[dict[str, Any]], int]:
  """The same of bytes.

  Args:
    data: whole lines, but for the last.
    name: of the file, in messages.
    first: number of the first line.

  Raises:
    MetricsError: a line before the last is damaged.
  """
  records: list[dict[str, Any]] = []
  sound = 0
  for number, line in enumerate(data.splitlines(keepends=True), first):
    try:
      record = json.loads(line, parse_constant=_no_constant)
      complete = line.endswith(b"\n") and isinstance(record["step"], int)
    except (ValueError, KeyError, TypeError):
      complete = False
    if not complete:
      if sound + len(line) < len(data):
        raise MetricsError(
          f"Line {number} of {name} is damaged; restore the file, or remove it"
          " to go on without its history."
        )
      break
    records.append(record)
    sound += len(line)
  return records, sound


def _no_constant(name: str) -> float:
  raise ValueError(f"{name} is no JSON")


def _sync_folder(folder: pathlib.Path) -> None:
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
