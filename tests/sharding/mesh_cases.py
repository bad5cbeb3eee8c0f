"""Run as a process of its own on eight forced host devices: prints JSON.

Every case is computed on one device and on meshes; the test reads the numbers.

Sizes and weights are chosen so that float32 itself allows the comparison. Where
norms divide by almost nothing, or the delta memory forgets at once, a change of
1e-7 in the weights moves a gradient by 3e-4, and two orders of the same sum
would differ as much; here it moves one by 2e-6.
"""

import functools
import json
import math
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

from varl_jax.checkpoints import Checkpoints
from varl_jax.config import LoraConfig, MeshConfig, TrainConfig
from varl_jax.models import lora, sharding
from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.registry import make_model
from varl_jax.rl.batch import pack
from varl_jax.rl.train_step import Learner
from varl_jax.sampling.policy_sampler import PolicySampler
from varl_jax.types import Rollout

VOCAB = 56
MESHES = ((1, 1, 1), (8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 4))
TRAIN = TrainConfig(
  tasks_per_step=4,
  minibatch_tasks=4,
  samples=2,
  learning_rate=1e-3,
  temperature=0.8,
  weight_decay=0.01,
  max_grad_norm=1e9,
)
SHAPES = {
  "llama": LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=4,
  ),
  "qwen3_5": Qwen35Config(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=32,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    rotary_dim=4,
    delta_k_heads=4,
    delta_v_heads=8,
    delta_k_dim=16,
    delta_v_dim=8,
    rms_eps=0.1,
    max_position=256,
  ),
}


