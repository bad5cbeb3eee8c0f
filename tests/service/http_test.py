"""The transport: lost connections, restarts, tokens, other runs, big bodies."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import threading
import time

import httpx
import pytest

from tests import fakes
from tests.service import hosts
from varl_jax.llm.chat import ChatError
from varl_jax.roles.bundle import make_roles
from varl_jax.service import http_client, http_process, wire
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.service.http_client import Unreachable
from varl_jax.service.http_process import ListenError
from varl_jax.types import to_json


def answered(tasks, step):
  return [(task, fakes.rollouts(task, step)) for task in tasks]


@dataclasses.dataclass
class Held:
  """The fake world's model; judge calls wait until they may go on."""

  name: str = "fake"
  free: threading.Event = dataclasses.field(default_factory=threading.Event)
  asked: threading.Event = dataclasses.field(default_factory=threading.Event)
  judged: int = 0

  async def complete(self, request):
    if request.role == "judge":
      self.judged += 1
      self.asked.set()
      while not self.free.is_set():
        await asyncio.sleep(0.005)
    return await fakes.chat().complete(request)


def held_host(chat, path, **parts):
  config = fakes.config()
  roles = make_roles(chat, "story", config.judge, fakes.CHECKS)
  return hosts.host(path, config=config, roles=roles, **parts)


@contextlib.contextmanager
def in_thread(work):
  """Runs `work` beside the test; gives a list that gets what came of it."""
  outcome = []

  def run():
    try:
      outcome.append(work())
    except ServiceFailure as error:
      outcome.append(error)

  thread = threading.Thread(target=run)
  thread.start()
  try:
    yield outcome
  finally:
    thread.join()


def judged_task():
  task = fakes.task(("Speaks of a 'fox' at length.", 8, None))
  return task, [fakes.rollout(task, 0, "A fox.")]


def test_a_restarted_service_is_waited_for(tmp_path):
  """It ends in mid-call and comes back on the same store and port."""
  told = []
  chat = Held()
  first = hosts.Http(held_host(chat, tmp_path / "s.sqlite"), tmp_path)
  service = hosts.client(
    first.url, notify=told.append, sleep=lambda s: time.sleep(0.01)
  )
  with contextlib.closing(service):
    service.rewind(0)
    with in_thread(lambda: service.grade(0, [judged_task()])) as graded:
      assert chat.asked.wait(60)
      first.stop()
      while not told:
        time.sleep(0.005)
      other = Held()
      other.free.set()
      with hosts.Http(
        held_host(other, tmp_path / "s.sqlite"), tmp_path, port=first.port
      ):
        while not graded:
          time.sleep(0.005)
  assert [a.score for a in graded[0][0].answers] == [1.0]
  assert "Waiting for the generation service" in told[0]
  assert "is back" in told[1]
  assert other.judged == 3


def test_a_killed_trainer_neither_ends_nor_repeats_work(tmp_path):
  """It submitted a grading and is gone; its successor gets the outcome."""
  chat = Held()
  with hosts.Http(held_host(chat, tmp_path / "s.sqlite"), tmp_path) as http:
    task, rollouts = judged_task()
    call = wire.Grade(step=0, groups=(wire.Answers.of(task, rollouts),))
    headers = {wire.RUN_HEADER: "run", wire.CALL_HEADER: "of the dead"}
    with httpx.Client(base_url=http.url, trust_env=False) as dead:
      dead.post("/jobs/grade", content=wire.pack(call), headers=headers)
    assert chat.asked.wait(60)
    service = hosts.client(http.url)
    with (
      contextlib.closing(service),
      in_thread(lambda: service.grade(0, [(task, rollouts)])) as graded,
    ):
      chat.free.set()
    assert [a.score for a in graded[0][0].answers] == [1.0]
    assert chat.judged == 3


def test_a_rewind_waits_for_the_work_of_a_killed_trainer(tmp_path):
  chat = Held()
  with hosts.Http(held_host(chat, tmp_path / "s.sqlite"), tmp_path) as http:
    service = hosts.client(http.url)
    with contextlib.closing(service):
      call = wire.Grade(step=0, groups=(wire.Answers.of(*judged_task()),))
      headers = {wire.RUN_HEADER: "run", wire.CALL_HEADER: "of the dead"}
      with httpx.Client(base_url=http.url, trust_env=False) as dead:
        dead.post("/jobs/grade", content=wire.pack(call), headers=headers)
      assert chat.asked.wait(60)
      with in_thread(lambda: service.rewind(0)) as done:
        assert not done
        chat.free.set()
      assert done == [None]
      assert service.event_number() == 0


