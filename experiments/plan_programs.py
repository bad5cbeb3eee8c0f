"""The programs that `experiments.plan` compiles, from shapes alone."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from varl_jax.config import LoraConfig, MeshConfig, TrainConfig
from varl_jax.models import lora, sharding
from varl_jax.models.qwen3_5_shape import qwen3_5_9b, qwen3_6_27b
from varl_jax.models.registry import make_model
from varl_jax.rl.logprobs import masked_logits
from varl_jax.rl.train_step import Learner
from varl_jax.sampling.policy_sampler import decoding_weights
from varl_jax.sampling.slot_programs import SEGMENT

CONFIGS: Final[dict[str, Callable[[], Any]]] = {
  "qwen3_5_9b": qwen3_5_9b,
  "qwen3_6_27b": qwen3_6_27b,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What is compiled.

  Attributes:
    mesh: devices along data, fsdp, tensor.
    rows: of a mini-batch.
    micro: rows of a micro-batch, 0 for all.
    groups: prompts decoded at a time, `samples` answers each.
    lora_rank: 0 trains all weights.
  """

  model: str
  topology: str
  mesh: tuple[int, int, int]
  prompt: int
  response: int
  rows: int
  micro: int
  groups: int
  samples: int
  lora_rank: int = 0


def lower(setting: Setting, program: str) -> jax.stages.Lowered:
  """The `step` or the `decode` program, lowered for the topology."""
  described = topologies.get_topology_desc(
    platform="tpu", topology_name=setting.topology
  )
  data, fsdp, tensor = setting.mesh
  config = MeshConfig(data=data, fsdp=fsdp, tensor=tensor)
  mesh = sharding.make_mesh(config, described.devices)
  return {"step": lower_step, "decode": lower_decode}[program](setting, mesh)


def lower_step(setting: Setting, mesh: Mesh) -> jax.stages.Lowered:
  """One mini-batch's update in bfloat16 with fp32 master weights."""
  config = CONFIGS[setting.model]()
  model = make_model(config, dtype=jnp.bfloat16, remat=True)
  axes, like = model.axes(), _params(model)
  if setting.lora_rank:
    adapters = LoraConfig(rank=setting.lora_rank)
    trunk = jax.eval_shape(
      lambda tree: decoding_weights(tree, model.axes(), jnp.bfloat16), like
    )
    adapter = jax.eval_shape(
      lambda tree: lora.init(tree, model.axes(), adapters, jax.random.key(0)),
      like,
    )
    like = {**trunk, **adapter}
    axes = {**axes, **lora.lora_axes(axes, adapters)}
  learner = Learner(
    hidden_fn=model.hidden,
    head_fn=model.lm_head_weight,
    vocab_size=config.vocab_size,
    config=TrainConfig(micro_batch=setting.micro),
    mesh=mesh,
    axes=axes,
  )
  return learner.lower(
    like,
    rows=setting.rows,
    length=setting.prompt + setting.response,
    width=setting.response,
  )


def lower_decode(setting: Setting, mesh: Mesh) -> jax.stages.Lowered:
  """One token of every answer, its cache full and given back in place."""
  config = CONFIGS[setting.model]()
  model = make_model(config, dtype=jnp.bfloat16)
  axes = model.axes()
  params = jax.eval_shape(
    lambda tree: decoding_weights(tree, axes, jnp.bfloat16), _params(model)
  )
  where = sharding.shardings(axes, params, mesh, over=("tensor",))
  params = jax.tree.map(_at, params, where)
  groups, samples = setting.groups, setting.samples

  def begin(params: Any) -> Any:
    tokens = jnp.zeros((groups, setting.prompt), jnp.int32)
    lengths = jnp.full(groups, setting.prompt)
    hidden, prompt = model.prefill(params, tokens, lengths)
    cache = model.start(
      prompt, lengths, samples=samples, slots=setting.response, recent=SEGMENT
    )
    rows = (groups, samples, hidden.shape[-1])
    return jnp.broadcast_to(hidden[:, None], rows), cache

  hidden, cache = jax.eval_shape(begin, params)
  hidden = _at(hidden, _whole(("batch", "batch", None), hidden, mesh))
  cache = jax.tree.map(
    lambda names, leaf: _at(leaf, _whole(names, leaf, mesh)),
    model.cache_axes(),
    cache,
    is_leaf=lambda node: type(node) is tuple,
  )

  def step(params: Any, hidden: Any, cache: Any, noise: Any) -> Any:
    none = jnp.zeros(config.vocab_size, bool)
    head = model.lm_head_weight(params)
    logits = masked_logits(hidden, head, none)
    logits = sharding.constrain(logits, "batch", "batch", "vocab")
    bits = jax.random.gumbel(jax.random.wrap_key_data(noise), logits.shape)
    token = jnp.argmax(logits + bits, axis=-1).astype(jnp.int32)
    chosen = jnp.max(
      jnp.where(_ids(logits) == token[..., None], logits, -1e30), -1
    )
    found = chosen - jax.nn.logsumexp(logits, axis=-1)
    hidden, cache = model.decode(params, token, cache)
    return token, found, hidden, cache

  noise = jax.ShapeDtypeStruct((2,), jnp.uint32)
  with sharding.use(mesh):
    return jax.jit(step, donate_argnums=(1, 2)).lower(
      params, hidden, cache, noise
    )


def _ids(logits: jax.Array) -> jax.Array:
  return jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)


def _params(model: Any) -> Any:
  tokens = jnp.ones((1, 4), jnp.int32)
  return jax.eval_shape(model.init, jax.random.key(0), tokens)


def _at(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def _whole(names: Any, leaf: Any, mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, sharding.spec(names, leaf.shape, dict(mesh.shape)))
