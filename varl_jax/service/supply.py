"""Keeps the pool filled: orders requests, has them written and admitted.

Normally admissions run in the background, at most `admission.concurrency` at
once, and their events are bound to no step, so that a resumed run keeps them.
With `admission.barrier` all of it happens inside the step and is recorded in
the order of the requests, which makes a run repeatable.
"""

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Final

from varl_jax.config import Config
from varl_jax.llm.seeds import derive_seed
from varl_jax.llm.together import together
from varl_jax.rubrics.shape import request_shape
from varl_jax.service.admission import Admitter, admission_record
from varl_jax.service.answer_key import with_flags
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.event_log import Event
from varl_jax.service.failpoints import failpoint
from varl_jax.service.ledger import Ledger
from varl_jax.service.pool import shortfall
from varl_jax.service.state import (
  ServiceState,
  shape_targets,
  written_payload,
)
from varl_jax.service.writing import Order, TaskWriter
from varl_jax.types import to_json

# How often a step proposes anew when requests were dropped.
WAVES: Final = 4


class Supply:
  """Turns what the pool lacks into tasks.

  Args:
    ledger: events and state.
    writer: writes tasks.
    admitter: probes and repairs them, None to admit them as written.
    config: the run's settings.
  """

  def __init__(
    self,
    ledger: Ledger,
    *,
    writer: TaskWriter,
    admitter: Admitter | None,
    config: Config,
  ):
    self._ledger = ledger
    self._writer = writer
    self._admitter = admitter
    self._config = config
    self._limit = asyncio.Semaphore(config.admission.concurrency)
    self._jobs: dict[str, asyncio.Task[None]] = {}
    self._ordering: asyncio.Task[None] | None = None
    self._unproposed = ""

  @property
  def unproposed(self) -> str:
    """Why no requests came when they were last asked for, else ""."""
    return self._unproposed

  @property
  def _state(self) -> ServiceState:
    return self._ledger.state

  async def provide(self, step: int, count: int) -> None:
    """Makes sure that a batch of `count` can be served.

    Raises:
      ServiceFailure: a model is of no more use, here or in the background; all
        work has ended, and its orders stay open.
    """
    try:
      if self._config.admission.barrier:
        await self._provide_inside(step, count)
      else:
        await self._provide_behind(count)
    except BaseException:
      await self.stop()
      raise

  def prepare(self, count: int) -> None:
    """Starts on the next batch, unless everything happens inside the step."""
    if self._config.admission.barrier:
      return
    if self._ordering is not None and self._ordering.done():
      ordering, self._ordering = self._ordering, None
      ordering.result()
    if self._ordering is None:
      self._ordering = asyncio.create_task(self._launch(count))
      self._ordering.add_done_callback(self._halt)

  async def stop(self) -> None:
    """Cancels the work in the background; its orders stay open."""
    tasks = [*self._jobs.values()]
    if self._ordering is not None:
      tasks.append(self._ordering)
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    self._jobs = {}
    self._ordering = None

  def _missing(self, count: int) -> int:
    return shortfall(
      self._state.pool,
      count,
      waiting=len(self._state.orders),
      floor=self._config.pool.floor or count,
      config=self._config.pool,
    )

  def _ready(self, count: int) -> bool:
    chosen = self._state.pool.choose(count, self._config.pool.replay_share)
    return sum(map(len, chosen)) >= count

  async def _provide_inside(self, step: int, count: int) -> None:
    for _ in range(WAVES):
      missing = self._missing(count)
      if missing:
        await self._order(missing, step=step)
      orders = list(self._state.orders.values())
      if not orders:
        break
      self._ledger.commit(
        await together(self._made(order, step=step) for order in orders)
      )

  async def _provide_behind(self, count: int) -> None:
    """Waits until a batch is there, with the background at work."""
    dropped = self._state.log.dropped
    most_dropped = len(dropped) + WAVES * count
    barren = 0
    self._collect()
    while not self._ready(count):
      if barren == WAVES or len(dropped) >= most_dropped:
        return
      if self._ordering is not None:
        await asyncio.wait([self._ordering])
        self._collect()
        ordering, self._ordering = self._ordering, None
        ordering.result()
      else:
        await self._launch(count)
      barren = 0 if self._jobs else barren + 1
      if self._jobs and not self._ready(count):
        await asyncio.wait(
          self._jobs.values(), return_when=asyncio.FIRST_COMPLETED
        )
      self._collect()

  async def _launch(self, count: int) -> None:
    """Orders what is missing and starts a job an open order."""
    missing = self._missing(count)
    if missing:
      await self._order(missing, step=None)
    for order in list(self._state.orders.values()):
      if order.task_id not in self._jobs:
        job = asyncio.create_task(self._job(order))
        job.add_done_callback(self._halt)
        self._jobs[order.task_id] = job

  async def _job(self, order: Order) -> None:
    self._ledger.commit([await self._made(order, step=None)])

  def _halt(self, ended: asyncio.Task[None]) -> None:
    """Cancels what else is going on once a part of it failed.

    What stops one call (a used-up quota, a full disk) stops them all. The error
    is raised by the next `provide`.
    """
    if ended.cancelled() or ended.exception() is None:
      return
    for task in (*self._jobs.values(), self._ordering):
      if task is not None and not task.done():
        task.cancel()

  def _collect(self) -> None:
    """Forgets finished jobs; the error of a failed one is raised."""
    done = [name for name, job in self._jobs.items() if job.done()]
    # Cancelled ones have left their orders open.
    ended = [job for n in done if not (job := self._jobs.pop(n)).cancelled()]
    for job in ended:
      job.result()

  async def _order(self, count: int, *, step: int | None) -> None:
    """Has requests proposed and records them as open orders."""
    state = self._state
    guidance, memo = state.guidance[-1], state.memo
    proposed = await self._writer.propose(
      count, batch=state.batches, guidance=guidance.proposer
    )
    self._unproposed = "" if proposed.requests else proposed.problem
    failpoint("supply/proposed")
    orders = []
    for number, request in enumerate(proposed.requests, state.next_task):
      task_id = f"t{number:06d}"
      rng = random.Random(derive_seed(self._config.seed, f"shape/{task_id}"))
      shape = request_shape(
        state.shape,
        rng,
        red_team=request.red_team,
        targets=shape_targets(self._config),
      )
      orders.append(
        Order(
          task_id=task_id,
          request=request.text,
          use_case=request.use_case,
          red_team=request.red_team,
          positives=shape.positives,
          negatives=shape.negatives,
          solver_mean=state.solver_mean,
          guidance=guidance.version,
          memo=memo.current,
          seed_passage=request.seed_passage,
        )
      )
    self._ledger.commit(
      [
        Event(
          uid=f"requests/{state.batches}",
          step=step,
          kind="requests",
          payload={
            "orders": [dataclasses.asdict(order) for order in orders],
            "guidance": dataclasses.asdict(guidance),
            "memo": {"version": memo.current, "text": memo.text},
          },
        )
      ]
    )

  async def _made(self, order: Order, *, step: int | None) -> Event:
    """Writes and admits one task; the event says what became of it."""
    async with self._limit:
      written = await self._writer.write(
        order,
        guidance=self._state.ordered_guidance[order.guidance].generator,
        memo=self._state.ordered_memos[order.memo],
      )
      failpoint("supply/written")
      task, record = written.task, None
      if task is not None and self._admitter is not None:
        admission = await self._admitter.admit(task)
        task, record = admission.task, admission_record(admission)
        failpoint("supply/admitted")
      if task is not None and self._config.retrieval.verify_answer_key:
        task = await asyncio.to_thread(with_flags, task, written.found)
    payload = written_payload(
      order.task_id,
      task=None if task is None else to_json(task),
      first=written.task,
      admission=record,
      rejected=written.rejected,
      problem=written.problem,
    )
    return Event(
      uid=f"task/{order.task_id}", step=step, kind="task", payload=payload
    )


