import importlib.util
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers

from varl_jax.models import export, gguf_file, loading, tokenizer
from varl_jax.models.errors import ModelError
from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.registry import make_model as make_registered


def make_model(tied=False):
  config = LlamaConfig(
    vocab_size=12,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rope_theta=1234.0,
    rms_eps=1e-5,
    tie_embeddings=tied,
    max_position=32,
  )
  shapes = jax.eval_shape(
    Llama(config).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes
  )
  rust = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({"<eos>": 0, "a": 1, "b": 2}, "a")
  )
  backend = transformers.PreTrainedTokenizerFast(
    tokenizer_object=rust, eos_token="<eos>"
  )
  return config, params, tokenizer.Tokenizer(backend, vocab_size=12)


@pytest.fixture
def folder(tmp_path):
  config, params, words = make_model()
  loading.save_model(tmp_path, config, params, tokenizer=words)
  return tmp_path


def change_config(folder, **changes):
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change):
  file = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  safetensors.numpy.save_file(change(tensors), file)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back_bit_for_bit(tied, tmp_path):
  config, params, words = make_model(tied)
  loading.save_model(tmp_path, config, params, tokenizer=words)
  again, read, other = loading.load_model(tmp_path)
  assert again == config
  jax.tree.map(np.testing.assert_array_equal, read, params)
  assert other.stop_ids == words.stop_ids == {0}
  assert other.forbidden_ids == set(range(3, 12))


def test_stop_ids_are_gathered_from_every_file(folder):
  change_config(folder, eos_token_id=1)
  (folder / "generation_config.json").write_text('{"eos_token_id": [2]}')
  assert loading.load_model(folder)[2].stop_ids == {0, 1, 2}


def test_half_precision_shards(folder):
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  (folder / "model.safetensors").unlink()
  names = sorted(tensors)
  where = {}
  for part, chosen in enumerate((names[:5], names[5:])):
    file = f"model-{part}.safetensors"
    halves = {n: tensors[n].astype(ml_dtypes.bfloat16) for n in chosen}
    safetensors.numpy.save_file(halves, folder / file)
    where |= dict.fromkeys(chosen, file)
  index = folder / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": where}))
  _, params, _ = loading.load_model(folder)
  expected = tensors["model.norm.weight"].astype(ml_dtypes.bfloat16)
  found = params["params"]["norm"]["scale"]
  assert found.dtype == jnp.float32
  np.testing.assert_array_equal(found, expected.astype(np.float32))
  (folder / "model-1.safetensors").unlink()
  with pytest.raises(ModelError, match=r"no model-1\.safetensors"):
    loading.load_model(folder)


def test_older_configs_are_read(folder):
  change_config(
    folder, rope_theta=None, head_dim=None, rope_scaling={"type": "default"}
  )
  change_config(folder, rope_parameters={"rope_theta": 5.0})
  config, _, _ = loading.load_model(folder)
  assert (config.rope_theta, config.head_dim) == (5.0, 4)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"model_type": "qwen2"}, "holds a 'qwen2' model"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
    ({"rope_parameters": {"factor": 2.0}}, "rope parameter 'factor'"),
    ({"partial_rotary_factor": 0.5}, "partial rotary widths"),
    ({"layer_types": ["sliding_attention"]}, "type 'sliding_attention'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"model_type": "qwen3"}, "lacks the weights model.*q_norm"),
    ({"model_type": "qwen3_5"}, "does not say text_config"),
    ({"attention_bias": True}, "attention_bias True"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"vocab_size": None}, "does not say vocab_size"),
    ({"num_key_value_heads": 3}, "multiple"),
    ({"intermediate_size": 25}, "has shape"),
    ({"num_hidden_layers": 3}, "lacks the weights model.layers.2.*and 1 more"),
    ({"num_hidden_layers": 1}, "unexpected, the weights model.layers.1"),
  ],
)
def test_configs_that_do_not_fit(changes, words, folder):
  change_config(folder, **changes)
  with pytest.raises(ModelError, match=words):
    loading.load_model(folder)


def test_weights_of_a_wrong_type(folder):
  change_weights(
    folder, lambda t: t | {"model.norm.weight": np.zeros(16, np.int8)}
  )
  with pytest.raises(ModelError, match="unsupported type I8; weights are F32"):
    loading.load_model(folder)


def test_damaged_files(folder):
  file = folder / "model.safetensors"
  whole = file.read_bytes()
  file.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ModelError, match="damaged"):
    loading.load_model(folder)
  file.write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
  with pytest.raises(ModelError, match="Git LFS pointer"):
    loading.load_model(folder)
  (folder / "config.json").write_text("{")
  with pytest.raises(ModelError, match="cannot be read"):
    loading.load_model(folder)
  (folder / "config.json").unlink()
  with pytest.raises(ModelError, match=r"no config\.json"):
    loading.load_model(folder)


