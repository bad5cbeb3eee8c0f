"""SIGKILL at every failpoint: the run ends as if nothing had happened."""

import ast
import collections
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import pytest

from varl_jax.service import failpoints

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVICE = ROOT / "varl_jax" / "service"

# Later hits, where the work of several steps is there to be lost; each counts
# from the checkpoint before the kill before it.
OVER_PASSAGES = (
  ("supply/admitted@17", "transaction/written@8", "served/saved@2"),
  ("windows/saved@3", "report/evolved@2", "guidance/due", "memo/saved"),
  ("transaction/done@14", "patch/saved@3", "reported/due@2"),
)
REWINDS = ("rewind/open", "rewind/written", "rewind/done")
STORES = ("sqlite", "postgres")
# In PostgreSQL, those where the two stores differ.
ON_THE_SERVER = (
  "transaction/open@9",
  "transaction/written@9",
  "transaction/done@9",
  "served/saved@3",
)


def start(folder, *arguments, failpoint="", address=""):
  """Runs `failing_run` and returns the finished process."""
  folder.mkdir(exist_ok=True)
  environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
  if failpoint:
    environment[failpoints.VARIABLE] = failpoint
  if address:
    environment["TEST_STORE"] = address
  return subprocess.run(
    [sys.executable, "-m", "tests.service.failing_run", folder, *arguments],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )


def final(folder):
  return json.loads((folder / "final.json").read_text())


def paid(folder):
  path = folder / "paid.txt"
  return path.read_text().splitlines() if path.exists() else []


def journaled(folder):
  """Operations whose replies are on the disk."""
  path = folder / "calls.sqlite"
  if not path.exists():
    return set()
  connection = sqlite3.connect(path)
  try:
    found = connection.execute("SELECT operation FROM calls").fetchall()
  finally:
    connection.close()
  return {row[0] for row in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An undisturbed run's folder."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  done = start(folder)
  assert done.returncode == 0, done.stderr
  return folder


def check_killed(whole, folder, *kills, address=""):
  """A run killed at each of `kills` in turn ends as the undisturbed one."""
  for failpoint in kills:
    before = collections.Counter(paid(folder))
    kept = journaled(folder)
    done = start(folder, failpoint=failpoint, address=address)
    assert done.returncode == -signal.SIGKILL, (failpoint, done.stderr)
    again = collections.Counter(paid(folder)) - before
    assert not kept & again.keys(), "A call of the journal was paid again."
  before = collections.Counter(paid(folder))
  kept = journaled(folder)
  done = start(folder, address=address)
  assert done.returncode == 0, done.stderr
  again = collections.Counter(paid(folder)) - before
  assert not kept & again.keys(), "A call of the journal was paid again."
  assert final(folder) == final(whole)
  # Every call was made, and none that the undisturbed run does not make. What
  # was paid twice was being written into the journal when the process died.
  assert set(paid(folder)) == set(paid(whole))


def test_the_run_is_worth_killing(whole):
  found = final(whole)
  kinds = {event["kind"] for event in found["events"]}
  assert kinds == set(failpoints.KINDS)
  assert all(found["tables"].values())
  assert found["tables"]["memos"][1:]
  assert len(paid(whole)) == len(set(paid(whole))) > 200


def places():
  """The failpoints by the part that stands before the slash."""
  found: dict[str, list[str]] = {}
  for name in failpoints.NAMES:
    found.setdefault(name.partition("/")[0], []).append(name)
  return {part: names for part, names in found.items() if part != "rewind"}


@pytest.mark.slow
@pytest.mark.parametrize("part", places())
def test_kills_at_every_failpoint_change_nothing(whole, tmp_path, part):
  check_killed(whole, tmp_path / "run", *places()[part])


@pytest.mark.slow
@pytest.mark.parametrize("names", OVER_PASSAGES)
def test_kills_late_in_the_run_change_nothing(whole, tmp_path, names):
  check_killed(whole, tmp_path / "run", *names)


@pytest.mark.parametrize("name", REWINDS)
def test_a_kill_while_resuming_changes_nothing(whole, tmp_path, name):
  check_killed(whole, tmp_path / "run", "reported/saved@3", name, name)


@pytest.mark.parametrize("names", [ON_THE_SERVER[:2], ON_THE_SERVER[2:]])
def test_kills_with_a_database_server_change_nothing(
  whole, tmp_path, postgres_server, names
):
  check_killed(
    whole, tmp_path / "run", *names, address=postgres_server.address()
  )


@pytest.mark.parametrize("kind", STORES)
def test_a_second_service_is_refused_with_one_sentence(tmp_path, request, kind):
  address = ""
  if kind == "postgres":
    address = request.getfixturevalue("postgres_server").address()
  folder = tmp_path / "run"
  folder.mkdir()
  environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
  if address:
    environment["TEST_STORE"] = address
  first = subprocess.Popen(
    [sys.executable, "-m", "tests.service.failing_run", folder, "100"],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    second = start(folder, address=address)
    assert second.returncode == 2
    assert "is in use by another process; a store has one writer." in (
      second.stderr
    )
    assert ("PostgreSQL database postgres" in second.stderr) == bool(address)
    assert len(second.stderr.splitlines()) == 1
    assert not (folder / "final.json").exists()
  finally:
    first.kill()
    first.communicate()
  # The dead one's lock is gone; a server takes a moment to notice.
  done = start(folder, "0", address=address)
  for _ in range(50):
    if done.returncode == 0:
      break
    done = start(folder, "0", address=address)
  assert done.returncode == 0, done.stderr


def failpoints_in(folder):
  """Names at the calls of `failpoint` below a folder, or in a file."""
  files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
  for path in files:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "failpoint"
      ):
        (name,) = node.args
        if isinstance(name, ast.Constant):
          yield name.value
        else:
          # Of the ledger: one of each kind of event.
          assert isinstance(name, ast.JoinedStr) and path.name == "ledger.py"
          ending = name.values[-1]
          assert isinstance(ending, ast.Constant)
          yield from (f"{kind}{ending.value}" for kind in failpoints.KINDS)


def test_every_failpoint_of_the_service_is_exercised_above():
  placed = list(failpoints_in(SERVICE))
  assert len(placed) == len(set(placed))
  assert set(placed) == set(failpoints.NAMES)


def test_every_kind_of_event_has_its_failpoints():
  from tests import fakes
  from varl_jax.service.state import ServiceState

  # Rewards of other learners are in the commit of `judged`.
  kinds = set(ServiceState(fakes.config())._handlers) - {"rewards"}
  assert kinds == set(failpoints.KINDS)


@pytest.mark.parametrize("setting", ["served", "served/saved@x", "@1"])
def test_an_unknown_failpoint_is_refused(setting):
  with pytest.raises(failpoints.FailpointError, match=r"NAME@HIT"):
    failpoints.armed(setting)


def test_settings_are_read():
  assert failpoints.armed("") == ("", 0)
  assert failpoints.armed("served/saved") == ("served/saved", 1)
  assert failpoints.armed("served/saved@12") == ("served/saved", 12)
