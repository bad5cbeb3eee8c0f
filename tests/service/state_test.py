"""What the background finishes during a report belongs to the next one."""

from tests import fakes
from varl_jax.service.memo import MemoState
from varl_jax.service.state import MemoProbe, ServiceState, StepLog
from varl_jax.service.store import Event
from varl_jax.types import to_json


def test_a_report_takes_what_it_counted_and_no_more():
  log = StepLog(written=2, admissions=[{"n": 1}], rejected=["a", "b"])
  counted = log.counts()
  log.written += 1
  log.admissions.append({"n": 2})
  log.rejected.append("c")
  log.dropped.append("late")
  log.replayed = 3
  assert log.after(counted) == StepLog(
    written=1, admissions=[{"n": 2}], rejected=["c"], dropped=["late"]
  )


def test_probes_that_come_during_an_optimizer_call_stay():
  state = ServiceState(fakes.config())
  early, late = (
    MemoProbe(memo=0, lead=lead, honest=0.5) for lead in (0.1, 0.2)
  )
  state.memo_probes += [early, late]
  state.apply(
    Event(
      uid="memo/1",
      step=1,
      kind="memo",
      payload={
        "state": to_json(MemoState()),
        "probes": 1,
        "decision": "wait",
        "failure": "",
      },
    )
  )
  assert state.memo_probes == [late]