def test_paths_that_hold_no_model(tmp_path):
  with pytest.raises(ModelError, match="There is no model at"):
    loading.load_model(tmp_path / "missing")
  note = tmp_path / "note.txt"
  note.write_text("x")
  with pytest.raises(ModelError, match="neither"):
    loading.load_model(note)


def test_a_missing_extra_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ModelError, match=r"varl_jax\[smollm2\]"):
    loading.load_model("smollm2")


def test_rows_of_pairs_become_halves():
  rows = np.array([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15])[:, None]
  halves = gguf_file.halves(rows, 6)[:, 0]
  assert halves.tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]


def test_damaged_gguf(tmp_path):
  pytest.importorskip("gguf")
  file = tmp_path / "model.gguf"
  file.write_bytes(b"nonsense" * 10)
  with pytest.raises(ModelError, match="damaged or not GGUF"):
    loading.load_model(file)


def test_truncated_gguf(tmp_path, smollm2):
  whole = loading.smollm2_file().read_bytes()
  file = tmp_path / "model.gguf"
  for size in (1000, len(whole) // 2):
    file.write_bytes(whole[:size])
    with pytest.raises(ModelError, match="damaged or not GGUF"):
      loading.load_model(file)


def test_missing_tokenizer_file(folder):
  (folder / "tokenizer.json").unlink()
  with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
    loading.load_model(folder)


def test_a_shard_that_ends_early_or_lacks_what_the_index_says(tmp_path):
  config, params, words = make_model()
  loading.save_model(tmp_path, config, params, tokenizer=words, max_shard=6000)
  shards = sorted(tmp_path.glob("model-*.safetensors"))
  assert len(shards) > 1
  whole = shards[1].read_bytes()
  shards[1].write_bytes(whole[:-1])
  with pytest.raises(ModelError, match="truncated or damaged: it has"):
    loading.load_model(tmp_path)
  shards[1].write_bytes(shards[0].read_bytes())
  with pytest.raises(
    ModelError, match=r"lacks .*, which .*index\.json promise"
  ):
    loading.load_model(tmp_path)


HYBRID = Qwen35Config(
  vocab_size=12,
  hidden_size=16,
  intermediate_size=24,
  num_layers=4,
  num_heads=2,
  num_kv_heads=2,
  head_dim=8,
  rotary_dim=4,
  delta_k_heads=2,
  delta_v_heads=4,
  delta_k_dim=6,
  delta_v_dim=10,
)


def random_params(config, seed=0):
  model = make_registered(config)
  shapes = jax.eval_shape(
    model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes
  )


def test_hybrid_checkpoints_with_and_without_a_vision_part(tmp_path):
  params, words = random_params(HYBRID), make_model()[2]
  loading.save_model(tmp_path, HYBRID, params, tokenizer=words)
  config, read, _ = loading.load_model(tmp_path)
  assert config == HYBRID
  jax.tree.map(np.testing.assert_array_equal, read, params)
  inner = json.loads((tmp_path / "config.json").read_text())
  outer = {"model_type": "qwen3_5", "text_config": inner}
  (tmp_path / "config.json").write_text(json.dumps(outer))

  def nest(tensors):
    named = {
      name.replace("model.", "model.language_model."): array
      for name, array in tensors.items()
    }
    for name in ("model.visual.patch.weight", "mtp.fc.weight"):
      named[name] = np.zeros((2, 2), np.float32)
    return named

  change_weights(tmp_path, nest)
  config, read, _ = loading.load_model(tmp_path)
  assert config == HYBRID
  jax.tree.map(np.testing.assert_array_equal, read, params)
  change_weights(tmp_path, lambda t: t | {"draft.w": np.zeros(2, np.float32)})
  with pytest.raises(ModelError, match=r"unexpected, the weight draft\.w"):
    loading.load_model(tmp_path)


def test_roles_are_split_as_the_file_has_them(tmp_path):
  """Queries and gates alternate by head; q, k, v follow one another."""
  params = random_params(HYBRID)["params"]["layers"]
  loading.save_model(tmp_path, HYBRID, random_params(HYBRID))
  tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
  q = tensors["model.layers.3.self_attn.q_proj.weight"]
  attention = params["attention"]
  for head in range(2):
    rows = q[16 * head : 16 * head + 16]
    for name, part in (("q", rows[:8]), ("q_gate", rows[8:])):
      ours = attention[name]["kernel"][0, :, head]
      np.testing.assert_array_equal(ours, part.T)
  qkv = tensors["model.layers.1.linear_attn.in_proj_qkv.weight"]
  conv = tensors["model.layers.1.linear_attn.conv1d.weight"]
  bounds = {"q": (0, 12), "k": (12, 24), "v": (24, 64)}
  for name, (start, stop) in bounds.items():
    ours = params["delta"][name]["kernel"][0, 1].reshape(16, -1)
    np.testing.assert_array_equal(ours, qkv[start:stop].T)
    ours = params["delta"][f"{name}_conv"]["kernel"][0, 1].reshape(4, -1)
    np.testing.assert_array_equal(ours, conv[start:stop, 0].T)


def test_half_precision_parameters(folder):
  _, full, _ = loading.load_model(folder)
  _, half, _ = loading.load_model(folder, dtype=jnp.bfloat16)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a.astype(jnp.bfloat16), b),
    full,
    half,
  )


