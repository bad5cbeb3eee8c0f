"""Benchmarks as ArrayRecord data sets: converted once, read by many hosts.

    folder = convert("healthbench", "oss_eval.jsonl", "records")
    reader = RecordReader(folder, shard=process_index, shards=process_count)
    for task in reader: ...
    reader.state()                       # bytes, for a checkpoint

A tensorflow-datasets builder writes the rows as they are, with the hash of
their file, so nothing of them can be lost or reworded; they become tasks when
they are read. grain reads them by index, shuffles by a seed and deals them out
to shards, and its state says where an iteration stands. Neither needs
tensorflow. Evaluations read plain JSONL as well.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import grain
import numpy as np
import tensorflow_datasets as tfds

from varl_jax import benchmarks
from varl_jax.benchmarks import BenchmarkError, BenchmarkTask, data

SPLIT: Final = "test"
VERSION: Final = "1.0.0"


class BenchmarkRows(tfds.core.GeneratorBasedBuilder):
  """The rows of a benchmark's files, in their order."""

  VERSION = tfds.core.Version(VERSION)
  # Its name would otherwise be taken from the class.
  name = "benchmark_rows"
  # Where checksums of downloads would stand; there are no downloads.
  code_path = None

  def __init__(
    self,
    *,
    benchmark: benchmarks.Benchmark,
    files: list[data.DataFile],
    **options: Any,
  ):
    """Prepares the builder.

    Args:
      benchmark: whose rows they are.
      files: where they stand.
      **options: of the base class.
    """
    self._benchmark = benchmark
    self._files = files
    super().__init__(**options)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=self._benchmark.title,
      homepage=self._benchmark.page or None,
      features=tfds.features.FeaturesDict(
        {
          "row": tfds.features.Text(),
          "source": tfds.features.Text(),
          "place": tfds.features.Text(),
          "index": np.int64,
        }
      ),
      disable_shuffling=True,
      metadata=tfds.core.MetadataDict(
        benchmark=self._benchmark.name,
        sha256={file.path.name: file.sha256 for file in self._files},
      ),
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    return {SPLIT: self._generate_examples()}

  def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
    index = 0
    for file in self._files:
      for place, row in data.read_rows(file.path):
        yield (
          index,
          {
            "row": json.dumps(row),
            "source": data.source_of(file.path),
            "place": place,
            "index": index,
          },
        )
        index += 1


def convert(
  name: str | benchmarks.Benchmark,
  path: str | os.PathLike[str],
  folder: str | os.PathLike[str],
) -> pathlib.Path:
  """Writes a benchmark's rows as ArrayRecord.

  Args:
    name: as for `benchmarks.load`.
    path: likewise.
    folder: where data sets are kept.

  Returns:
    The data set's own folder, which `RecordReader` and `--data` take.

  Raises:
    BenchmarkError: the rows are no tasks of the benchmark, or the folder holds
      the data set of other rows.
  """
  benchmark = benchmarks.find(name)
  files = [
    data.check_file(benchmark, found)
    for found in data.find_files(benchmark, path)
  ]
  data.read_tasks(benchmark, [file.path for file in files])
  tfds.disable_progress_bar()
  with _no_words():
    builder = BenchmarkRows(
      benchmark=benchmark,
      files=files,
      data_dir=pathlib.Path(folder) / benchmark.name,
      file_format="array_record",
    )
    builder.download_and_prepare()
  made = pathlib.Path(builder.data_path)
  wanted = {file.path.name: file.sha256 for file in files}
  if read_metadata(made)["sha256"] != wanted:
    raise BenchmarkError(
      f"{made} holds the records of other files; remove it to convert these."
    )
  return made


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """`benchmark` and `sha256` (by file) of a data set.

  Raises:
    BenchmarkError: it is none that `convert` wrote.
  """
  found = _open(folder).info.metadata
  if not isinstance(found, dict) or "sha256" not in found:
    raise BenchmarkError(f"{folder} is no benchmark's data set.")
  return dict(found)


class RecordReader(Iterator[BenchmarkTask]):
  """Tasks of a data set, or of a host's share of it.

  Each task is in exactly one shard, whatever the seed; a reader with the same
  arguments and a saved state goes on where the other one stood.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    *,
    name: str | benchmarks.Benchmark = "",
    shard: int = 0,
    shards: int = 1,
    seed: int | None = None,
  ):
    """Opens the data set.

    Args:
      folder: of `convert`.
      name: the benchmark, for one of a user's own; else the data set's.
      shard: this host's, 0 to `shards` - 1.
      shards: hosts that share the tasks.
      seed: of the order; None for the rows' own.

    Raises:
      BenchmarkError: the data set cannot be read.
      ValueError: there is no such shard.
    """
    if not 0 <= shard < shards:
      raise ValueError(f"shard is 0 to {shards - 1}, got {shard}.")
    told = read_metadata(folder)
    self._benchmark = benchmarks.find(name or told["benchmark"])
    source = _open(folder).as_data_source(split=SPLIT)  # pyright: ignore
    rows = grain.MapDataset.source(source)
    if seed is not None:
      rows = rows.shuffle(seed=seed)
    rows = rows[shard::shards]
    self._count = len(rows)
    self._rows = iter(rows.to_iter_dataset())

  def __len__(self) -> int:
    """Tasks of the shard."""
    return self._count

  def __next__(self) -> BenchmarkTask:
    record = next(self._rows)
    tasks: dict[str, BenchmarkTask] = {}
    data.add_task(
      self._benchmark,
      tasks,
      json.loads(record["row"]),
      source=_text(record["source"]),
      place=_text(record["place"]),
    )
    [task] = tasks.values()
    return task

  def state(self) -> bytes:
    """Where the iteration stands."""
    return json.dumps(self._rows.get_state()).encode()

  def restore(self, state: bytes) -> None:
    """Goes to where `state` was taken."""
    self._rows.set_state(json.loads(state))


def load(
  folder: str | os.PathLike[str], *, name: str | benchmarks.Benchmark = ""
) -> list[BenchmarkTask]:
  """All tasks of a data set, in the order of their rows.

  Raises:
    BenchmarkError: it cannot be read, or is another benchmark's.
  """
  told = read_metadata(folder)
  if name and benchmarks.find(name).name != told["benchmark"]:
    raise BenchmarkError(
      f"{folder} holds {told['benchmark']}, not {benchmarks.find(name).name}."
    )
  return list(RecordReader(folder, name=name))


def _open(folder: str | os.PathLike[str]) -> tfds.core.DatasetBuilder:
  try:
    with _no_words():
      return tfds.builder_from_directory(os.fspath(folder))
  except (
    OSError,
    ValueError,
    KeyError,
    tfds.core.DatasetNotFoundError,
  ) as error:
    raise BenchmarkError(
      f"{folder} holds no data set that can be read ({error})."
    ) from error


def _text(value: bytes | str) -> str:
  return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def _no_words() -> Iterator[None]:
  """Keeps the library's own progress off the terminal."""
  with (
    open(os.devnull, "w", encoding="utf-8") as nowhere,
    contextlib.redirect_stdout(nowhere),
  ):
    yield
