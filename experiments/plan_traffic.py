"""Bytes that the products of a program move between memory and chip.

Of every product both operands and the result, each once and in the type that it
has in the program: what no arrangement of a step without fused kernels avoids,
so that operations by these bytes bound the arithmetic intensity from above.
Norms and other elementwise work are left out, as they are in `plan_flops`.
"""

import dataclasses
from typing import Any, Final

from experiments.plan_flops import attended_pairs, layer_counts, matrix_sizes
from varl_jax.models.attention import MAX_WHOLE
from varl_jax.models.delta_rule import CHUNK
from varl_jax.rl.logprobs import MAX_LOGITS

HALF: Final = 2
FULL: Final = 4
# Reads and writes an update makes of a weight: itself, two moments, gradient.
OPTIMIZER: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
  """How a program is shared out: devices along the mesh's axes."""

  data: int
  fsdp: int
  tensor: int

  @property
  def rows(self) -> int:
    """Pieces of a batch."""
    return self.data * self.fsdp


def step_bytes(
  config: Any,
  *,
  rows: int,
  micro: int,
  length: int,
  width: int,
  cut: Cut,
  adapters: bool = False,
) -> dict[str, int]:
  """Of one device in one GRPO update with layers and logits made again.

  Args:
    rows: of the mini-batch, over all devices.
    micro: rows of a micro-batch; weights are read again for each.
    length: tokens a row.
    width: response tokens a row.
    adapters: they alone are trained; their own bytes are left out.
  """
  attending, deltas = layer_counts(config)
  layers, head = matrix_sizes(config)
  passes, micros = 4, rows // micro
  own = rows / cut.rows
  wide = _outer_widths(config) / cut.tensor
  inner = (attending * 10 + deltas * 10) * config.hidden_size
  products = own * length * (wide + inner) + micros * layers / cut.tensor
  tokens = rows * width / cut.data
  vocab = config.vocab_size / (cut.fsdp * cut.tensor)
  chunks = micros * max(1, round(tokens / micros * vocab / MAX_LOGITS))
  logits = tokens * (HALF * config.hidden_size + FULL * vocab)
  logits += chunks * HALF * config.hidden_size * vocab
  scores = attended_pairs(length) * config.num_heads * attending / cut.tensor
  blocks = passes + (1 if length > MAX_WHOLE else 0)
  weights = 0 if adapters else layers + 2 * head
  found = {
    "matrices": (passes - adapters) * HALF * products,
    "attention": blocks * 2 * FULL * scores * own,
    "delta": passes * own * _delta_bytes(config, length) / cut.tensor,
    "head": (passes - adapters) * logits,
    "optimizer": OPTIMIZER * FULL * weights / (cut.rows * cut.tensor),
  }
  return _total(found)


def decode_bytes(
  config: Any,
  *,
  groups: int,
  samples: int,
  prompt: int,
  response: int,
  cut: Cut,
) -> dict[str, int]:
  """Of one device in one decoding step, its answers full.

  A prompt's keys are read once for its samples.
  """
  attending, deltas = layer_counts(config)
  layers, head = matrix_sizes(config)
  share = cut.rows * cut.tensor
  rows = groups * samples
  slots = groups * prompt + rows * response
  keys = 2 * config.num_kv_heads * config.head_dim * attending * slots
  memory = 0
  if deltas:
    memory = config.delta_v_heads * config.delta_k_dim * config.delta_v_dim
  found = {
    "matrices": HALF * layers / cut.tensor,
    "attention": HALF * keys / share,
    # Read and written.
    "delta": 2 * FULL * memory * deltas * rows / share,
    "head": HALF * head / cut.tensor + FULL * rows * config.vocab_size / share,
  }
  return _total(found)


def _total(found: dict[str, float]) -> dict[str, int]:
  whole = {name: round(value) for name, value in found.items()}
  return whole | {"total": sum(whole.values())}


def _outer_widths(config: Any) -> int:
  """Sides of all layers' matrices that are not the model's width, added up."""
  layers, _ = matrix_sizes(config)
  return layers // config.hidden_size


def _delta_bytes(config: Any, length: int) -> int:
  """One pass of all delta layers' rules over a row, in fp32."""
  _, deltas = layer_counts(config)
  if not deltas:
    return 0
  k, v = config.delta_k_dim, config.delta_v_dim
  chunks = -(-length // CHUNK)
  keys = config.delta_k_heads * 2 * CHUNK * (k + CHUNK)
  value = CHUNK * CHUNK + 2 * CHUNK * (k + v) + 2 * k * v + 2 * CHUNK * v
  return FULL * deltas * chunks * (keys + config.delta_v_heads * value)
