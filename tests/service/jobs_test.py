"""The order of jobs: kinds overlap, and some work is alone."""

import asyncio
import threading

from varl_jax.service.jobs import Jobs

PATIENCE_S = 60.0


def test_kinds_overlap_and_each_keeps_its_order():
  """A grading waits for a report that is submitted after it."""
  reported, order = threading.Event(), []

  def grade():
    assert reported.wait(PATIENCE_S)
    order.append("grade")

  def report():
    order.append("report")
    reported.set()

  async def main():
    jobs = Jobs()
    jobs.open()
    submitted = [
      jobs.submit("1", "a", grade, kind="grade"),
      jobs.submit("2", "b", lambda: order.append("second"), kind="grade"),
      jobs.submit("3", "c", report, kind="report"),
    ]
    for job in submitted:
      await jobs.wait(job, PATIENCE_S)
      assert job.done.is_set() and job.error is None

  asyncio.run(main())
  assert order == ["report", "grade", "second"]


def test_exclusive_work_is_alone():
  begun, free, order = threading.Event(), threading.Event(), []

  def held():
    begun.set()
    assert free.wait(PATIENCE_S)
    order.append("left behind")

  async def main():
    jobs = Jobs()
    jobs.open()
    jobs.submit("1", "a", held, kind="grade")
    alone = jobs.submit(
      "2", "b", lambda: order.append("rewind"), kind="rewind", exclusive=True
    )
    after = jobs.submit("3", "c", lambda: order.append("poll"), kind="poll")
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    assert not alone.done.is_set() and not after.done.is_set()
    free.set()
    await jobs.wait(after, PATIENCE_S)

  asyncio.run(main())
  assert order == ["left behind", "rewind", "poll"]


def test_a_repeated_request_finds_its_work():
  async def main():
    jobs = Jobs()
    jobs.open()
    one = jobs.submit("1", "a", lambda: 7, kind="poll")
    assert jobs.submit("1", "a", lambda: 8, kind="poll") is one
    await jobs.wait(one, PATIENCE_S)
    assert jobs.submit("1", "a", lambda: 8, kind="poll").value == 7
    again = jobs.submit("1", "b", lambda: 9, kind="poll")
    await jobs.wait(again, PATIENCE_S)
    assert again.value == 9

  asyncio.run(main())