def test_outcomes_are_of_one_request_and_not_of_the_next(tmp_path):
  """A batch that was rewound is served anew, not from an old outcome."""
  with (
    hosts.Http(hosts.host(tmp_path / "s.sqlite"), tmp_path) as http,
    contextlib.closing(hosts.client(http.url)) as service,
  ):
    tasks = service.poll(0, 4)
    service.rewind(0)
    assert service.event_number() == 0
    assert service.poll(0, 4) == tasks
    assert service.event_number() > 0


def test_a_request_that_is_sent_again_finds_its_failure(tmp_path):
  """A lost answer does not start failed work anew; another call does."""
  counts = []

  def broke(reading):
    counts.append(reading)
    raise ChatError("quota", "Nothing left.")

  hosted = hosts.host(tmp_path / "s.sqlite", proposer=broke)
  with hosts.Http(hosted, tmp_path) as http:
    body = wire.pack(wire.Poll(step=0, count=4))
    with httpx.Client(base_url=http.url, trust_env=False) as sender:
      for call, expected in (("a", 1), ("a", 1), ("b", 2)):
        headers = {wire.RUN_HEADER: "run", wire.CALL_HEADER: call}
        job = sender.post("/jobs/poll", content=body, headers=headers).json()
        state = sender.get(f"/jobs/{job['job']}", params={"wait": 20}).json()
        assert state["error"]["type"] == "ServiceFailure"
        assert len(counts) == expected


def test_a_service_that_stays_away_is_one_sentence(tmp_path):
  listening = http_process.listen("127.0.0.1", 0)
  url = http_process.address(listening)
  listening.close()
  told, ticks = [], itertools.count()
  service = hosts.client(
    url, notify=told.append, clock=lambda: next(ticks), patience_s=5.0
  )
  with contextlib.closing(service):
    with pytest.raises(
      Unreachable, match=r"cannot be reached .* start it with"
    ):
      service.poll(0, 4)
    with pytest.raises(Unreachable, match="cannot be reached"):
      service.check(patience_s=3.0)
  assert len(told) == 2
  assert url in told[0]


@pytest.mark.parametrize("kind", ["thread", "http"])
def test_a_run_that_is_to_stop_does_not_wait_for_a_models_server(
  kind, tmp_path, monkeypatch
):
  monkeypatch.setattr(http_client, "WAIT_S", 0.1)
  chat = Held()
  asked, away = threading.Event(), threading.Event()
  hosted = held_host(chat, tmp_path / "s.sqlite", away=away.is_set)
  with hosts.presented(kind, hosted, tmp_path) as service:
    service.give_up_when(asked.is_set)
    with in_thread(lambda: service.grade(0, [judged_task()])) as outcome:
      assert chat.asked.wait(60)
      asked.set()
      time.sleep(1.0)
      assert outcome == []  # It ends after the step, while there is a server.
      away.set()
    assert [type(error) for error in outcome] == [Stopped]
    chat.free.set()
    assert service.grade(0, [judged_task()])  # It is there to go on from.


def test_a_run_that_is_to_stop_does_not_wait_for_the_service(tmp_path):
  http = hosts.Http(hosts.host(tmp_path / "s.sqlite"), tmp_path)
  told = []
  with contextlib.closing(hosts.client(http.url, notify=told.append)) as client:
    http.stop()
    client.give_up_when(lambda: len(told) > 0)
    with pytest.raises(Stopped, match="waiting for the generation service"):
      client.poll(0, 4)


def test_another_server_is_told_from_a_service(tmp_path):
  import fastapi

  app = fastapi.FastAPI()

  @app.get("/health")
  async def health():
    return fastapi.Response("<html>hello</html>", media_type="text/html")

  class Jobs:
    def stop_soon(self):
      pass

  app.state.jobs = Jobs()
  ready = threading.Event()
  server = http_process.make_server(app, ready=ready.set)
  listening = http_process.listen("127.0.0.1", 0)
  thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
  thread.start()
  try:
    assert ready.wait(60)
    service = hosts.client(http_process.address(listening))
    with contextlib.closing(service):
      with pytest.raises(Unreachable, match="no generation service"):
        service.check()
      with pytest.raises(Unreachable, match=r"no generation service \(status"):
        service.poll(0, 4)
  finally:
    server.handle_exit(15, None)
    thread.join()
    listening.close()


