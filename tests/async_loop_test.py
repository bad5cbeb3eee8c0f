"""Overlapping steps: order, age of samples, records, restarts, failures."""

import contextlib
import dataclasses
import json
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import fakes
from varl_jax import config as configs
from varl_jax.async_loop import AsyncTrainer, admitted
from varl_jax.checkpoints import Checkpoints
from varl_jax.group_queue import GroupQueue
from varl_jax.methods import METHODS
from varl_jax.metrics import MetricsWriter, Progress, read_metrics
from varl_jax.rl.train_step import TrainState
from varl_jax.rollouts import Group
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.store import Store
from varl_jax.timeline import FILE_NAME, STAGES, Timeline, read_timeline
from varl_jax.trainer import Trainer, TrainingFailure
from varl_jax.types import GradedGroup

PATIENCE_S = 60.0


class Crash(Exception):
  """Stands for a process that is gone."""


def settings_of(staleness, *, steps=6, **train):
  base = fakes.config(eval__interval=2, checkpoint__interval=2)
  return dataclasses.replace(
    base,
    train=dataclasses.replace(
      base.train, staleness=staleness, steps=steps, **train
    ),
  )


@dataclasses.dataclass
class Device:
  """Samples and updates; weights are the number of the update.

  `log` has everything the device does, in order.
  """

  log: list = dataclasses.field(default_factory=list)
  fail_at: int = 0

  def init(self, params):
    return state_of(params)

  def collect(self, tasks, *, n, params, step):
    version = int(params["w"])
    self.log.append(("sample" if n > 1 else "examine", step, version))
    return [
      Group(
        task=task,
        prompt=(1, 2),
        rollouts=tuple(fakes.rollouts(task, step, n)),
      )
      for task in tasks
    ]

  def update(self, state, batch):
    version = int(state.params["w"])
    self.log.append(("update", version + 1))
    if version + 1 == self.fail_at:
      return state, {"train/nonfinite": 1.0, "train/updates": 0.0}
    new = state_of({"w": version + 1})
    for leaf in jax.tree.leaves(state):
      leaf.delete()  # as a donated buffer is
    return new, {
      "train/nonfinite": 0.0,
      "train/updates": 1.0,
      "train/tokens": float(batch.mask.sum()),
    }


def state_of(params):
  weight = jnp.asarray(params["w"])
  return TrainState(params={"w": weight}, opt_state=(), updates=weight * 1)


@dataclasses.dataclass
class Validator:
  fails: bool = False

  @property
  def tasks(self):
    return [fakes.task(task_id="held_out")]

  def score(self, tasks, answers):
    if self.fails:
      raise ServiceFailure("The judge of the validation is down.")
    return {"eval/score": 0.5}


class Service:
  """The real one, which may crash, fail or wait at a call of a step."""

  def __init__(self, folder, config, *, hooks=None):
    self.inner = METHODS["rri"](
      config,
      roles=fakes.roles(),
      store=Store(folder / "service.sqlite"),
      checks=fakes.CHECKS,
      verifiers=fakes.CHECKS.describe(),
    )
    self.hooks = hooks or {}

  def _at(self, name, step):
    hook = self.hooks.get((name, step))
    if hook is not None:
      hook()

  def poll(self, step, count):
    self._at("poll", step)
    found = self.inner.poll(step, count)
    self._at("polled", step)
    return found

  def grade(self, step, groups, others=None):
    self._at("grade", step)
    found = self.inner.grade(step, groups, others)
    self._at("graded", step)
    return found

  def report(self, step, groups, suspicion=None):
    self._at("report", step)
    found = self.inner.report(step, groups, suspicion)
    self._at("reported", step)
    return found

  def rankings(self, step):
    return self.inner.rankings(step)

  def measures(self, step):
    return {}

  def event_number(self):
    return self.inner.event_number()

  def rewind(self, seq):
    self.inner.rewind(seq)

  def close(self):
    self.inner.close()


class Kept(Checkpoints):
  """Checkpoints in memory: Orbax has tests of its own."""

  kept: dict

  def save(self, step, state, meta):
    assert step not in self.kept
    found = jax.tree.map(np.array, state)
    self.kept[step] = (found, dict(meta))

  def steps(self):
    return sorted(self.kept)

  def damaged(self):
    return []

  def restore(self, step, like):
    found, meta = self.kept[step]
    return jax.tree.map(jnp.asarray, found), meta


