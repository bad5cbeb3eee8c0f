import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.config import ConfigError, LoraConfig, MeshConfig
from varl_jax.models import lora, lora_folder, sharding
from varl_jax.models.errors import ModelError
from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.registry import make_model
from varl_jax.models.tensor_file import TensorFile

DENSE = LlamaConfig(
  vocab_size=31,
  hidden_size=24,
  intermediate_size=40,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
)
HYBRID = Qwen35Config(
  vocab_size=31,
  hidden_size=24,
  intermediate_size=40,
  num_layers=8,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  rotary_dim=4,
  delta_k_heads=2,
  delta_v_heads=4,
  delta_k_dim=8,
  delta_v_dim=8,
)
TOKENS = np.random.default_rng(0).integers(0, 31, (2, 9)).astype(np.int32)
ALL = {
  DENSE: "q,k,v,o,gate,up,down",
  HYBRID: "q,q_gate,k,v,z,a,b,o,gate,up,down",
}
both = pytest.mark.parametrize("config", [DENSE, HYBRID], ids=["dense", "gdn"])


def make_trunk(config, seed=0):
  model = make_model(config)
  params = jax.jit(model.init)(jax.random.key(seed), TOKENS)
  return model, params


def make_adapter(model, params, seed, **changes):
  """An adapter that has been trained, so to say."""
  settings = LoraConfig(**({"rank": 2, "targets": ALL[model.config]} | changes))
  made = lora.init(params, model.axes(), settings, jax.random.key(seed))
  rng = np.random.default_rng(seed)
  moved = jax.tree.map(
    lambda x: x + jnp.asarray(rng.normal(0, 0.02, x.shape), x.dtype),
    made["lora"],
  )
  return made | {"lora": moved}


def logits(model, params):
  hidden = jax.jit(model.hidden)(params, TOKENS)
  return np.asarray(hidden @ model.lm_head_weight(params).T)


@both
def test_a_new_adapter_changes_nothing(config):
  model, params = make_trunk(config)
  settings = LoraConfig(rank=2, targets=ALL[config])
  made = lora.init(params, model.axes(), settings, jax.random.key(1))
  whole = lora.attach(params, made, model.axes())
  np.testing.assert_allclose(
    logits(model, whole), logits(model, params), atol=1e-6
  )
  for path, leaf in jax.tree_util.tree_leaves_with_path(made["lora"]):
    assert leaf.any() == (path[-1].key == "a")


@both
def test_merged_weights_equal_the_adapter(config):
  model, params = make_trunk(config)
  adapter = make_adapter(model, params, 2)
  whole = lora.attach(params, adapter, model.axes())
  found = logits(model, lora.merge(whole, model.axes()))
  assert np.abs(found - logits(model, params)).max() > 1e-2
  np.testing.assert_allclose(found, logits(model, whole), atol=1e-5)


@both
def test_two_adapters_take_turns_on_one_trunk(config):
  model, params = make_trunk(config)
  first, second = (make_adapter(model, params, seed) for seed in (3, 4))
  attached = [lora.attach(params, a, model.axes()) for a in (first, second)]
  one, two = (logits(model, whole) for whole in attached)
  assert np.abs(one - two).max() > 1e-3
  back = lora.attach(attached[1], first, model.axes())
  np.testing.assert_array_equal(logits(model, back), one)
  assert back["params"] is params["params"]


@both
def test_only_the_adapter_is_trained(config):
  model, params = make_trunk(config)
  adapter = make_adapter(model, params, 5, targets="q,down")
  whole = lora.attach(params, adapter, model.axes())
  trained, frozen = lora.split(whole)
  assert set(trained) == {"lora"}
  assert set(frozen) == {"params", "lora_scale"}

  @jax.jit
  @jax.grad
  def gradient(trained):
    hidden = model.hidden({**frozen, **trained}, jnp.asarray(TOKENS))
    return (hidden**2).mean()

  found = gradient(trained)
  assert jax.tree.structure(found) == jax.tree.structure(trained)
  assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(found))
  assert lora.split(params) == (params, {})


def test_the_scale_is_alpha_over_rank():
  model, params = make_trunk(DENSE)
  adapter = make_adapter(model, params, 6, rank=4, alpha=2.0, targets="o")
  low = adapter["lora"]["layers"]["o"]
  added = jnp.einsum("nkhr,nrd->nkhd", low["a"], low["b"]) / 2
  merged = lora.merge(lora.attach(params, adapter, model.axes()), model.axes())
  kernel = params["params"]["layers"]["o"]["kernel"]
  np.testing.assert_allclose(
    merged["params"]["layers"]["o"]["kernel"], kernel + added, atol=1e-6
  )
  assert merged["params"]["layers"]["q"] == params["params"]["layers"]["q"]


