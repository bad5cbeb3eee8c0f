"""The service as a process: what it loads, how it ends, what it refuses."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.service import hosts
from varl_jax.config import from_config_dict

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1"}
SCRIPT = """
import sys
from absl import app
from varl_jax import serve
from varl_jax.command_line import parse

def main(argv):
  code = serve.main(argv)
  heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "torch", "tensorflow"}
  print("heavy:", sorted(heavy & set(sys.modules)))
  return code

app.run(main, flags_parser=parse)
"""


def command(workdir, *flags):
  return [
    sys.executable,
    "-c",
    SCRIPT,
    "--config=configs/story.py",
    f"--workdir={workdir}",
    "--port=0",
    *flags,
  ]


def refused(workdir, *flags, environment=ENVIRONMENT):
  done = subprocess.run(
    command(workdir, *flags),
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2, done.stdout + done.stderr
  assert "Traceback" not in done.stderr, done.stderr
  said = [s for s in done.stderr.splitlines() if s.startswith("varl_jax: ")]
  assert len(said) == 1, done.stderr
  return said[0]


@contextlib.contextmanager
def serving(workdir, *flags, environment=ENVIRONMENT):
  """A service process and its address; killed if the test has not ended it."""
  process = subprocess.Popen(
    command(workdir, *flags),
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, process.communicate(timeout=60)
    yield process, found[0]
  finally:
    process.kill()
    process.communicate()


def fingerprint():
  from configs import story

  return from_config_dict(story.get_config()).fingerprint()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_with_its_state_saved_and_no_jax(tmp_path, number):
  with serving(tmp_path) as (process, url):
    service = hosts.client(url, fingerprint=fingerprint())
    with contextlib.closing(service):
      assert service.check()["event_number"] == 0
      tasks = service.poll(1, 2)
      reached = service.event_number()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Stopped, state saved" in output
    assert "heavy: []" in output
    assert errors == ""
  with serving(tmp_path) as (process, url):
    service = hosts.client(url, fingerprint=fingerprint())
    with contextlib.closing(service):
      assert service.event_number() == reached
      assert service.poll(1, 2) == tasks


def test_a_second_service_on_the_store_is_refused(tmp_path):
  with serving(tmp_path) as (_, url):
    assert "in use by another process" in refused(tmp_path)
    service = hosts.client(url, fingerprint=fingerprint())
    with contextlib.closing(service):
      assert service.event_number() == 0


def test_another_config_of_the_folder_is_refused(tmp_path):
  with serving(tmp_path):
    pass
  assert "another config" in refused(tmp_path, "--config.seed=5")


def test_other_machines_need_a_token(tmp_path):
  assert "set VARL_JAX_TOKEN" in refused(tmp_path / "run", "--host=0.0.0.0")
  assert not (tmp_path / "run").exists()
  secret = "planted-secret-token"
  environment = ENVIRONMENT | {"VARL_JAX_TOKEN": secret}
  with serving(tmp_path / "run", "--host=0.0.0.0", environment=environment) as (
    process,
    url,
  ):
    url = url.replace("0.0.0.0", "127.0.0.1")
    service = hosts.client(url, fingerprint=fingerprint(), token=secret)
    with contextlib.closing(service):
      service.check()
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
  assert secret not in output + errors
  for path in (tmp_path / "run").rglob("*"):
    assert secret.encode() not in path.read_bytes()


TEMPLATE = """{conversation} {criterion}
Is it met? Say Yes or No.
"""


def test_an_edited_judge_template_is_another_run(tmp_path):
  path = tmp_path / "grader.txt"
  path.write_text(TEMPLATE)
  flag = f"--config.judge.template_path={path}"
  with serving(tmp_path / "run", flag):
    pass
  with serving(tmp_path / "run", flag):
    pass
  path.write_text(TEMPLATE + "Be lenient.\n")
  said = refused(tmp_path / "run", flag)
  assert "another config (judge.template_sha256)" in said


def test_a_missing_template_is_told_before_the_folder_is_made(tmp_path):
  flag = f"--config.judge.template_path={tmp_path / 'none.txt'}"
  assert "No such file" in refused(tmp_path / "run", flag)
  assert not (tmp_path / "run").exists()


def test_a_missing_key_is_told_before_the_folder_is_made(tmp_path):
  said = refused(
    tmp_path / "run",
    "--config.endpoints.roles.model=some-model",
    "--config.endpoints.roles.api_key_env=NOT_SET",
  )
  assert "NOT_SET is not set" in said
  assert not (tmp_path / "run").exists()


def test_what_the_system_refuses_is_said_with_its_mend(tmp_path):
  (tmp_path / "file").write_text("x")
  said = refused(tmp_path / "file" / "run")
  assert "Not a directory" in said and "Errno" not in said
  assert "run the same command once it is mended" in said


def test_bad_input_is_one_sentence(tmp_path):
  assert "extra" in refused(tmp_path / "run", "extra")
  assert "moon" in refused(tmp_path / "run", "--config.domain=moon")
  assert "magic" in refused(tmp_path / "run", "--config.method.name=magic")
  assert "--host" in refused(tmp_path / "run", "--host=127.0.0.1.1")
  assert "NOT_SET" in refused(
    tmp_path / "run", "--config.service.store_env=NOT_SET"
  )
  assert "letters" in refused(
    tmp_path / "run", environment=ENVIRONMENT | {"VARL_JAX_TOKEN": "a b"}
  )
