"""Kernels on a mesh of eight CPU devices, a JSON line; run by shards_test."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
from varl_kernels.delta_decode.api import delta_decode, delta_decode_sharded
from varl_kernels.logprob import api
from varl_kernels.logprob.reference import Layout
from varl_kernels.sampling.api import sample, sample_sharded

from varl_jax.config import MeshConfig
from varl_jax.models import sharding
from varl_jax.models.delta_rule import delta_step
from varl_jax.rl.logprobs import token_logprobs
from varl_jax.sampling.draws import Rows, draw

ROWS, WIDTH, VOCAB = (4, 2), 16, 296
VOCAB_AXES = ("fsdp", "tensor")


def make_mesh():
  return sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


def operands():
  rng = np.random.default_rng(0)
  return (
    jnp.asarray(rng.normal(size=(*ROWS, WIDTH)), jnp.float32),
    jnp.asarray(rng.normal(size=(VOCAB, WIDTH)) * 0.4, jnp.float32),
    jnp.asarray(rng.integers(0, 2**32, (*ROWS, 2)), jnp.uint32),
    jnp.asarray(rng.uniform(size=VOCAB) < 0.1),
  )


def gap(found, exact):
  return float(jnp.max(jnp.abs(jnp.asarray(found) - jnp.asarray(exact))))


def rows_of(keys):
  """Rows that ask for nothing of their own."""
  flat = jnp.zeros(ROWS, jnp.int32)
  stops = jnp.full((*ROWS, 1), -1)
  return Rows(keys, flat, flat + 9, flat, flat + 1.0, stops)


def sampled(mesh):
  """Whether a form draws the same on the mesh, and its logprobs' distance."""
  hidden, head, seeds, forbidden = operands()
  exact = sample(hidden, head, seeds, forbidden=forbidden)
  made = {}
  for backend in ("reference", "tpu", "gpu"):
    found = jax.jit(
      lambda h, w, s, f, backend=backend: sample_sharded(
        h,
        w,
        s,
        mesh=mesh,
        rows=("data",),
        vocab=VOCAB_AXES,
        forbidden=f,
        backend=backend,
        interpret=backend != "reference",
      )
    )(hidden, head, seeds, forbidden)
    same = bool((found[0] == exact[0]).all())
    made[backend] = {"same": same, "logprob": gap(found[1], exact[1])}
  return made


def scored(mesh):
  """Distances of logprobs, entropies and gradients."""
  hidden, head, _, forbidden = operands()
  targets = jnp.argmin(forbidden) + jnp.zeros(ROWS, jnp.int32)
  layout = Layout(mesh=mesh, rows=("data",), vocab=VOCAB_AXES)

  def call(hidden, head, **options):
    def loss(hidden, head):
      found = api.token_logprobs(
        hidden, head, targets, forbidden=forbidden, chunk=1, **options
      )
      return found[0].sum(), found

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(hidden, head)

  exact = jax.tree.leaves(call(hidden, head))
  found = jax.jit(
    lambda h, w: call(h, w, layout=layout, backend="tpu", interpret=True)
  )(hidden, head)
  return max(map(gap, jax.tree.leaves(found), exact))


def memories():
  """Operands of two layers' delta rule."""
  rng = np.random.default_rng(1)
  heads = (*ROWS, 2)
  shapes = [(*heads, 8), (*heads, 8), (*heads, 2, 4), (*heads, 2), (*heads, 2)]
  shapes.append((2, *heads, 2, 8, 4))
  return [jnp.asarray(rng.normal(size=s) * 0.3, jnp.float32) for s in shapes]


def stepped(mesh):
  """Distance of outputs and memories."""
  case, layer = memories(), jnp.int32(1)
  exact = delta_decode(*case, layer=layer)
  found = jax.jit(
    lambda *a: delta_decode_sharded(
      *a[:-1],
      mesh=mesh,
      split=("data", "fsdp", "tensor"),
      layer=a[-1],
      backend="gpu",
      interpret=True,
    )
  )(*case, layer)
  return max(map(gap, found, exact))


def wired(mesh):
  """Kernels in what sampler, model and trainer lower for TPUs on the mesh."""
  hidden, head, _, forbidden = operands()
  keys = jax.random.key_data(jax.random.split(jax.random.key(0), ROWS))
  targets = jnp.zeros(ROWS, jnp.int32)
  programs = {
    "draw": (
      lambda h, w, k: draw(
        h,
        w,
        rows_of(k),
        forbidden=forbidden,
        stop=forbidden,
        temperature=1.0,
      ),
      (hidden, head, keys),
    ),
    "step": (
      lambda *a: delta_step(*a, layer=jnp.int32(0)),
      tuple(memories()),
    ),
    "score": (
      jax.grad(
        lambda h, w: token_logprobs(h, w, targets, forbidden=forbidden)[0].sum()
      ),
      (hidden, head),
    ),
  }
  made = {}
  os.environ["VARL_KERNELS"] = "tpu"
  for name, (run, args) in programs.items():
    with sharding.use(mesh):
      traced = jax.jit(run).trace(*args)
      text = traced.lower(lowering_platforms=("tpu",)).as_text()
    made[name] = text.count("@tpu_custom_call")
  return made


if __name__ == "__main__":
  used = make_mesh()
  print(
    json.dumps(
      {
        "sampled": sampled(used),
        "scored": scored(used),
        "stepped": stepped(used),
        "wired": wired(used),
      }
    )
  )