def test_an_export_replaces_a_model_and_leaves_nothing_beside(folder):
  config, params, _ = make_model()
  (folder / "note.txt").write_text("mine")
  double = jax.tree.map(lambda x: 2 * x, params)
  loading.save_model(folder, config, double, max_shard=6000)
  assert (folder / "note.txt").read_text() == "mine"
  assert not (folder / "model.safetensors").exists()
  jax.tree.map(
    np.testing.assert_array_equal, loading.load_model(folder)[1], double
  )
  loading.save_model(folder, config, params)
  assert not list(folder.glob("model-*"))
  assert not list(folder.parent.glob(f".{folder.name}*"))


def test_an_export_that_fails_changes_nothing(folder, monkeypatch):
  config, params, _ = make_model()
  before = {file.name: file.read_bytes() for file in folder.iterdir()}

  def fail(*args, **options):
    raise OSError("disk full")

  monkeypatch.setattr(export, "write_json", fail)
  with pytest.raises(OSError, match="disk full"):
    loading.save_model(folder, config, params)
  assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
  assert not list(folder.parent.glob(f".{folder.name}*"))


MEASURE = """
import gc, jax, pathlib, sys
from varl_jax.models import hf_folder
from varl_jax.models.assembly import assemble
from varl_jax.models.weights import parts

def status(key):
  for line in open("/proc/self/status"):
    if line.startswith(key):
      return int(line.split()[1]) * 1024

def load(folder):
  settings = hf_folder.read_json(folder / "config.json")
  config = hf_folder.config_from_json(settings, folder)
  weights = hf_folder.FolderWeights(folder, skip_head=config.tie_embeddings)
  table = parts(config, weights.prefix)
  return jax.block_until_ready(assemble(config, weights, folder, table=table))

folder = pathlib.Path(sys.argv[1])
params = load(folder)  # compiles
size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
del params
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak
params = load(folder)
print(size, status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
  not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc"
)
def test_peak_memory_is_one_tensor_above_the_model(tmp_path):
  config = LlamaConfig(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=2048,
    num_layers=12,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    tie_embeddings=True,
  )
  params = jax.tree.map(
    lambda x: jnp.ones(x.shape, jnp.bfloat16),
    jax.eval_shape(
      Llama(config).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
    ),
  )
  loading.save_model(tmp_path, config, params)
  # Freed blocks go back to the system at once, so that memory is what is used.
  done = subprocess.run(
    [sys.executable, "-c", MEASURE, str(tmp_path)],
    env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
    capture_output=True,
    text=True,
    check=True,
  )
  size, peak = map(int, done.stdout.split())
  largest = 4 * config.vocab_size * config.hidden_size
  print(f"model {size}, peak {peak}, largest tensor {largest} bytes")
  assert size > 10 * largest
  assert size <= peak + 2**22
  assert peak <= size + largest


SHARDED = """
import functools, jax, numpy as np, sys
from varl_jax.config import MeshConfig
from varl_jax.models import loading, sharding

plain = loading.load_model(sys.argv[1])[1]
for shape in ((1, 8, 1), (2, 2, 2), (1, 1, 8)):
  mesh = sharding.make_mesh(MeshConfig(**dict(zip(sharding.AXES, shape))))
  where = functools.partial(sharding.shardings, mesh=mesh)
  params = loading.load_model(sys.argv[1], shardings=where)[1]
  jax.tree.map(np.testing.assert_array_equal, params, plain)
  kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 2]
  split = [leaf.addressable_shards[0].data.size < leaf.size for leaf in kernels]
  assert any(split), shape
  assert all(leaf.committed for leaf in kernels)
print("equal")
"""


@pytest.mark.parametrize("hybrid", [False, True])
def test_every_device_gets_its_slice(hybrid, tmp_path):
  config, params, words = make_model()
  if hybrid:
    config, params = HYBRID, random_params(HYBRID)
  loading.save_model(tmp_path, config, params, tokenizer=words)
  done = subprocess.run(
    [sys.executable, "-c", SHARDED, str(tmp_path)],
    env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert "equal" in done.stdout
