"""Floating-point operations of a model, counted from its shape.

A compiler's own count takes the body of a scan once, whatever its length, so
that it says nothing of a scanned model; the formulas here are compared with it
where every scan has one turn. A multiplication with its addition is two
operations; norms and other elementwise work are left out.
"""

import itertools
from typing import Any

from varl_jax.models.attention import BANDS, MAX_WHOLE, QUERY_BLOCK
from varl_jax.models.delta_rule import CHUNK


def attended_pairs(length: int) -> int:
  """Query-key products that `attend_causal` makes of a row's tokens."""
  if length <= MAX_WHOLE:
    return length * length
  blocks = -(-length // QUERY_BLOCK)
  ends = sorted({-(-blocks * band // BANDS) for band in range(BANDS + 1)})
  return sum(
    (last - first) * QUERY_BLOCK * min(last * QUERY_BLOCK, length)
    for first, last in itertools.pairwise(ends)
  )


def layer_counts(config: Any) -> tuple[int, int]:
  """Layers that attend and delta layers."""
  if not hasattr(config, "interval"):
    return config.num_layers, 0
  attending = config.num_layers // config.interval
  return attending, config.num_layers - attending


def matrix_sizes(config: Any) -> tuple[int, int]:
  """Weights that a token meets in matrices: of all layers, of the head."""
  attending, deltas = layer_counts(config)
  width, heads = config.hidden_size, config.num_heads * config.head_dim
  kv = config.num_kv_heads * config.head_dim
  gates = heads if deltas else 0
  mlp = 3 * width * config.intermediate_size
  total = attending * (width * (2 * heads + gates + 2 * kv) + mlp)
  if deltas:
    keys = config.delta_k_heads * config.delta_k_dim
    values = config.delta_v_heads * config.delta_v_dim
    delta = width * (2 * keys + 3 * values + 2 * config.delta_v_heads)
    total += deltas * (delta + mlp)
  return total, width * config.vocab_size


def delta_row(config: Any, length: int) -> int:
  """One delta layer's rule over a row, chunk by chunk."""
  chunks = -(-length // CHUNK)
  k, v = config.delta_k_dim, config.delta_v_dim
  keys = 2 * config.delta_k_heads * 2 * CHUNK * CHUNK * k
  solve = CHUNK * CHUNK * (k + v)
  memory = 3 * 2 * CHUNK * k * v
  value = solve + memory + 2 * CHUNK * CHUNK * v
  return chunks * (keys + config.delta_v_heads * value)


def step_flops(
  config: Any,
  *,
  rows: int,
  length: int,
  width: int,
  remat: bool = True,
  chunked: bool = True,
  adapters: bool = False,
) -> dict[str, int]:
  """One GRPO update: forward, backward and what is made again between.

  Args:
    rows: of the mini-batch.
    length: tokens a row.
    width: response tokens a row, which the head is paid for.
    remat: layers are made again in the backward pass.
    chunked: so are logits.
    adapters: they alone are trained, so that no gradient of a matrix is made;
      their own products, which are small, are left out.
  """
  attending, deltas = layer_counts(config)
  layers, head = matrix_sizes(config)
  times = 4 if remat else 3
  # Blocks of queries are made once more inside a layer's own backward pass.
  blocks = times + (1 if length > MAX_WHOLE else 0)
  heads = config.num_heads * config.head_dim
  scores = 4 * heads * attended_pairs(length) * attending
  rule = delta_row(config, length) * deltas if deltas else 0
  found = {
    "matrices": (times - adapters) * 2 * layers * rows * length,
    "attention": blocks * scores * rows,
    "delta": times * rule * rows,
    "head": ((4 if chunked else 3) - adapters) * 2 * head * rows * width,
  }
  return found | {"total": sum(found.values())}


def decode_flops(config: Any, *, rows: int, past: int) -> dict[str, int]:
  """One token of every row behind `past` others."""
  attending, deltas = layer_counts(config)
  layers, head = matrix_sizes(config)
  heads = config.num_heads * config.head_dim
  memory = 0
  if deltas:
    memory = config.delta_v_heads * config.delta_k_dim * config.delta_v_dim
  found = {
    "matrices": 2 * layers * rows,
    "attention": 4 * heads * past * attending * rows,
    # Two products with the memory, its decay and its write.
    "delta": 7 * memory * deltas * rows,
    "head": 2 * head * rows,
  }
  return found | {"total": sum(found.values())}
