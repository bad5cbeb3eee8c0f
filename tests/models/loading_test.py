import importlib.util
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers

from varl_jax.models import gguf_file, loading, tokenizer
from varl_jax.models.errors import ModelError
from varl_jax.models.llama import Llama, LlamaConfig


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
    ({"model_type": "qwen2"}, "only 'llama'"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
    ({"attention_bias": True}, "attention_bias True"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"vocab_size": None}, "does not say vocab_size"),
    ({"num_key_value_heads": 3}, "multiple"),
    ({"intermediate_size": 25}, "has shape"),
    ({"num_hidden_layers": 3}, "lacks the weight model.layers.2"),
    ({"num_hidden_layers": 1}, "unexpected weight model.layers.1"),
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
  with pytest.raises(ModelError, match="unsupported type int8"):
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
