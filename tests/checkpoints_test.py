import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.checkpoints import CheckpointError, Checkpoints, SaveError
from varl_jax.config import TrainConfig
from varl_jax.rl.train_step import TrainState, make_optimizer

META = {"event_number": 10**12 + 1, "seed": 3, "fingerprint": "ab" * 8}


def make_state(seed=0):
  rng = np.random.default_rng(seed)
  params = {
    "params": {
      "a": jnp.asarray(rng.normal(size=(5, 3)), jnp.float32),
      "b": {"kernel": jnp.asarray(rng.normal(size=4), jnp.bfloat16)},
    }
  }
  params["params"]["a"] = params["params"]["a"].at[0, 0].set(-0.0)
  return TrainState(
    params=params,
    opt_state=make_optimizer(TrainConfig()).init(params),
    updates=jnp.int32(7),
  )


def bits(tree):
  return [
    (str(path), leaf.dtype, leaf.shape, np.asarray(leaf).tobytes())
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run") / "checkpoints"
  checkpoints = Checkpoints(folder=folder, keep=2)
  for step in (5, 10, 15):
    checkpoints.save(step, make_state(step), META)
  return folder


@pytest.fixture
def folder(saved, tmp_path):
  """A copy of two checkpoints that a test may spoil."""
  return pathlib.Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def test_bit_exact_with_its_metadata(saved):
  checkpoints = Checkpoints(folder=saved)
  for step in (10, 15):
    state, meta = checkpoints.restore(step, make_state(0))
    assert bits(state) == bits(make_state(step))
    assert isinstance(state, TrainState)
    assert meta == META | {"step": step}
  assert checkpoints.meta(15) == META | {"step": 15}


def test_restores_into_an_abstract_state(saved):
  like = jax.eval_shape(make_state)
  state, _ = Checkpoints(folder=saved).restore(15, like)
  assert bits(state) == bits(make_state(15))


def test_keeps_the_newest(saved):
  assert sorted(p.name for p in saved.iterdir()) == ["10", "15"]
  assert Checkpoints(folder=saved).steps() == [10, 15]


def test_nothing_saved_yet(tmp_path):
  checkpoints = Checkpoints(folder=tmp_path / "none")
  assert checkpoints.latest() is None
  with pytest.raises(CheckpointError, match="steps there: none"):
    checkpoints.restore(1, make_state())


@pytest.mark.parametrize(
  "missing",
  [
    "_CHECKPOINT_METADATA",
    "meta/metadata",
    "state/_METADATA",
    "state/manifest.ocdbt",
    "state",
    "meta",
  ],
)
def test_half_written_folder_is_ignored(folder, missing):
  path = folder / "15" / missing
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  assert Checkpoints(folder=folder).latest() == 10


def test_unreadable_metadata_and_foreign_names_are_ignored(folder):
  (folder / "15" / "meta" / "metadata").write_text('{"me')
  (folder / "20").mkdir()
  (folder / "notes").mkdir()
  (folder / "25.orbax-checkpoint-tmp").mkdir()
  assert Checkpoints(folder=folder).steps() == [10]


def test_leftovers_neither_block_nor_count(folder):
  (folder / "20" / "state").mkdir(parents=True)
  (folder / "30").mkdir()
  (folder / "20.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  (folder / "5.removed").mkdir()
  (folder / "notes").mkdir()
  checkpoints = Checkpoints(folder=folder, keep=2)
  checkpoints.save(20, make_state(20), META)
  assert checkpoints.steps() == [15, 20]
  names = {p.name for p in folder.iterdir()}
  assert names == {"15", "20", "30", "notes"}
  assert bits(checkpoints.restore(20, make_state())[0]) == bits(make_state(20))


def test_a_step_is_saved_once(folder):
  with pytest.raises(CheckpointError, match="Step 15 already has"):
    Checkpoints(folder=folder).save(15, make_state(), META)


@pytest.mark.parametrize(
  ("spoil", "message"),
  [
    (lambda p: p | {"c": jnp.zeros(1)}, r"it lacks .*'c'"),
    (lambda p: {"a": p["a"]}, r"its .*'kernel'.* has no place"),
    (lambda p: p | {"a": jnp.zeros((3, 5))}, r"\[5, 3\] there and"),
    (lambda p: p | {"a": jnp.zeros((5, 3), jnp.bfloat16)}, "bfloat16"),
  ],
  ids=["missing", "left over", "shape", "type"],
)
def test_another_structure_is_refused(saved, spoil, message):
  state = make_state()
  like = TrainState(
    params={"params": spoil(state.params["params"])},
    opt_state=state.opt_state,
    updates=state.updates,
  )
  with pytest.raises(CheckpointError, match=message):
    Checkpoints(folder=saved).restore(15, like)


def test_damaged_arrays_are_an_error(folder):
  for path in (folder / "15" / "state").rglob("d/*"):
    path.write_bytes(b"")
  with pytest.raises(CheckpointError, match="Could not restore"):
    Checkpoints(folder=folder).restore(15, make_state())


def one_sentence(error):
  text = str(error.value)
  return "\n" not in text and text.endswith(".") and not text.endswith("..")


def test_full_disk_is_one_sentence_and_older_ones_stay(folder, monkeypatch):
  usage = shutil.disk_usage(folder)._replace(free=10)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
  checkpoints = Checkpoints(folder=folder)
  with pytest.raises(CheckpointError, match=r"the disk has 0\.0 MiB") as error:
    checkpoints.save(20, make_state(), META)
  assert one_sentence(error)
  assert checkpoints.steps() == [10, 15]


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(CheckpointError, match="Could not save") as error:
    Checkpoints(folder=tmp_path / "file" / "x").save(1, make_state(), META)
  assert one_sentence(error)


def test_metadata_that_is_not_json(tmp_path):
  for bad in (object(), float("nan")):
    with pytest.raises(CheckpointError, match="step 1") as error:
      Checkpoints(folder=tmp_path).save(1, make_state(), {"x": bad})
    assert one_sentence(error)


def test_failure_inside_the_writer(folder, monkeypatch):
  import orbax.checkpoint as ocp

  def fail(self, *args, **kwargs):
    raise ValueError("RESOURCE_EXHAUSTED: write failed.\nSource lines: 1")

  monkeypatch.setattr(ocp.Checkpointer, "save", fail)
  with pytest.raises(CheckpointError, match="write failed") as error:
    Checkpoints(folder=folder).save(20, make_state(), META)
  assert one_sentence(error)


def test_in_the_background_a_save_ends_in_wait(folder):
  checkpoints = Checkpoints(folder=folder, background=True)
  for step in (20, 25):  # the second waits for the first
    checkpoints.save(step, make_state(step), META)
  assert checkpoints.steps()[:2] == [15, 20]
  checkpoints.wait()
  checkpoints.wait()
  assert checkpoints.steps() == [20, 25]
  assert bits(checkpoints.restore(25, make_state())[0]) == bits(make_state(25))


def test_a_failure_in_the_background_is_raised_by_who_waits(
  folder, monkeypatch
):
  import orbax.checkpoint as ocp

  finish = ocp.AsyncCheckpointer.wait_until_finished

  def fail(self):
    finish(self)
    raise ValueError("RESOURCE_EXHAUSTED: write failed.\nSource lines: 1")

  checkpoints = Checkpoints(folder=folder, background=True)
  checkpoints.save(20, make_state(), META)
  with monkeypatch.context() as patch:
    patch.setattr(ocp.AsyncCheckpointer, "wait_until_finished", fail)
    with pytest.raises(SaveError, match=r"step 20.*write failed") as error:
      checkpoints.save(25, make_state(), META)
  assert one_sentence(error)
  checkpoints.wait()


def test_schedule():
  checkpoints = Checkpoints(folder=pathlib.Path("x"), interval=5)
  assert [s for s in range(12) if checkpoints.due(s)] == [5, 10]
