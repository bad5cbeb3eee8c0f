"""What is to be evaluated, and the data it is evaluated on."""

import dataclasses
import hashlib
import pathlib
from typing import Any, Final

from varl_jax import benchmarks
from varl_jax.benchmarks import data
from varl_jax.benchmarks.protocol import Benchmark, BenchmarkTask
from varl_jax.config import Config

SOLVER: Final = "solver"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What is to be evaluated.

  Attributes:
    benchmark: its name, or a module with a user's own.
    data: file or folder of its rows.
    config: judge, endpoints, local model, seed.
    workdir: the results folder.
    model: a local checkpoint, or the name of a model behind an endpoint.
    answers: file or results folder with saved answers, in a model's place.
    method: of `answering.METHODS`.
    samples: answers a task.
    temperature: 0 for greedy decoding.
    system: `solver` for the benchmark's system prompt, `none`, or a file.
    images: whether the model behind the endpoint takes images.
    limit: the first tasks only, 0 for all.
    strict: whether the judge gets the strict note.
    official_judge: take the benchmark's own judge, effort and votes.
    errata: a file of corrections to the data, "" for none.
    data_sha256: the hash the data must have, "" for any.
  """

  benchmark: str
  data: str
  config: Config
  workdir: pathlib.Path
  model: str = ""
  answers: str = ""
  method: str = "none"
  samples: int = 1
  temperature: float = 1.0
  system: str = SOLVER
  images: bool = False
  limit: int = 0
  strict: bool = False
  official_judge: bool = False
  errata: str = ""
  data_sha256: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """A benchmark's tasks and what is known of their files.

  Attributes:
    benchmark: whose they are.
    tasks: those to evaluate.
    files: where they stand.
    all_ids: of all tasks in the files.
    errata: hash of the corrections, "" for none.
  """

  benchmark: Benchmark
  tasks: list[BenchmarkTask]
  files: list[data.DataFile]
  all_ids: frozenset[str]
  errata: str

  def describe(self) -> dict[str, Any]:
    """For settings: hashes, and whether they are the published ones."""
    return {
      "sha256": {file.path.name: file.sha256 for file in self.files},
      "published": all(file.pinned for file in self.files)
      if all(file.pinned is not None for file in self.files)
      else None,
      "tasks": len(self.tasks),
      "errata_sha256": self.errata,
    }


def load_data(request: Request) -> Data:
  """Reads the data.

  Raises:
    BenchmarkError: they cannot be used.
  """
  benchmark = benchmarks.find(request.benchmark)
  if data.is_record_folder(request.data):
    files, tasks = _records(benchmark, request)
  else:
    paths = data.find_files(benchmark, request.data)
    files = [
      data.check_file(benchmark, path, sha256=request.data_sha256)
      for path in paths
    ]
    tasks = data.read_tasks(benchmark, paths)
  errata = ""
  if request.errata:
    tasks = data.apply_errata(tasks, request.errata)
    errata = digest(pathlib.Path(request.errata).read_bytes())
  return Data(
    benchmark=benchmark,
    tasks=tasks[: request.limit or None],
    files=files,
    all_ids=frozenset(task.task_id for task in tasks),
    errata=errata,
  )


def _records(
  benchmark: Benchmark, request: Request
) -> tuple[list[data.DataFile], list[BenchmarkTask]]:
  from varl_jax import benchmark_records  # loads grain

  told = benchmark_records.read_metadata(request.data)
  folder = pathlib.Path(request.data)
  files = [
    data.known_file(
      benchmark, folder / name, sha256, wanted=request.data_sha256
    )
    for name, sha256 in told["sha256"].items()
  ]
  return files, benchmark_records.load(folder, name=benchmark)


def notices(loaded: Data) -> list[str]:
  """What a reader of the scores must know of the data."""
  said = []
  benchmark, files = loaded.benchmark, loaded.files
  for file in files:
    if file.pinned is False:
      said.append(
        f"{file.path.name} is not the published file of {benchmark.title}"
        f" (its sha256 is {file.sha256}); scores are not comparable."
      )
  whole = len(loaded.all_ids)
  if benchmark.size and whole != benchmark.size:
    said.append(
      f"The data hold {whole} tasks, {benchmark.title} has {benchmark.size}."
    )
  lacking = sum(bool(task.attachments) for task in loaded.tasks)
  if lacking:
    said.append(
      f"{lacking} tasks refer to attached files, which are not given to the"
      " model."
    )
  hopeless = sum(
    not any(item.points > 0 for item in task.criteria) for task in loaded.tasks
  )
  if hopeless:
    said.append(
      f"{hopeless} tasks have no criterion with positive points and cannot be"
      " scored."
    )
  return said


def digest(content: bytes | str) -> str:
  """The sha256 of a text or file."""
  raw = content.encode() if isinstance(content, str) else content
  return hashlib.sha256(raw).hexdigest()
