"""Rows of local files: found, hashed, read, mended by an errata file.

Nothing is downloaded: the benchmarks' licences and canaries ask that everybody
gets the data from its own page.
"""

import dataclasses
import fnmatch
import hashlib
import importlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkError,
  BenchmarkTask,
  points_of,
)

_ENDINGS: Final = (".jsonl", ".json", ".parquet")
_RECORDS: Final = "dataset_info.json"
_LFS: Final = b"version https://git-lfs.github.com/spec/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
  """A file with the hash of its bytes; `pinned` says what is known of it.

  Attributes:
    path: where it is.
    sha256: of its bytes.
    pinned: True for the published file, False where another hash is known,
      None where none is.
  """

  path: pathlib.Path
  sha256: str
  pinned: bool | None


def find_files(
  benchmark: Benchmark, path: str | os.PathLike[str]
) -> list[pathlib.Path]:
  """The files of a benchmark: the one named, or those in a folder.

  Raises:
    BenchmarkError: there is nothing, or it is not clear which files are meant.
  """
  place = pathlib.Path(path).expanduser()
  if place.is_file():
    return [place]
  if not place.is_dir():
    raise BenchmarkError(
      f"There are no data of {benchmark.title} at {place}; {_where(benchmark)}"
    )
  if is_record_folder(place):
    raise BenchmarkError(
      f"{place} holds records, not rows; read them by"
      " varl_jax.benchmark_records.load."
    )
  inside = sorted(
    p for p in place.rglob("*") if p.is_file() and p.suffix in _ENDINGS
  )
  chosen = []
  for pattern in benchmark.files:
    found = [p for p in inside if _matches(p.relative_to(place), pattern)]
    if not found and len(benchmark.files) == 1 and len(inside) == 1:
      found = inside
    if len(found) != 1:
      names = ", ".join(str(p.relative_to(place)) for p in found or inside)
      raise BenchmarkError(
        f"{place} holds {len(found)} files {pattern!r} of {benchmark.title}"
        f" (there: {names or 'none'}); name the file itself, or"
        f" {_where(benchmark)}"
      )
    chosen += found
  return chosen


def is_record_folder(path: str | os.PathLike[str]) -> bool:
  """Whether a path is a data set that `benchmark_records.convert` wrote."""
  return (pathlib.Path(path).expanduser() / _RECORDS).is_file()


def _matches(path: pathlib.Path, pattern: str) -> bool:
  """Whether the last parts of a path, without its ending, are of a pattern."""
  parts = [part.lower() for part in path.with_suffix("").parts]
  for choice in pattern.lower().split("|"):
    forms = choice.split("/")
    if len(forms) <= len(parts) and all(
      map(fnmatch.fnmatchcase, parts[-len(forms) :], forms)
    ):
      return True
  return False


def _where(benchmark: Benchmark) -> str:
  if not benchmark.page:
    return "give the path of its file."
  return (
    f"get them from {benchmark.page} and give the path of the file or folder."
  )


def check_file(
  benchmark: Benchmark, path: pathlib.Path, *, sha256: str = ""
) -> DataFile:
  """Hashes a file.

  Args:
    benchmark: whose known hashes are compared.
    path: the file.
    sha256: the hash it must have, "" for any.

  Raises:
    BenchmarkError: it cannot be read, is only a pointer of Git LFS, or has
      another hash than `sha256`.
  """
  try:
    with open(path, "rb") as file:
      pointer = file.read(len(_LFS)) == _LFS
      file.seek(0)
      found = hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:
    raise BenchmarkError(
      f"{path} cannot be read ({error.strerror or error})."
    ) from error
  if pointer:
    raise BenchmarkError(
      f"{path} is a pointer of Git LFS, not the data; fetch the file itself"
      " (git lfs pull)."
    )
  return known_file(benchmark, path, found, wanted=sha256)


def known_file(
  benchmark: Benchmark, path: pathlib.Path, sha256: str, *, wanted: str = ""
) -> DataFile:
  """A file by its hash, compared with what is wanted and what is known.

  Raises:
    BenchmarkError: it is not the hash `wanted`.
  """
  if wanted and sha256 != wanted.lower():
    raise BenchmarkError(
      f"{path} has the sha256 {sha256}, not {wanted}; get that version of the"
      " data or leave the hash out."
    )
  known = [
    digest
    for ending, digest in benchmark.sha256.items()
    if path.name.endswith(ending)
  ]
  pinned = sha256 in known if known else None
  return DataFile(path=path, sha256=sha256, pinned=pinned)


