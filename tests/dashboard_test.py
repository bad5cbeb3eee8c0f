"""The dashboard follows a folder it never touches, and lets nobody else in."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from tests.report_runs import (
  EVIL,
  case,
  case_events,
  kept_line,
  patch,
  record,
  write_run,
  write_store,
)
from varl_jax import dashboard
from varl_jax.config import Config
from varl_jax.metrics import MetricsWriter
from varl_jax.report_data import ReportError
from varl_jax.run_reader import RunReader, Tail
from varl_jax.service import http_process
from varl_jax.service.http_process import ListenError
from varl_jax.service.store import Store

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

TOKEN = "a-token-of-some-length"


@pytest.fixture
def run(tmp_path):
  folder = tmp_path / "run"
  folder.mkdir()
  made = case()
  write_run(folder, config=Config().to_dict(), kept=[kept_line(3)])
  write_store(folder, [record(made, patch(made))])
  return folder


class Served:
  """A dashboard behind real HTTP, until closed."""

  def __init__(self, folder, *, token=""):
    from varl_jax.dashboard_app import make_app

    self._socket = http_process.listen("127.0.0.1", 0)
    self.url = http_process.address(self._socket)
    ready = threading.Event()
    self._server = http_process.make_server(
      make_app(RunReader(folder), token=token), ready=ready.set
    )
    self._thread = threading.Thread(
      target=self._server.run, kwargs={"sockets": [self._socket]}
    )
    self._thread.start()
    assert ready.wait(30)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._server.should_exit = True
    self._thread.join(30)
    self._socket.close()


@pytest.fixture
def client(run):
  with Served(run) as served, httpx.Client(base_url=served.url) as made:
    yield made


def index(text, kind):
  mark = f'class="index" data-kind="{kind}">'
  text = text[text.index(mark) + len(mark) :]
  return json.loads(text[: text.index("</script>")])["rows"]


def test_news_reach_the_page(client, run):
  first = client.get("/").text
  assert f'data-live="{client.get("/version").json()["version"]}"' in first
  assert "0.420" in first
  assert [row[0] for row in index(first, "cases")] == ["case0"]
  store = Store(run / "service.sqlite")  # a run that goes on
  more = case(1, step=4)
  store.commit(list(case_events(record(more, patch(more)))))
  with MetricsWriter(run) as writer:
    writer.write(3, {"reward/mean": 0.75})
  with open(run / "metrics.jsonl", "ab") as file:
    file.write(b'{"step": 4, "rewa')  # a line on its way
  later = client.get("/").text
  assert later != first
  assert "0.750" in later
  rows = index(later, "cases")
  assert [row[0] for row in rows] == ["case1", "case0"]
  assert "keyword stuffing" in rows[0][2]
  version = client.get("/version").json()["version"]
  assert f'data-live="{version}"' in later
  assert client.get("/version").json()["version"] == version
  store.rewind(2)  # the run goes back to its checkpoint
  with MetricsWriter(run) as writer:
    writer.rewind(1)
  back = client.get("/").text
  assert "0.750" not in back
  assert [row[0] for row in index(back, "cases")] == ["case0"]
  store.close()


def test_fragments_are_those_of_the_report(client):
  shown = client.get("/cases/case0").text
  assert '<tr class="added">' in shown
  assert "#rollouts/3.task0.0" in shown
  answer = client.get("/rollouts/3.task0.0").text
  assert '<p class="tokens">' in answer
  assert "#cases/case0" in answer
  assert client.get("/cases/..%2Fconfig.json").status_code == 404
  for path in ("/cases/none", "/rollouts/1.none.0"):
    found = client.get(path)
    assert found.status_code == 404
    assert found.text == "There is none of that name."


def test_a_model_cannot_write_html(run):
  made = case(7, text=EVIL)
  store = Store(run / "service.sqlite")
  store.commit(list(case_events(record(made, patch(made)))))
  store.close()
  with Served(run) as served, httpx.Client(base_url=served.url) as client:
    for text in (client.get("/").text, client.get("/cases/case7").text):
      assert "<script>alert" not in text
      assert "<img" not in text


def test_every_answer_forbids_what_a_page_need_not_do(client):
  for path in ("/", "/version", "/cases/case0", "/cases/none", "/nowhere"):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_nothing_can_be_changed(client, run):
  before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
  for method in ("POST", "PUT", "DELETE", "PATCH"):
    assert client.request(method, "/").status_code == 405
  client.get("/")
  after = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
  assert {n: t for n, t in after.items() if n in before} == before
  assert set(after) - set(before) <= {
    "service.sqlite-shm",
    "service.sqlite-wal",
  }


def test_without_a_token_only_this_machine_is_answered(client):
  found = client.get("/", headers={"Host": "elsewhere.example"})
  assert found.status_code == 401
  assert "only this machine" in found.text
  assert client.get("/", headers={"Host": "localhost:1"}).status_code == 200


def test_a_token_opens_every_path_and_leaves_the_address(run):
  with Served(run, token=TOKEN) as served:
    with httpx.Client(base_url=served.url) as client:
      for path in ("/", "/version", "/cases/case0", "/?token=wrong"):
        assert client.get(path).status_code == 401
      found = client.get(f"/?token={TOKEN}")
      assert found.status_code == 303
      assert found.headers["location"] == "/"
      cookie = found.headers["set-cookie"].lower()
      assert "httponly" in cookie
      assert "samesite=lax" in cookie
      page = client.get("/")
      assert page.status_code == 200
      assert TOKEN not in page.text


@pytest.mark.parametrize(
  ("host", "token", "words"),
  [
    ("0.0.0.0", "", "needs a token: set VARL_JAX_TOKEN"),
    ("127.0.0.1", "short", "must be 16 or more"),
    ("0.0.0.0", "has spaces and ; in it", "must be 16 or more"),
  ],
)
def test_what_would_show_the_run_to_strangers_is_refused(host, token, words):
  with pytest.raises(ListenError, match=words):
    dashboard.check(host, token, token_env="VARL_JAX_TOKEN")


def test_safe_addresses_are_let_through():
  for host, token in (("127.0.0.1", ""), ("::1", ""), ("0.0.0.0", TOKEN)):
    dashboard.check(host, token, token_env="VARL_JAX_TOKEN")


def test_wrong_input_is_one_sentence_and_exit_code_2(run, capsys, monkeypatch):
  monkeypatch.delenv("VARL_JAX_TOKEN", raising=False)
  assert dashboard.main([str(run / "none")]) == 2
  assert "There is no run folder at" in capsys.readouterr().err
  with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    assert dashboard.main([str(run), f"--port={port}"]) == 2
  told = capsys.readouterr().err
  assert "choose another --host or --port" in told
  assert told.count("\n") == 1


def test_the_command_serves_until_a_signal(run):
  process = subprocess.Popen(
    [sys.executable, "-m", "varl_jax.dashboard", str(run), "--port=0"],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"VARL_JAX_TOKEN": ""},
  )
  assert process.stdout is not None
  with process:
    line = process.stdout.readline()
    assert line.startswith(f"Showing {run} at http://127.0.0.1:"), (
      process.stderr and process.stderr.read()
    )
    assert httpx.get(line.split()[-1]).status_code == 200
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_has_hardly_begun_has_a_page(tmp_path, steps):
  if steps:
    write_run(tmp_path, steps=1)
  with Served(tmp_path) as served:
    text = httpx.get(served.url).text
  assert ("recorded no step yet" in text) == (steps == 0)
  assert "No exploit case yet." in text


def test_damage_is_said_and_goes_away_when_it_is_mended(run):
  with Served(run) as served, httpx.Client(base_url=served.url) as client:
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"no\n" + whole)
    found = client.get("/version")
    assert found.status_code == 500
    assert "Line 1 of" in found.text
    (run / "metrics.jsonl").write_bytes(whole)
    assert client.get("/version").status_code == 200


def test_lines_are_read_once_and_torn_ones_wait(tmp_path):
  path = tmp_path / "lines.jsonl"
  tail = Tail(path)
  assert not tail.refresh()
  whole = b'{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n'
  seen = []
  for cut in range(len(whole) + 1):
    with open(path, "ab") as file:
      file.write(whole[max(0, cut - 1) : cut])
    tail.refresh()
    seen.append([found["step"] for found in tail.records])
  assert seen[-1] == [1, 2]
  assert seen[19] == []
  assert seen[20] == seen[38] == [1]
  os.truncate(path, 20)
  assert tail.refresh()
  assert [found["step"] for found in tail.records] == [1]
  path.unlink()
  assert tail.refresh()
  assert tail.records == []


def test_a_folder_that_is_gone_is_said(tmp_path):
  folder = tmp_path / "run"
  folder.mkdir()
  reader = RunReader(folder)
  folder.rmdir()
  with pytest.raises(ReportError, match="is gone"):
    reader.refresh()
