"""Rows as ArrayRecord: nothing is lost, shards are disjoint, states resume."""

import dataclasses
import subprocess
import sys

import pytest

from tests.benchmarks import rows
from tests.evaluation_test import replies, request_for
from tests.faults.server import fault_server
from varl_jax import benchmark_records, benchmarks, evaluation_run
from varl_jax.benchmarks import BenchmarkError

COUNT = 23


@pytest.fixture(name="plain", scope="module")
def plain_file(tmp_path_factory):
  folder = tmp_path_factory.mktemp("plain")
  return rows.write_rows(folder / "rows.jsonl", rows.professional_set(COUNT))


@pytest.fixture(name="folder", scope="module")
def converted(plain, tmp_path_factory):
  return benchmark_records.convert(
    "healthbench_professional", plain, tmp_path_factory.mktemp("records")
  )


def ids(tasks):
  return [task.task_id for task in tasks]


def test_records_are_the_rows(plain, folder):
  wanted = benchmarks.load("healthbench_professional", plain)
  assert benchmark_records.load(folder) == wanted
  assert list(folder.glob("*.array_record*"))
  told = benchmark_records.read_metadata(folder)
  assert told["benchmark"] == "healthbench_professional"
  assert set(told["sha256"]) == {"rows.jsonl"}


def test_every_task_is_in_one_shard(folder):
  for seed in (None, 3):
    readers = [
      benchmark_records.RecordReader(folder, shard=i, shards=4, seed=seed)
      for i in range(4)
    ]
    assert sum(map(len, readers)) == COUNT
    shared = [name for reader in readers for name in ids(reader)]
    assert sorted(shared) == ids(benchmark_records.load(folder))


def test_a_seed_is_an_order(folder):
  def order(seed):
    return ids(benchmark_records.RecordReader(folder, seed=seed))

  assert order(1) == order(1)
  assert order(1) != order(2)
  assert order(1) != order(None)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_saved_state_goes_on(folder, taken):
  whole = benchmark_records.RecordReader(folder, shard=1, shards=2, seed=7)
  for _ in range(taken):
    next(whole)
  state = whole.state()
  rest = ids(whole)
  other = benchmark_records.RecordReader(folder, shard=1, shards=2, seed=7)
  next(other)
  other.restore(state)
  assert ids(other) == rest


def test_conversion_is_done_once(plain, folder, tmp_path):
  again = benchmark_records.convert(
    "healthbench_professional", plain, folder.parents[2]
  )
  assert again == folder
  other = rows.write_rows(tmp_path / "rows.jsonl", rows.professional_set(3))
  with pytest.raises(BenchmarkError, match="records of other files"):
    benchmark_records.convert(
      "healthbench_professional", other, folder.parents[2]
    )


def test_what_is_no_task_is_not_converted(tmp_path):
  path = rows.write_rows(tmp_path / "rows.jsonl", [{"id": "a"}])
  with pytest.raises(BenchmarkError, match=r"rows.jsonl:1 is no task"):
    benchmark_records.convert("profbench", path, tmp_path / "records")
  assert not (tmp_path / "records").exists()


def test_wrong_folders_and_shards(folder, tmp_path):
  with pytest.raises(BenchmarkError, match="holds records, not rows"):
    benchmarks.load("healthbench_professional", folder)
  with pytest.raises(BenchmarkError, match="no data set that can be read"):
    benchmark_records.load(tmp_path)
  with pytest.raises(
    BenchmarkError, match="holds healthbench_professional, no"
  ):
    benchmark_records.load(folder, name="profbench")
  with pytest.raises(ValueError, match="shard is 0 to 1"):
    benchmark_records.RecordReader(folder, shard=2, shards=2)


def test_tensorflow_is_not_needed(folder):
  code = (
    "import sys\n"
    "from varl_jax import benchmark_records\n"
    f"assert len(benchmark_records.load({str(folder)!r})) == {COUNT}\n"
    "bad = [n for n in ('tensorflow', 'torch') if n in sys.modules]\n"
    "sys.exit(', '.join(bad) or None)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr


def test_an_evaluation_reads_records_as_it_reads_rows(plain, folder, tmp_path):
  """The same hash, so the same results folder goes on with either."""
  with fault_server(replies) as server:
    request = request_for(plain, server.url, tmp_path / "out", limit=4)
    assert evaluation_run.run(request) == evaluation_run.DONE
    asked = len(server.requests)
    by_records = dataclasses.replace(request, data=str(folder))
    assert evaluation_run.run(by_records) == evaluation_run.DONE
    assert len(server.requests) == asked
    with pytest.raises(BenchmarkError, match="not 12"):
      evaluation_run.run(dataclasses.replace(by_records, data_sha256="12"))