def read_rows(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Rows of a JSONL, JSON or Parquet file with the place of each.

  Raises:
    BenchmarkError: the file cannot be read.
  """
  try:
    if path.suffix == ".parquet":
      rows: Any = _parquet(path)
    elif path.suffix == ".json":
      rows = _json(path)
    else:
      yield from _lines(path)
      return
  except (OSError, ValueError) as error:
    raise BenchmarkError(f"{path} cannot be read ({error}).") from error
  for number, row in enumerate(rows, 1):
    yield f"{path}, row {number}", row


def _lines(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  with open(path, encoding="utf-8") as file:
    for number, line in enumerate(file, 1):
      if line.strip():
        try:
          yield f"{path}:{number}", json.loads(line)
        except ValueError as error:
          raise BenchmarkError(
            f"{path}:{number} is no JSON: {error}"
          ) from error


def _json(path: pathlib.Path) -> list[Any]:
  found = json.loads(path.read_text(encoding="utf-8"))
  if not isinstance(found, list):
    raise ValueError("it holds no list of rows")
  return found


def _parquet(path: pathlib.Path) -> list[Any]:
  try:
    parquet = importlib.import_module("pyarrow.parquet")
  except ImportError as error:
    raise BenchmarkError(
      f"Reading {path} needs the package pyarrow; install it, or convert the"
      " file to JSONL."
    ) from error
  return parquet.read_table(path).to_pylist()


def read_tasks(
  benchmark: Benchmark, files: Sequence[pathlib.Path]
) -> list[BenchmarkTask]:
  """Every row of the files as a task.

  Raises:
    BenchmarkError: a file or a row cannot be used, an id occurs twice, or there
      are no rows; names the place.
  """
  tasks: dict[str, BenchmarkTask] = {}
  for path in files:
    try:
      for place, row in read_rows(path):
        add_task(benchmark, tasks, row, source=source_of(path), place=place)
    except (OSError, UnicodeDecodeError) as error:
      raise BenchmarkError(f"{path} cannot be read ({error}).") from error
  if not tasks:
    names = ", ".join(map(str, files))
    raise BenchmarkError(f"{names} holds no tasks of {benchmark.title}.")
  return list(tasks.values())


def source_of(path: pathlib.Path) -> str:
  """What `Benchmark.to_task` is told of a row's file."""
  return f"{path.parent.name}/{path.stem}"


def add_task(
  benchmark: Benchmark,
  tasks: dict[str, BenchmarkTask],
  row: Any,
  *,
  source: str,
  place: str,
) -> None:
  """Reads one row into `tasks`.

  Raises:
    BenchmarkError: it cannot be used; names `place`.
  """
  try:
    if not isinstance(row, Mapping):
      raise ValueError(f"a row is an object, got {row!r:.40}.")
    task = benchmark.to_task(row, source)
    if task.task_id in tasks:
      raise ValueError(f"the id {task.task_id!r} occurs twice.")
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    said = f"it has no {error}." if isinstance(error, KeyError) else error
    raise BenchmarkError(
      f"{place} is no task of {benchmark.title}: {said}"
    ) from error
  tasks[task.task_id] = task


def apply_errata(
  tasks: Sequence[BenchmarkTask], path: str | os.PathLike[str]
) -> list[BenchmarkTask]:
  """Overlays corrections on tasks; the data themselves stay as they are.

  Args:
    tasks: as loaded.
    path: JSON lines `{"task_id": ..., "criterion": INDEX, "points": ...,
      "text": ...}` with either or both of the last two, or
      `{"task_id": ..., "leave_out": true}`.

  Raises:
    BenchmarkError: a line cannot be used; names it.
  """
  changed = {task.task_id: task for task in tasks}
  for place, row in read_rows(pathlib.Path(path)):
    try:
      name = row["task_id"]
      task = changed[name]
      if row.get("leave_out") is True:
        del changed[name]
        continue
      changed[name] = _corrected(task, row)
    except (KeyError, TypeError, ValueError, IndexError) as error:
      raise BenchmarkError(
        f"{place} corrects nothing: {error!r}; see `--errata`."
      ) from error
  return list(changed.values())


def _corrected(task: BenchmarkTask, row: Mapping[str, Any]) -> BenchmarkTask:
  unknown = set(row) - {"task_id", "criterion", "points", "text"}
  index = row["criterion"]
  if unknown or type(index) is not int or index < 0 or len(row) < 3:
    raise ValueError(f"unknown {sorted(unknown)}" if unknown else "no change")
  items = list(task.criteria)
  item = items[index]
  points = points_of(row["points"]) if "points" in row else item.points
  items[index] = dataclasses.replace(
    item, text=row.get("text", item.text), points=points
  )
  return dataclasses.replace(task, criteria=tuple(items))