def served_event(
  state: ServiceState,
  *,
  step: int,
  count: int,
  share: float,
  unproposed: str = "",
) -> Event:
  """The serving of a batch.

  Args:
    state: of the service.
    step: that is served.
    count: tasks it needs.
    share: of repaired tasks at most.
    unproposed: why no requests came, for the error.

  Raises:
    ServiceFailure: the pool holds too few tasks.
  """
  replay, fresh = state.pool.choose(count, share)
  if len(replay) + len(fresh) < count:
    raise ServiceFailure(
      f"Step {step} needs {count} tasks but the pool has"
      f" {len(replay) + len(fresh)} to serve:"
      f" {_why(state.log.dropped, unproposed)}. Check base_url, model and key"
      " of endpoints.roles and resume the run."
    )
  return Event(
    uid=f"served/{step}",
    step=step,
    kind="served",
    payload={"replay": replay, "fresh": fresh},
  )


def _why(dropped: Sequence[str], unproposed: str) -> str:
  """What keeps the pool empty: the proposer first, without which nothing is."""
  if unproposed:
    return f"no requests came from the proposer ({unproposed.rstrip('.')})"
  if dropped:
    last = dropped[-1].rstrip(".")
    return f"{len(dropped)} requests were dropped, the last for: {last}"
  return "no usable requests came from the proposer"
