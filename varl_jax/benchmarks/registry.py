"""Benchmarks by name; a user's own by its module."""

import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from varl_jax.benchmarks import (
  healthbench,
  healthbench_professional,
  medxpertqa,
  prbench,
  profbench,
  tasks,
)
from varl_jax.benchmarks.protocol import Benchmark, BenchmarkError

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
  benchmark.name: benchmark
  for benchmark in (
    healthbench.FULL,
    healthbench.HARD,
    healthbench.CONSENSUS,
    healthbench_professional.BENCHMARK,
    *prbench.ALL,
    profbench.BENCHMARK,
    *medxpertqa.ALL,
    tasks.make(),
  )
}
_ATTRIBUTE: Final = "BENCHMARK"


def find(name: str | Benchmark) -> Benchmark:
  """A benchmark by its name.

  Args:
    name: one of `BENCHMARKS` in any spelling ("HealthBench Professional"), the
      path of a Python file, or an importable module; after a colon the name of
      the benchmark in it, `BENCHMARK` without.

  Raises:
    BenchmarkError: there is none of that name.
  """
  if isinstance(name, Benchmark):
    return name
  known = BENCHMARKS.get(re.sub(r"[\s-]+", "_", name.strip()).lower())
  if known is not None:
    return known
  place, _, attribute = name.partition(":")
  if place.endswith(".py"):
    module = _from_file(pathlib.Path(place))
  elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", place) or attribute:
    module = _from_name(place)
  else:
    raise BenchmarkError(
      f"There is no benchmark {name!r}; choose {', '.join(BENCHMARKS)}, or the"
      " path of a Python file with your own."
    )
  found = getattr(module, attribute or _ATTRIBUTE, None)
  if not isinstance(found, Benchmark):
    raise BenchmarkError(
      f"{place} defines no benchmark {attribute or _ATTRIBUTE}; see"
      " docs/benchmarks.md."
    )
  return found


def _from_file(path: pathlib.Path) -> ModuleType:
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None or not path.is_file():
    raise BenchmarkError(f"There is no Python file {path}.")
  module = importlib.util.module_from_spec(spec)
  # Dataclasses of the module look it up while it is being run.
  sys.modules.setdefault(path.stem, module)
  spec.loader.exec_module(module)
  return module


def _from_name(name: str) -> ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise BenchmarkError(
      f"The module {name} cannot be imported ({error}); it must be on the"
      " Python path."
    ) from error
