"""The kernels' operations at the sizes of the paper's models, and their floors.

A floor is what has to be moved or multiplied whatever the program: the head
once for the sampling of up to 512 rows; a memory's own read and write; for
log-probabilities the products of the forward pass.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from varl_kernels.delta_decode.api import delta_decode
from varl_kernels.logprob.api import token_logprobs
from varl_kernels.sampling.api import sample

from varl_jax.models.qwen3_5_shape import qwen3_5_9b, qwen3_6_27b

MODELS: Final[dict[str, Callable[[], Any]]] = {
  "qwen3_5_9b": qwen3_5_9b,
  "qwen3_6_27b": qwen3_6_27b,
}
OPERATIONS: Final = ("sampling", "delta_decode", "logprob")
# Layers of delta memories that a call is given, of which it steps one.
LAYERS: Final = 2
POSITIONS: Final = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One call.

  Attributes:
    run: the operation.
    args: shapes and types of its operands.
    donated: operands that are given away.
    read_bytes: least that is moved to or from memory.
    flops: least that is multiplied and added.
  """

  run: Callable[..., Any]
  args: tuple[jax.ShapeDtypeStruct, ...]
  donated: tuple[int, ...] = ()
  read_bytes: int
  flops: int


def make_case(
  operation: str, model: str, backend: str, *, rows: int, dtype: Any = None
) -> Case:
  """A case; rows are positions too for `logprob`, 128 of each row's.

  Raises:
    ValueError: an unknown operation.
  """
  config = MODELS[model]()
  dtype = dtype or jnp.bfloat16
  width, vocab = config.hidden_size, config.vocab_size
  head = _array(vocab, width, dtype=dtype)
  if operation == "sampling":
    hidden = _array(rows, width, dtype=dtype)
    return Case(
      run=lambda h, w, s: sample(h, w, s, backend=backend),
      args=(hidden, head, _array(rows, 2, dtype=jnp.uint32)),
      read_bytes=_bytes(hidden, head),
      flops=2 * rows * vocab * width,
    )
  if operation == "logprob":
    shape = (max(rows // POSITIONS, 1), min(rows, POSITIONS))
    hidden = _array(*shape, width, dtype=dtype)
    return Case(
      run=lambda h, w, t, f: token_logprobs(
        h, w, t, forbidden=f, chunk=shape[1], backend=backend
      ),
      args=(
        hidden,
        head,
        _array(*shape, dtype=jnp.int32),
        _array(vocab, dtype=jnp.bool_),
      ),
      read_bytes=_bytes(hidden, head),
      flops=2 * rows * vocab * width,
    )
  if operation == "delta_decode":
    return _delta(config, backend, rows)
  raise ValueError(f"No operation {operation!r}; there are {OPERATIONS}.")


def _delta(config: Any, backend: str, rows: int) -> Case:
  heads, group = (
    config.delta_k_heads,
    config.delta_v_heads // config.delta_k_heads,
  )
  keys, values = config.delta_k_dim, config.delta_v_dim
  q = _array(rows, heads, keys)
  v = _array(rows, heads, group, values)
  gate = _array(rows, heads, group)
  memory = _array(LAYERS, rows, heads, group, keys, values)
  own = _bytes(memory) // LAYERS
  return Case(
    run=lambda *args: delta_decode(*args, layer=jnp.int32(1), backend=backend),
    args=(q, q, v, gate, gate, memory),
    donated=(5,),
    read_bytes=2 * own + _bytes(q, q, v, v, gate, gate),
    flops=7 * own // 4,
  )


def _array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


def _bytes(*arrays: jax.ShapeDtypeStruct) -> int:
  return sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays)