def test_tokens_are_needed_everywhere(tmp_path):
  hosted = hosts.host(tmp_path / "s.sqlite")
  with hosts.Http(hosted, tmp_path, token="some-token") as http:
    for wrong in ("", "some-tokem", "some-toke"):
      service = hosts.client(http.url, token=wrong, token_env="MY_TOKEN")
      with contextlib.closing(service):
        for call in (
          service.check,
          service.event_number,
          service.history,
          service.cases,
          lambda s=service: s.poll(0, 4),
          lambda s=service: s.rewind(0),
          lambda s=service: s.export_evidence(tmp_path / "e.jsonl"),
        ):
          with pytest.raises(Unreachable, match=r"refuses .* MY_TOKEN"):
            call()
      assert wrong == "" or wrong not in repr(service)
    assert not (tmp_path / "e.jsonl").exists()


def test_the_right_token_opens(tmp_path):
  hosted = hosts.host(tmp_path / "s.sqlite")
  with (
    hosts.Http(hosted, tmp_path, token="secret") as http,
    contextlib.closing(hosts.client(http.url, token="secret")) as service,
  ):
    assert service.check()["fingerprint"] == "f"
    assert len(service.poll(0, 4)) == 4


def test_another_config_and_another_folder_are_refused(tmp_path):
  hosted = hosts.host(tmp_path / "s.sqlite")
  with hosts.Http(hosted, tmp_path, fingerprint="theirs") as http:
    ours = hosts.client(http.url, fingerprint="ours")
    with (
      contextlib.closing(ours),
      pytest.raises(Unreachable, match="same --config"),
    ):
      ours.check()
    first = hosts.client(http.url, fingerprint="theirs", run_id="first")
    with contextlib.closing(first):
      tasks = first.poll(0, 4)
    second = hosts.client(http.url, fingerprint="theirs", run_id="second")
    with contextlib.closing(second):
      for call in (second.check, lambda: second.rewind(0)):
        with pytest.raises(Unreachable, match="another folder"):
          call()
    with contextlib.closing(
      hosts.client(http.url, fingerprint="theirs", run_id="first")
    ) as again:
      assert again.poll(0, 4) == tasks


def test_an_owner_that_was_never_written_locks_nobody_out(tmp_path):
  """What a process killed while it wrote the name may leave."""
  owner = tmp_path / "service_run"
  owner.write_text("")
  hosted = hosts.host(tmp_path / "s.sqlite")
  with hosts.Http(hosted, tmp_path) as http:
    first = hosts.client(http.url, run_id="first")
    with contextlib.closing(first):
      assert len(first.poll(0, 4)) == 4
    assert owner.read_text() == "first\n"
    second = hosts.client(http.url, run_id="second")
    with contextlib.closing(second):
      with pytest.raises(Unreachable, match="another folder"):
        second.poll(0, 4)


def test_a_door_without_a_token_describes_nothing(tmp_path):
  hosted = hosts.host(tmp_path / "s.sqlite")
  with (
    hosts.Http(hosted, tmp_path, token="some-token") as http,
    httpx.Client(base_url=http.url, trust_env=False) as browser,
  ):
    for path in ("/openapi.json", "/docs", "/redoc"):
      assert browser.get(path).status_code == 404