def checkpoints(folder, kept, interval=2):
  made = Kept(folder=folder / "checkpoints", interval=interval)
  object.__setattr__(made, "kept", kept)
  return made


def run(
  folder,
  config,
  *,
  kept=None,
  hooks=None,
  validator=None,
  kind=AsyncTrainer,
  stop_after=None,
  **device,
):
  """Trains in `folder`; returns the device and the final weights' number."""
  spied = Device(**device)
  service = Service(folder, config, hooks=hooks)
  metrics = MetricsWriter(folder)
  trainer = kind(
    config=config,
    service=service,
    worker=spied,
    examiner=spied,
    learner=spied,
    checkpoints=checkpoints(folder, {} if kept is None else kept),
    metrics=metrics,
    progress=Progress(total=config.train.steps),
    validator=validator,
    timeline=Timeline(folder / FILE_NAME),
    interrupted=lambda: ("update", stop_after) in spied.log,
  )
  with contextlib.closing(metrics), contextlib.closing(service):
    state, done = trainer.run({"w": 0})
  return spied, int(state.params["w"]), done


def events(folder):
  with contextlib.closing(
    Store(folder / "service.sqlite", read_only=True)
  ) as store:
    return list(store.events())


def assert_exactly_once(folder, steps):
  """Every step is reported once, and every piece of evidence is there once."""
  found = events(folder)
  reported = [e.step for e in found if e.kind == "reported"]
  assert reported == list(range(1, steps + 1))
  assert [e.step for e in found if e.kind == "windows"] == reported
  cases = [e.payload["case"]["case_id"] for e in found if e.kind == "case"]
  assert len(set(cases)) == len(cases)
  patches = [
    (e.payload["patch"]["case_id"], e.payload["patch"]["round"])
    for e in found
    if e.kind == "patch"
  ]
  assert patches and len(set(patches)) == len(patches)
  # Reports and evidence of a step are together, none of it of a lost life.
  assert {e.step for e in found if e.kind in ("case", "patch")} <= set(reported)
  with contextlib.closing(
    Store(folder / "service.sqlite", read_only=True)
  ) as store:
    rows = store.rows("SELECT case_id FROM cases")
    assert sorted(row[0] for row in rows) == sorted(cases)
  records = [r["step"] for r in read_metrics(folder)]
  assert [r for r in records if r] == list(range(1, steps + 1))


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_device_samples_ahead_by_the_staleness(tmp_path, ahead):
  device, weights, done = run(tmp_path, settings_of(ahead))
  assert (weights, done) == (6, 6)
  expected, sampled = [], 0
  for update in range(1, 7):
    while sampled < min(6, update + ahead):
      sampled += 1
      expected.append(("sample", sampled, update - 1))
    expected.append(("update", update))
  assert device.log == expected
  ages = [r["staleness/mean"] for r in read_metrics(tmp_path)]
  assert ages == [min(ahead, step) for step in range(6)]
  assert all(r["staleness/refused"] == 0 for r in read_metrics(tmp_path))
  assert_exactly_once(tmp_path, 6)


def test_without_staleness_it_does_what_the_plain_loop_does(tmp_path):
  """The same order of calls and so the same events, up to the evaluation."""
  logs = []
  for kind in (Trainer, AsyncTrainer):
    folder = tmp_path / kind.__name__
    folder.mkdir()
    device, weights, _ = run(folder, settings_of(0, steps=4), kind=kind)
    kinds = [(e.uid, e.payload) for e in events(folder) if e.kind == "patch"]
    logs.append((device.log, weights, kinds[:1]))
  assert logs[0] == logs[1]