@both
def test_axes_fit_the_arrays(config):
  model, params = make_trunk(config)
  settings = LoraConfig(rank=2, targets=ALL[config])
  made = lora.init(params, model.axes(), settings, jax.random.key(0))
  names = lora.lora_axes(model.axes(), settings)
  mesh = sharding.make_mesh(MeshConfig())
  where = sharding.shardings(names, made, mesh)
  assert jax.tree.structure(where) == jax.tree.structure(made)
  low = names["lora"]["layers"]
  low = low["q"] if config is DENSE else low["attention"]["q"]
  assert low["a"] == ("layers", "embed", "rank")
  assert low["b"] == ("layers", "rank", "heads", "head_dim")


def test_a_draw_does_not_depend_on_other_targets():
  model, params = make_trunk(HYBRID)

  def drawn(targets):
    settings = LoraConfig(rank=2, targets=targets)
    made = lora.init(params, model.axes(), settings, jax.random.key(0))
    return made["lora"]["layers"]

  many, one = drawn("q,attention.v,down"), drawn("attention.v")
  assert set(one) == {"attention"}
  assert set(many["delta"]) == {"q", "down"}
  np.testing.assert_array_equal(
    many["attention"]["v"]["a"], one["attention"]["v"]["a"]
  )


def test_targets_and_ranks_that_cannot_be():
  model, params = make_trunk(DENSE)
  axes, key = model.axes(), jax.random.key(0)
  for targets, words in (
    ("q,query", "names 'query'.*are down, gate, k, o, q, up, v"),
    (" ", "is empty"),
    ("attn_norm", "names 'attn_norm'"),
  ):
    with pytest.raises(ConfigError, match=words):
      lora.init(params, axes, LoraConfig(rank=2, targets=targets), key)
  for rank in (0, 13):
    with pytest.raises(ConfigError, match=r"between 1 and 12.*layers\.k; got"):
      lora.init(params, axes, LoraConfig(rank=rank, targets="k"), key)


def test_an_adapter_of_another_model():
  model, params = make_trunk(DENSE)
  hybrid, other = make_trunk(HYBRID)
  foreign = make_adapter(hybrid, other, 0)
  with pytest.raises(ValueError, match="no projection of the model"):
    lora.attach(params, foreign, model.axes())
  adapter = make_adapter(model, params, 0, targets="q")
  low = adapter["lora"]["layers"]["q"]
  adapter["lora"]["layers"]["q"] = low | {"b": low["b"][:, :1]}
  with pytest.raises(ValueError, match="the model wants"):
    lora.attach(params, adapter, model.axes())


def test_an_adapter_folder_comes_back_bit_for_bit(tmp_path):
  model, params = make_trunk(DENSE)
  settings = LoraConfig(rank=2, alpha=5.0, targets="q,o,down")
  adapter = make_adapter(model, params, 7, alpha=5.0, targets="q,o,down")
  lora_folder.save_adapter(tmp_path, DENSE, settings, adapter)
  names = TensorFile(tmp_path / "adapter_model.safetensors").shapes
  stem = "base_model.model.model.layers.2.self_attn.o_proj"
  assert names[f"{stem}.lora_A.weight"] == (2, 24)
  assert names[f"{stem}.lora_B.weight"] == (24, 2)
  again = lora_folder.load_adapter(tmp_path, DENSE, settings)
  assert jax.tree.structure(again) == jax.tree.structure(adapter)
  jax.tree.map(np.testing.assert_array_equal, again, adapter)
  lora.attach(params, again, model.axes())


def test_adapter_folders_that_cannot_be_used(tmp_path):
  model, params = make_trunk(DENSE)
  settings = LoraConfig(rank=2, targets="q")
  adapter = make_adapter(model, params, 8, targets="q")
  lora_folder.save_adapter(tmp_path, DENSE, settings, adapter)
  with pytest.raises(ModelError, match=r"lacks the weights .*k_proj"):
    lora_folder.load_adapter(tmp_path, DENSE, LoraConfig(rank=2, targets="q,k"))
  file = tmp_path / "adapter_config.json"
  file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dora": True}))
  with pytest.raises(ModelError, match="use_dora True is not supported"):
    lora_folder.load_adapter(tmp_path, DENSE, settings)
  hybrid, other = make_trunk(HYBRID)
  adapter = make_adapter(hybrid, other, 9, targets="q")
  with pytest.raises(ModelError, match=r"one of 3 roles.*merged model"):
    lora_folder.save_adapter(tmp_path / "other", HYBRID, settings, adapter)
  assert not (tmp_path / "other").exists()