def test_web_pages_and_rebound_names_are_refused(tmp_path):
  hosted = hosts.host(tmp_path / "s.sqlite")
  with (
    hosts.Http(hosted, tmp_path) as http,
    httpx.Client(base_url=http.url, trust_env=False) as browser,
  ):
    # What a page of another site may send without being asked for consent.
    found = browser.post("/jobs/rewind", content=b'{"seq":0}')
    assert found.status_code == 400
    found = browser.get("/health", headers={"Host": "evil.example:8700"})
    assert found.status_code == 401
    for host in ("localhost:1", "[::1]:1", "127.0.0.1"):
      assert browser.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
  ("name", "body"),
  [
    ("poll", b"{"),
    ("poll", b"[]"),
    ("poll", b"{}"),
    ("poll", b'{"step":"1","count":4}'),
    ("poll", b'{"step":true,"count":4}'),
    ("poll", b'{"step":1,"count":4,"more":1}'),
    ("grade", b'{"step":1,"groups":[1]}'),
    ("grade", b'{"step":1,"groups":7}'),
    ("close", b"{}"),
    ("rewind", b"\xff"),
  ],
)
def test_malformed_calls_are_refused(name, body):
  with pytest.raises(ValueError):
    wire.read_call(name, body)


def test_mistakes_of_the_service_come_with_its_own_words(tmp_path, caplog):
  hosted = hosts.host(tmp_path / "s.sqlite")

  def broken(step, count):
    raise KeyError("gone")

  hosted.poll = broken
  with (
    hosts.Http(hosted, tmp_path) as http,
    contextlib.closing(hosts.client(http.url)) as service,
  ):
    with pytest.raises(wire.RemoteBug, match="KeyError: 'gone'"):
      service.poll(0, 4)
  assert "KeyError" in caplog.text


def test_a_whole_step_of_long_answers_goes_through(tmp_path):
  """64 tasks of 8 rollouts of 8,000 characters and tokens."""
  hosted = hosts.host(tmp_path / "s.sqlite")
  text = "Nobody knows of it. " * 400
  groups = []
  for number in range(64):
    task = fakes.task(task_id=f"t{number:06d}")
    rollouts = [
      dataclasses.replace(
        fakes.rollout(task, n, text),
        tokens=tuple(range(8000)),
        logprobs=(-0.5,) * 8000,
        mask=(1,) * 8000,
      )
      for n in range(8)
    ]
    groups.append((task, rollouts))
  sent = wire.pack([wire.Answers.of(*group) for group in groups])
  assert len(sent) < 1.2 * 64 * 8 * len(text)
  with (
    hosts.Http(hosted, tmp_path) as http,
    contextlib.closing(hosts.client(http.url)) as service,
  ):
    graded = service.grade(0, groups)
    assert [len(group.answers) for group in graded] == [8] * 64
    assert graded[-1].answers[-1].answer == text
    assert service.report(0, graded)["pool/evicted"] >= 0


def test_notices_reach_the_trainer_once(tmp_path):
  told = []
  chat = Held()
  hosted = held_host(chat, tmp_path / "s.sqlite")
  with hosts.Http(hosted, tmp_path) as http:
    service = hosts.client(http.url, notify=told.append)
    with contextlib.closing(service):
      with in_thread(lambda: service.grade(0, [judged_task()])):
        assert chat.asked.wait(60)
        hosted.notices.say("The judge is away: no route to it.")
        hosted.notices.say("The judge is back.")
        chat.free.set()
  assert told == ["The judge is away: no route to it.", "The judge is back."]


def test_exposure_needs_a_token():
  http_process.check_exposure("127.0.0.1", "", token_env="T")
  http_process.check_exposure("127.8.8.8", "", token_env="T")
  http_process.check_exposure("::1", "", token_env="T")
  http_process.check_exposure("0.0.0.0", "secret", token_env="T")
  for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
    with pytest.raises(ListenError, match=r"needs a token: set MINE"):
      http_process.check_exposure(host, "", token_env="MINE")


def test_a_taken_port_is_one_sentence():
  with http_process.listen("127.0.0.1", 0) as taken:
    with pytest.raises(ListenError, match="--port"):
      http_process.listen("127.0.0.1", taken.getsockname()[1])


def test_health_says_where_the_service_stands(tmp_path):
  totals = {"calls/judge/calls": 2.0}
  hosted = hosts.host(tmp_path / "s.sqlite", meter=lambda: totals)
  with (
    hosts.Http(hosted, tmp_path) as http,
    contextlib.closing(hosts.client(http.url)) as service,
  ):
    service.poll(3, 4)
    service.measures(3)
    found = service.check()
  assert found["step"] == 3
  assert found["event_number"] > 0
  assert found["usage"] == totals
  assert found["measures"]["service/loop_lag_s"] >= 0
  json.dumps(to_json(found))