def test_judging_and_repair_overlap_the_device(tmp_path):
  """Verdicts wait for the next step's sampling, repairs for its update.

  In a loop without overlap neither would come.
  """
  sampled, updated = threading.Event(), threading.Event()
  config = settings_of(1)

  def wait(event):
    assert event.wait(PATIENCE_S)

  class Signalling(Device):
    def collect(self, tasks, *, n, params, step):
      if step == 2:
        sampled.set()
      return super().collect(tasks, n=n, params=params, step=step)

    def update(self, state, batch):
      if int(state.params["w"]) == 1:
        updated.set()
      return super().update(state, batch)

  globals_device = Signalling()
  service = Service(
    tmp_path,
    config,
    hooks={
      ("grade", 1): lambda: wait(sampled),
      ("report", 1): lambda: wait(updated),
    },
  )
  with (
    contextlib.closing(MetricsWriter(tmp_path)) as metrics,
    contextlib.closing(service),
  ):
    AsyncTrainer(
      config=config,
      service=service,
      worker=globals_device,
      examiner=globals_device,
      learner=globals_device,
      checkpoints=checkpoints(tmp_path, {}),
      metrics=metrics,
      progress=Progress(total=6),
      timeline=Timeline(tmp_path / FILE_NAME),
    ).run({"w": 0})
  spans = {(s.step, s.stage): s for s in read_timeline(tmp_path)}
  assert spans[1, "judge"].end >= spans[2, "sample"].start
  assert spans[1, "repair"].end >= spans[2, "update"].start
  assert_exactly_once(tmp_path, 6)


def test_evaluation_is_sampled_between_updates_and_scored_beside(tmp_path):
  """The score of step 2 comes when step 3 is trained already."""
  trained = threading.Event()

  class Slow(Validator):
    asked = 0

    def score(self, tasks, answers):
      self.asked += 1
      if self.asked == 2:
        assert trained.wait(PATIENCE_S)
      return {"eval/score": self.asked / 10}

  device, *_ = run(
    tmp_path,
    settings_of(1),
    validator=Slow(),
    hooks={("report", 3): trained.set},
  )
  examined = [entry for entry in device.log if entry[0] == "examine"]
  assert examined == [("examine", s, s) for s in (0, 2, 4, 6)]
  at = device.log.index(("examine", 2, 2))
  assert device.log[at - 1] == ("update", 2)
  scores = {r["step"]: r.get("eval/score") for r in read_metrics(tmp_path)}
  assert scores == {0: 0.1, 1: None, 2: 0.2, 3: None, 4: 0.3, 5: None, 6: 0.4}


def test_checkpoints_hold_a_whole_step_of_both_sides(tmp_path):
  """Weights after the update; events up to the end of that step's report."""
  kept = {}
  run(tmp_path, settings_of(2), kept=kept)
  assert sorted(kept) == [2, 4, 6]
  logged = events(tmp_path)
  for step, (state, meta) in kept.items():
    assert int(state.params["w"]) == step
    before = logged[: meta["event_number"]]
    done = [e.step for e in before if e.kind == "reported"]
    assert done == list(range(1, step + 1))
    assert max(e.step for e in before if e.kind == "windows") == step


def test_stopped_and_resumed(tmp_path):
  config, kept = settings_of(1), {}
  _, weights, done = run(tmp_path, config, kept=kept, stop_after=3)
  assert (weights, done, sorted(kept)) == (3, 3, [2, 3])
  served = {e.uid: e.payload for e in events(tmp_path) if e.kind == "served"}
  device, weights, done = run(tmp_path, config, kept=kept)
  assert (weights, done) == (6, 6)
  # What was in flight is sampled anew, of the same tasks.
  assert device.log[:2] == [("sample", 4, 3), ("sample", 5, 3)]
  again = {e.uid: e.payload for e in events(tmp_path) if e.kind == "served"}
  assert again["served/4"] == served["served/4"]
  assert_exactly_once(tmp_path, 6)


CALLS = ("poll", "polled", "grade", "graded", "report", "reported")


@settings(
  max_examples=5,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ahead=st.integers(1, 3), seed=st.integers(0, 999))
def test_crashes_anywhere_lose_and_double_nothing(
  tmp_path_factory, ahead, seed
):
  folder = tmp_path_factory.mktemp("crashes")
  config, kept = settings_of(ahead, steps=5), {}
  random_ = random.Random(seed)

  def crash():
    raise Crash

  for _ in range(3):
    place = random_.choice(CALLS), random_.randint(1, 5)
    with contextlib.suppress(Crash):
      run(folder, config, kept=kept, hooks={place: crash})
  _, weights, done = run(folder, config, kept=kept)
  assert (weights, done) == (5, 5)
  assert_exactly_once(folder, 5)


def fail():
  raise ServiceFailure("The judge is down.")


