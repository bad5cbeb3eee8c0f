"""Verifiers in processes: nothing they do reaches the run."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

from varl_jax.rubrics.check_pool import CheckPool, CheckResult
from varl_jax.rubrics.check_worker import import_registry, run_check
from varl_jax.rubrics.checks import CheckError
from varl_jax.story import world

NAME = "tests.rubrics.pool_checks:CHECKS"
YES, NO = CheckResult(met=True), CheckResult(met=False)


@pytest.fixture(scope="module")
def pool():
  # A deadline that a busy machine keeps: only endless checks reach it.
  with contextlib.closing(CheckPool(NAME, workers=2, timeout_s=2.0)) as made:
    yield made


def run(pool, answer, *checks):
  return asyncio.run(pool.run(answer, checks))


def failures(results):
  return [result.failure for result in results]


def test_results_come_in_order(pool):
  assert run(pool, "a b", "has(a)", "has(c)", "has(b)") == (YES, NO, YES)
  assert run(pool, "a") == ()


def test_no_worker_loads_an_array_framework_or_the_trainer(pool):
  assert run(pool, "", "frameworks()") == (NO,)
  assert run(pool, "", f"process({os.getpid()})") == (NO,)


def test_what_cannot_be_run_is_malformed(pool):
  before = pool.replaced
  results = run(pool, "a", "refuses()", "nothing()", "has(", "has(a)")
  assert failures(results) == ["malformed", "malformed", "malformed", ""]
  assert results[0].reason == "No such thing."
  assert results[3] == YES
  assert pool.replaced == before


def test_a_bug_costs_its_own_verdict(pool):
  before = pool.replaced
  results = run(pool, "a", "has(a)", "breaks()", "prints()", "has(a)")
  assert failures(results) == ["", "unavailable", "", ""]
  assert "KeyError" in results[1].reason
  assert pool.replaced == before


@pytest.mark.parametrize(
  ("check", "kind"),
  [("hangs()", "timeout"), ("sleeps()", "timeout"), ("dies()", "unavailable")],
)
def test_a_lost_worker_is_replaced(pool, check, kind):
  before = pool.replaced
  results = run(pool, "a", "has(a)", check, "has(b)", "has(a)")
  assert failures(results) == ["", kind, "", ""]
  assert results[0] == results[3] == YES
  assert results[2] == NO
  assert pool.replaced == before + 1
  assert run(pool, "a", "has(a)") == (YES,)


def test_answers_are_checked_side_by_side_in_any_loop(pool):
  async def many():
    return await asyncio.gather(
      *(pool.run(f"w{i}", [f"has(w{i})", "has(x)"]) for i in range(40))
    )

  for _ in range(2):
    assert asyncio.run(many()) == [(YES, NO)] * 40


def test_any_text_arrives_whole(pool):
  word = "\ud800\x00é\U0001f600" + "x" * 100
  assert run(pool, f"{word} {'y ' * 3_000_000}", f"has({word})") == (YES,)


def test_a_domains_verifiers_decide_alike_here_and_there():
  checks = ["speaks()", "uses(mia, rope)", "repeats()", "fetched(moon)", "x("]
  answers = ["", "mia took the rope .", "mia sat . mia sat .", "a , said b c d"]
  pool = CheckPool("varl_jax.story.world:CHECKS", workers=1, timeout_s=60.0)
  with contextlib.closing(pool):
    for answer in answers:
      here = [run_check(world.CHECKS, check, answer) for check in checks]
      assert [
        {"malformed": found.reason}
        if found.failure == "malformed"
        else {"met": found.met}
        for found in run(pool, answer, *checks)
      ] == here


def test_closing_ends_the_processes_and_may_be_repeated():
  pool = CheckPool(NAME, workers=2, timeout_s=2.0)
  assert run(pool, "a", "has(a)") == (YES,)
  workers = [pool._idle.get() for _ in range(2)]
  for worker in workers:
    pool._idle.put(worker)
  pool.close()
  pool.close()
  assert all(worker._process.returncode is not None for worker in workers)
  with pytest.raises(CheckError, match="closed"):
    run(pool, "a", "has(a)")


def test_closing_does_not_wait_for_the_rest_of_a_rubric():
  pool = CheckPool(NAME, workers=1, timeout_s=0.5)

  async def close_in_the_middle():
    running = asyncio.ensure_future(pool.run("a", ["sleeps()"] * 50))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(pool.close)
    return await running

  results = asyncio.run(close_in_the_middle())
  assert set(failures(results)) == {"timeout", "unavailable"}
  assert failures(results).count("timeout") <= 2


@pytest.mark.parametrize(
  ("name", "reason"),
  [
    ("tests.rubrics.nothing:CHECKS", "cannot be imported"),
    ("tests.rubrics.pool_checks:NONE", "cannot be imported"),
    ("tests.rubrics.pool_checks", "cannot be imported"),
    ("", "cannot be imported"),
    ("tests.rubrics.pool_checks:NOT_A_REGISTRY", "is a int, no CheckRegistry"),
  ],
)
def test_registries_that_are_none_are_refused_at_once(name, reason):
  with pytest.raises(CheckError, match=reason):
    CheckPool(name, workers=1, timeout_s=1.0)


@pytest.mark.parametrize(("workers", "timeout"), [(0, 1.0), (1, 0.0)])
def test_a_pool_needs_workers_and_time(workers, timeout):
  with pytest.raises(ValueError, match="cannot check"):
    CheckPool(NAME, workers=workers, timeout_s=timeout)


def test_a_worker_says_what_it_cannot_import():
  done = subprocess.run(
    [sys.executable, "-m", "varl_jax.rubrics.check_worker", "no:WHERE", "1"],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
  )
  # Standard input is no socket here: that is an error, not a hang.
  assert done.returncode != 0


def test_the_workers_own_alarm_ends_a_check_without_a_parent():
  """The kernel ends it even while a regular expression holds the lock."""
  code = (
    "import socket, signal\n"
    "from varl_jax.rubrics import check_worker\n"
    f"registry = check_worker.import_registry({NAME!r})\n"
    "ours, theirs = socket.socketpair()\n"
    'ours.sendall(b\'{"answer": "", "checks": ["hangs()"]}\\n\')\n'
    "check_worker.ALARM_EXTRA_S = 0.1\n"
    "check_worker.serve(theirs, registry, timeout_s=0.05)\n"
  )
  path = os.pathsep.join(entry for entry in sys.path if entry)
  done = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "PYTHONPATH": path},
    timeout=60,
  )
  assert done.returncode < 0  # by a signal


def test_in_the_worker_every_outcome_has_a_line():
  registry = import_registry(NAME)
  assert run_check(registry, "has(a)", "a") == {"met": True}
  assert run_check(registry, "has(", "a")["malformed"]
  assert run_check(registry, "breaks()", "a") == {"broken": "KeyError: 'a'"}
