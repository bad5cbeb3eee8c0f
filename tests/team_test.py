"""The line between processes, with threads for processes."""

import threading

import numpy as np
import pytest

from varl_jax import processes, team
from varl_jax.config import Config, MeshConfig
from varl_jax.llm.journal import JournalError
from varl_jax.processes import FAILURES, Launch, find_launch
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.team import First, Other, TeamError
from varl_jax.types import Message, Rubric, Task

DIGEST = "settings"


@pytest.fixture
def ended(monkeypatch):
  """Sentences and codes of processes that ended themselves."""
  found = []

  def end(sentence, code):
    found.append((sentence, code))
    raise SystemExit(code)

  monkeypatch.setattr(team, "_end", end)
  monkeypatch.setattr(team, "_exit", lambda code: found.append(("", code)))
  monkeypatch.setattr(team, "_ENDED_S", 0.1)
  monkeypatch.setattr(threading, "excepthook", lambda args: None)
  return found


@pytest.fixture
def join(ended):
  """Makes a team; what it opens is closed."""
  made = []
  yield lambda count=2, digest=DIGEST: _join(made, count, digest)
  for each in made:
    each.close()


def _accept(first, failed, **keywords):
  try:
    first.accept(DIGEST, **keywords)
  except TeamError as error:
    failed.append(str(error))


def _join(made, count, digest):
  first = First(count, failures=FAILURES, loopback=True)
  made.append(first)
  accepting = threading.Thread(target=_accept, args=(first, []))
  accepting.start()
  others = []
  for index in range(1, count):
    other = Other(index, count, failures=FAILURES)
    made.append(other)
    other.connect(["127.0.0.1"], first.port, token=first.token, digest=digest)
    others.append(other)
  accepting.join()
  return first, others


def leave(first, others, **how):
  threads = [
    threading.Thread(target=each.leave, args=(0,), kwargs=how)
    for each in (*others, first)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


def wait_for(found, count=1):
  for _ in range(500):
    if len(found) >= count:
      return
    threading.Event().wait(0.01)
  raise AssertionError(found)


def test_values_arrive_as_they_were_computed(ended, join):
  first, others = join(3)
  task = Task(
    task_id="t",
    prompt=(Message(role="user", content="ü \n {}"),),
    rubric=Rubric(criteria=()),
  )
  scores = {"a": 0.1 + 0.2, "b": np.float32(0.5), "none": None}
  first.share("poll", lambda: [task])
  first.share("report", lambda: scores)
  for other in others:
    never = pytest.fail
    service = processes.SharedService(team=other, inner=None)
    assert service.poll(1, 1) == [task]
    assert other.share("report", never) == scores
  leave(first, others, together=True)
  assert ended == []


def test_failures_of_known_kinds_are_raised_everywhere(ended, join):
  first, (other,) = join()
  for error in (Stopped("a."), ServiceFailure("b.")):
    error.__cause__ = JournalError("c.")

    def fail(error=error):
      raise error

    with pytest.raises(type(error)):
      first.share("grade", fail)
    with pytest.raises(type(error), match=str(error)) as found:
      other.share("grade", fail)
    assert isinstance(found.value.__cause__, JournalError)
  with pytest.raises(ZeroDivisionError):
    first.share("grade", lambda: 1 / 0)
  first.share("after", lambda: 1)
  assert other.share("after", lambda: 2) == 1
  leave(first, [other], together=True)


def test_processes_that_do_not_do_the_same_are_told(ended, join):
  first, (other,) = join()
  first.share("poll", lambda: 1)
  with pytest.raises(TeamError, match="waits for 'grade' and process 0 sends"):
    other.share("grade", lambda: 1)
  leave(first, [other], together=True)


def test_a_stop_asked_of_any_is_known_to_process_0(ended, join):
  first, (one, two) = join(3)
  assert not first.stop_asked()
  two.ask_stop()
  for _ in range(500):
    if first.stop_asked():
      break
    threading.Event().wait(0.01)
  assert first.stop_asked() and not one.stop_asked()
  leave(first, [one, two], together=True)


def test_when_one_is_gone_all_say_so(ended, join):
  _, (one, two) = join(3)
  two._line.shutdown(2)
  wait_for(ended, 3)
  sentences = {sentence for sentence, _ in ended}
  assert {code for _, code in ended} == {team.LOST}
  assert any("Process 2 of 3 is gone" in s for s in sentences)
  assert all(s.endswith("last checkpoint.") for s in sentences)


def test_when_process_0_ends_by_itself_the_others_follow(ended, join):
  first, _ = join()
  first.leave(2, together=False)
  wait_for(ended, 2)
  assert ("", 2) in ended
  assert any("ended the run with exit code 2" in s for s, _ in ended)


def test_other_settings_are_refused(ended, join):
  with pytest.raises(TeamError, match="other settings"):
    join(digest="another")


def test_who_does_not_know_the_token_is_none_of_ours():
  first = First(2, failures=FAILURES, loopback=True)
  failed = []
  accepting = threading.Thread(
    target=_accept, args=(first, failed), kwargs={"patience_s": 0.5}
  )
  accepting.start()
  other = Other(1, 2, failures=FAILURES)
  with pytest.raises(TeamError, match="cannot reach process 0"):
    other.connect(["127.0.0.1"], first.port, token="guess", digest=DIGEST)
  accepting.join()
  first.close()
  assert failed == [
    "Process 1 of 2 did not connect within 0 seconds; start all processes"
    " together."
  ]


def test_how_a_process_was_started():
  nothing = {"environment": {}}
  assert find_launch(**nothing) is None
  given = Launch(coordinator="10.0.0.1:80", count=4, index=3)
  assert (
    find_launch(coordinator="10.0.0.1:80", count=4, index=3, **nothing) == given
  )
  said = {
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:80",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
  }
  assert find_launch(environment=said) == given
  assert find_launch(environment=said, index=0).index == 0
  assert (
    find_launch(environment=said | {"JAX_NUM_PROCESSES": "1"}, index=0) is None
  )
  assert find_launch(environment={}, distributed=True) == Launch()
  pod = {"TPU_WORKER_HOSTNAMES": "a,b"}
  assert find_launch(environment=pod) == Launch()
  assert find_launch(environment={"TPU_WORKER_HOSTNAMES": "a"}) is None


@pytest.mark.parametrize(
  "given",
  [
    {"coordinator": "10.0.0.1:80", "count": 2},
    {"coordinator": "10.0.0.1:80", "count": 2, "index": 2},
    {"coordinator": "10.0.0.1", "count": 2, "index": 0},
    {"count": 2, "index": 0},
    {"environment": {"JAX_NUM_PROCESSES": "two"}},
  ],
)
def test_half_a_start_is_refused(given):
  with pytest.raises(TeamError):
    find_launch(**{"environment": {}, **given})


def test_a_mesh_for_fewer_devices_is_refused():
  config = Config(mesh=MeshConfig(data=512))
  with pytest.raises(processes.ConfigError, match="product is"):
    processes.check_mesh(config)


def test_a_folder_of_its_own_is_noticed(tmp_path, join):
  first, (other,) = join()
  (tmp_path / "one").mkdir()
  (tmp_path / "two").mkdir()
  processes.check_shared(tmp_path / "one", first)
  with pytest.raises(TeamError, match="does not see"):
    processes.check_shared(tmp_path / "two", other)
  processes.check_shared(tmp_path / "one", first)
  processes.check_shared(tmp_path / "one", other)
  leave(first, [other], together=True)