@pytest.mark.parametrize("call", ["poll", "grade", "report"])
def test_a_failing_service_ends_with_the_last_whole_step(tmp_path, call):
  config, kept = settings_of(1), {}
  with pytest.raises(ServiceFailure, match="The judge is down"):
    run(tmp_path, config, kept=kept, hooks={(call, 4): fail})
  # A failed report leaves weights that are ahead of it: the checkpoint counts.
  # Otherwise what was trained is saved; tasks of step 4 are needed in step 3.
  assert max(kept) == {"poll": 2, "grade": 3, "report": 2}[call]
  _, weights, done = run(tmp_path, config, kept=kept)
  assert (weights, done) == (6, 6)
  assert_exactly_once(tmp_path, 6)


def test_a_failed_validation_keeps_the_step_and_its_record(tmp_path):
  config, kept = settings_of(1), {}

  class Failing(Validator):
    asked = 0

    def score(self, tasks, answers):
      self.asked += 1
      if self.asked == 3:
        fail()
      return {"eval/score": 0.5}

  with pytest.raises(ServiceFailure, match="is down"):
    run(tmp_path, config, kept=kept, validator=Failing())
  assert max(kept) == 4 and kept[4][1]["pending"]
  assert max(r["step"] for r in read_metrics(tmp_path)) == 3
  device, *_ = run(tmp_path, config, kept=kept, validator=Validator())
  assert device.log[0] == ("examine", 4, 4)
  assert_exactly_once(tmp_path, 6)


def test_infinite_steps_stop_the_run(tmp_path):
  kept = {}
  with pytest.raises(TrainingFailure, match=r"train\.learning_rate"):
    run(tmp_path, settings_of(1), kept=kept, fail_at=4)
  assert max(kept) == 2


def test_several_processes_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(TrainingFailure, match=r"train\.staleness"):
    run(tmp_path, settings_of(1))


def lot_of(versions, *, version, staleness):
  """One group of which `versions` drew the samples, taken at `version`."""
  task = fakes.task()
  answers = tuple(
    fakes.graded(0.1 * index, sample=index) for index in range(len(versions))
  )
  queue = GroupQueue(depth=1, staleness=staleness)
  queue.offer(1, [task], [versions])
  queue.grade(1, [GradedGroup(task=task, step=1, answers=answers)])
  return queue.take(version=version)


def test_samples_of_the_wrong_age_are_unscorable():
  lot = lot_of((1, 2, 3, 4, 5), version=4, staleness=2)
  (group,) = admitted(lot)
  kept = [answer.score is not None for answer in group.answers]
  assert kept == [False, True, True, True, False]
  assert [answer.raw is not None for answer in group.answers] == kept
  # Their texts stay, and so does what the service knows of them.
  assert all(answer.answer is not None for answer in group.answers)


def test_a_group_with_too_few_left_is_returned_and_not_trained(tmp_path):
  """Sampled with weights of another life: step 3 is requeued as a whole."""

  class Replaced(AsyncTrainer):
    def _judge(self, lots, step, groups):
      if step == 3:
        lots._lots[3].versions = tuple(
          (9,) * len(g.rollouts) for g in lots._lots[3].groups
        )
      super()._judge(lots, step, groups)

  device, weights, done = run(tmp_path, settings_of(1), kind=Replaced)
  assert done == 6 and weights == 5
  assert device.log.count(("update", 3)) == 1
  rows = {r["step"]: r for r in read_metrics(tmp_path)}
  assert rows[3]["staleness/refused"] == 16
  assert rows[3]["reward/untrained"] == 16
  assert rows[3]["pool/requeued"] == 4
  windows = {e.step: e.payload for e in events(tmp_path) if e.kind == "windows"}
  served = {e.step: e.payload for e in events(tmp_path) if e.kind == "served"}
  names = {*served[3]["fresh"], *served[3]["replay"]}
  assert set(windows[3]["requeued"]) == names


def test_defaults_are_on_policy():
  train = configs.Config().train
  assert train.staleness == 0
  with pytest.raises(configs.ConfigError, match=r"train\.staleness"):
    configs.from_config_dict({"train": {"staleness": -1}})
  changed = dataclasses.replace(
    configs.Config(), train=dataclasses.replace(train, stall_s=1.0)
  )
  assert changed.fingerprint() == configs.Config().fingerprint()


def test_every_line_of_the_timeline_is_an_object(tmp_path):
  run(tmp_path, settings_of(1, steps=3), validator=Validator())
  lines = (tmp_path / FILE_NAME).read_text().splitlines()
  found = {(o["stage"], o["step"]) for o in map(json.loads, lines)}
  assert found >= {(stage, 2) for stage in set(STAGES) - {"checkpoint"}}