def make_batch(seed=0):
  """Eight rows whose lengths differ widely, some tokens masked.

  Batches of all seeds have one padded shape. Advantages are large, so that no
  gradient is near Adam's epsilon, where rounding would decide a step, and of a
  mean that keeps the loss from being a small difference of large sums.
  """
  rng = np.random.default_rng(seed)
  prompts, rollouts = [], []
  for row in range(8):
    size = int(rng.integers(1, 30)) if row else 30
    length = int(rng.integers(1, 12)) if row else 12
    prompts.append(rng.integers(1, VOCAB, length).tolist())
    rollouts.append(
      Rollout(
        task_id=str(row // 2),
        sample=row % 2,
        answer="",
        tokens=tuple(rng.integers(1, VOCAB, size).tolist()),
        logprobs=tuple((-3 + rng.normal(size=size)).tolist()),
        mask=tuple(int(i % 5 != 3) for i in range(size)),
        finish="stop",
      )
    )
  return pack(
    prompts,
    rollouts,
    advantages=1e4 * (0.5 + rng.normal(size=8)),
    group_ids=np.arange(8) // 2,
  )


class Case:
  """One model on one mesh, or on a single device without one."""

  def __init__(self, name, mesh=None, *, axes=None):
    self.model = make_model(SHAPES[name], remat=True)
    self.mesh = mesh
    self.learner = Learner(
      hidden_fn=self.model.hidden,
      head_fn=self.model.lm_head_weight,
      vocab_size=VOCAB,
      forbidden_ids=(0,),
      config=TRAIN,
      head_chunk=4,
      old_logprobs="sampler",
      mesh=mesh,
      axes=None if mesh is None else axes or self.model.axes(),
    )

  def params(self):
    """Random weights whose gradients are large enough to compare."""
    made = jax.jit(self.model.init)(
      jax.random.key(0), jnp.ones((1, 4), jnp.int32)
    )
    rng = np.random.default_rng(1)

    def shaken(path, leaf):
      if path[-1].key == "a_log":
        return np.log(rng.uniform(0.02, 0.3, leaf.shape)).astype(np.float32)
      noise = rng.normal(size=leaf.shape)
      return np.asarray(leaf + 0.1 * noise, np.float32)

    return jax.tree_util.tree_map_with_path(shaken, made)

  def step(self, params, batch):
    """One update; the first moment is 0.1 of the gradient, unclipped."""
    state, metrics = self.learner.update(self.learner.init(params), batch)
    moments = state.opt_state[1][0]
    return {
      "loss": metrics["train/loss"],
      "norm": metrics["train/grad_norm"],
      "gradient": moments.mu,
      "squares": moments.nu,
      "params": state.params,
    }, state


def devices(shape, order=None):
  """A mesh over the first devices, or over these in another order."""
  count = int(np.prod(shape))
  chosen = jax.devices()[:count]
  if order is not None:
    chosen = [chosen[i] for i in order]
  config = dict(zip(sharding.AXES, shape, strict=True))
  return sharding.make_mesh(MeshConfig(**config), chosen)


def distances(found, exact):
  """Of each part, the largest leaf-wise max |difference| / max |exact|."""

  def one(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.abs(b).max()
    return float(np.abs(a - b).max() / (size if size else 1.0))

  return {
    name: max(jax.tree.leaves(jax.tree.map(one, found[name], exact[name])))
    for name in exact
  }


@functools.cache
def on_mesh(name, shape):
  """A case whose compiled step every part of this file shares."""
  return Case(name, devices(shape))


@functools.cache
def alone(name):
  """A case without a mesh."""
  return Case(name)


def meshes(name):
  """Every mesh against a single device, and one with its devices shuffled."""
  batch = make_batch()
  params = alone(name).params()
  exact = jax.device_get(alone(name).step(params, batch)[0])
  found = {}
  for shape in MESHES:
    made, state = on_mesh(name, shape).step(params, batch)
    key = "x".join(map(str, shape))
    found[key] = distances(made, exact) | {"specs": specs(state)}
  order = np.random.default_rng(3).permutation(8).tolist()
  made, _ = Case(name, devices((2, 2, 2), order)).step(params, batch)
  straight, _ = on_mesh(name, (2, 2, 2)).step(params, batch)
  found["shuffled"] = distances(made, exact)
  found["shuffled against straight"] = distances(made, jax.device_get(straight))
  return found


def specs(state):
  """How each leaf of a state is split."""
  flat = jax.tree_util.tree_flatten_with_path(state)[0]
  return {
    jax.tree_util.keystr(path): [
      list(entry) if isinstance(entry, tuple) else [entry] if entry else []
      for entry in leaf.sharding.spec
    ]
    for path, leaf in flat
  }


def restored(name, folder):
  """A step, a checkpoint, another mesh and a step; against two in a row."""
  params, batch = alone(name).params(), make_batch()
  one, two = on_mesh(name, (2, 2, 2)), on_mesh(name, (1, 8, 1))
  _, state = one.step(params, batch)
  checkpoints = Checkpoints(folder=folder)
  checkpoints.save(1, state, {"seed": 0})
  back, _ = checkpoints.restore(1, two.learner.init(params))
  ahead, _ = one.learner.update(state, make_batch(1))
  back, _ = two.learner.update(back, make_batch(1))
  return distances(
    {"params": back.params, "moments": back.opt_state[1][0].mu},
    {"params": ahead.params, "moments": ahead.opt_state[1][0].mu},
  )


def adapted(name):
  """Adapters alone are trained, as on a single device."""
  config = LoraConfig(rank=2, alpha=4.0, targets="q,k,v,o,down")
  params, axes = alone(name).params(), alone(name).model.axes()
  adapter = lora.init(params, axes, config, jax.random.key(2))
  adapter["lora"] = jax.tree.map(lambda x: x + 0.1, adapter["lora"])
  params = lora.attach(params, adapter, axes)
  axes = {**axes, **lora.lora_axes(axes, config)}
  made = []
  for mesh in (None, devices((2, 2, 2))):
    case = Case(name, mesh, axes=axes)
    parts, state = case.step(params, make_batch())
    made.append(jax.device_get(parts))
  before = distances({"x": made[0]["params"]}, {"x": {"lora": params["lora"]}})
  return {
    "collections": sorted(state.params),
    "moved": before["x"],
    "distances": distances(made[1], made[0]),
  }


def sampled(name):
  """Answers drawn on a mesh and on one device."""
  params, made = alone(name).params(), []
  for case in (alone(name), on_mesh(name, (2, 2, 2))):
    sampler = PolicySampler(
      whole=case.learner.whole,
      axes=case.model.axes(),
      mesh=case.mesh,
      model=case.model,
      stop_ids=(1,),
      forbidden_ids=(0,),
      max_prompt=16,
      max_new=12,
    )
    state = case.learner.init(params)
    drawn = sampler.generate(
      [[5, 6, 7], [8, 9], [3], [4, 5, 6, 7, 8]],
      2,
      params=state.params,
      step=1,
      tasks=[1, 2, 3, 4],
    )
    made.append([sample.tokens for group in drawn for sample in group])
  return {"equal": made[0] == made[1], "count": sum(map(len, made[0]))}


def logits(name):
  """Whether the compiled step has float32 arrays of tokens by vocabulary."""
  case = on_mesh(name, (2, 2, 2))
  like = jax.eval_shape(
    case.model.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32)
  )
  batch = make_batch()
  width, length = batch.targets.shape[1], batch.tokens.shape[1]
  # Of the same shapes as the steps above, so that it is compiled already.
  lowered = case.learner.lower(like, rows=8, length=length, width=width)
  sizes = {
    tuple(int(part) for part in found.split(","))
    for found in re.findall(r"f32\[([\d,]+)\]", lowered.compile().as_text())
  }
  # Four rows a part of `data`, a quarter of the vocabulary, four positions.
  wide = {s for s in sizes if VOCAB in s or VOCAB // 4 in s}
  whole = 4 * width * VOCAB // 4
  return {
    "chunk": (4, 4, VOCAB // 4) in wide,
    "whole": [s for s in wide if width in s and math.prod(s) >= whole],
  }


if __name__ == "__main__":
  chosen = sys.argv[1]
  print(
    json.dumps(
      {
        "meshes": meshes(chosen),
        "restored": restored(chosen, pathlib.Path(sys.argv[2])),
        "lora": adapted(chosen),
        "sampled": sampled(chosen),
        "logits": logits(chosen),
      }
    )
  )
