"""SIGKILL at every failpoint of the trainer: the run ends as if undisturbed.

Those of the service are in `tests/service/failpoints_test.py`.
"""

import contextlib
import os
import signal

import pytest

from tests import end_to_end_test as runs
from tests.service.failpoints_test import failpoints_in
from varl_jax.service import failpoints
from varl_jax.service.store import Store

PACKAGE = runs.ROOT / "varl_jax"
# One after another, through the four steps and two checkpoints of the run.
KILLS = (
  "record/written",
  "step/polled",
  "step/graded@2",
  "checkpoint/begun",
  "checkpoint/written",
  "step/updated",
  "step/reported@2",
  "checkpoint/saved",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
  """One compile cache for all runs."""
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
  }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, environment):
  workdir = tmp_path_factory.mktemp("undisturbed") / "run"
  done = runs.run(workdir, environment, *runs.TINY)
  assert done.returncode == 0, done.stderr
  return workdir


def logged(workdir):
  path = workdir / "service.sqlite"
  with contextlib.closing(Store(path, read_only=True)) as store:
    return list(store.events())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_at_every_failpoint_of_the_trainer_change_nothing(
  undisturbed, environment, tmp_path
):
  """The last one falls between the last checkpoint and what the run leaves."""
  workdir = tmp_path / "run"
  for place in KILLS:
    armed = environment | {failpoints.VARIABLE: place}
    done = runs.run(workdir, armed, *runs.TINY)
    assert done.returncode == -signal.SIGKILL, (place, done.stderr)
  done = runs.run(workdir, environment, *runs.TINY)
  assert done.returncode == 0, done.stderr
  assert runs.records(workdir) == runs.records(undisturbed)
  assert logged(workdir) == logged(undisturbed)
  evidence = (workdir / "evidence.jsonl").read_text()
  assert evidence == (undisturbed / "evidence.jsonl").read_text()
  assert (workdir / "report.html").exists()


def test_every_failpoint_of_the_trainer_is_exercised_above():
  placed = [
    name
    for path in sorted(PACKAGE.glob("*.py"))
    for name in failpoints_in(path)
  ]
  assert [place.partition("@")[0] for place in KILLS] == list(
    failpoints.TRAINER_NAMES
  )
  # The loop whose steps overlap has the same places.
  assert set(placed) == set(failpoints.TRAINER_NAMES)
