"""The kernels' operations against what they replace, or compiled for a TPU.

    python -m experiments.speed.kernels
    python -m experiments.speed.kernels --topology=v5e:2x2 --rows=64 --rows=256

Prints a JSON line for each operation.

On a CPU no kernel runs: `ours` is the reference at SmolLM2's size, `peer` the
same with whole logits and jax's generator (or, for the delta rule, with the
memory read at each of its lines). On a GPU `ours` is the kernel at the size of
a model and `peer` the reference by XLA; `bandwidth` is the floor's bytes over
the time, as a share of the hardware's, and the lines are kept in docs/gpu.md.
Both are seconds, medians of `samples` each, taken in turn in one run; `ratio`
is peer over ours.

With a topology nothing runs. Each kernel is compiled for that TPU, which needs
libtpu and no TPU, and its bytes and flops by the compiler's analysis stand
beside the floors of `experiments.kernel_cases`. The compiler knows of a kernel
what the kernel states; what it adds (copies, conversions) it counts itself.
"""

import functools
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from varl_kernels.delta_decode import reference as delta
from varl_kernels.head import masked_logits
from varl_kernels.logprob.api import token_logprobs
from varl_kernels.sampling.api import sample

from experiments.kernel_cases import MODELS, OPERATIONS, make_case

Function = Callable[..., Any]

# Bytes a second of memory, and bfloat16 flops a second.
CHIPS: Final = {
  "v5e": (819e9, 197e12),
  "v5p": (2765e9, 459e12),
  "v6e": (1640e9, 918e12),
  "H200": (4.3e12, 790e12),
}
VOCAB, WIDTH, ROWS, LENGTH = 49152, 576, 32, 64
GPU_PAGE: Final = pathlib.Path(__file__).parents[2] / "docs" / "gpu.md"

_TOPOLOGY = flags.DEFINE_string("topology", "", "A TPU, such as v5e:2x2.")
_OPERATION = flags.DEFINE_multi_enum(
  "operation", OPERATIONS, OPERATIONS, "Which."
)
_MODEL = flags.DEFINE_multi_enum("kernel_model", list(MODELS), MODELS, "Size.")
_ROWS = flags.DEFINE_multi_integer("rows", [256], "Rows on an accelerator.")
_SAMPLES = flags.DEFINE_integer("samples", 5, "Samples of each.", 1)


def small(operation: str) -> tuple[Function, Function, tuple[Any, ...]]:
  """(ours, peer, operands) for a CPU."""
  rng = np.random.default_rng(0)

  def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  head = drawn(VOCAB, WIDTH) * 0.05
  if operation == "sampling":
    seeds = jnp.asarray(rng.integers(0, 2**32, (ROWS, 2)), jnp.uint32)
    return sample, _sample_by_parts, (drawn(ROWS, WIDTH), head, seeds)
  if operation == "logprob":
    targets = jnp.asarray(rng.integers(0, VOCAB, (8, LENGTH)), jnp.int32)
    chunked = functools.partial(token_logprobs, chunk=8)
    return (
      _slope(chunked),
      _slope(_logprobs_whole),
      (drawn(8, LENGTH, WIDTH), head, targets),
    )
  shape = (ROWS, 16, 2)
  case = (
    drawn(*shape[:2], 128) * 0.1,
    drawn(*shape[:2], 128) * 0.1,
    drawn(*shape, 128),
    -jnp.abs(drawn(*shape)),
    jax.nn.sigmoid(drawn(*shape)),
    drawn(*shape, 128, 128),
  )
  return delta.delta_decode, _delta_as_written, case


def _sample_by_parts(hidden: Any, head: Any, seeds: Any) -> Any:
  logits = masked_logits(hidden, head, jnp.zeros(VOCAB, bool))
  keys = jax.random.wrap_key_data(seeds)
  noise = jax.vmap(lambda key: jax.random.gumbel(key, (VOCAB,)))(keys)
  token = jnp.argmax(logits + noise, axis=-1)
  logprobs = jax.nn.log_softmax(logits, axis=-1)
  return token, jnp.take_along_axis(logprobs, token[:, None], axis=-1)[:, 0]


def _logprobs_whole(hidden: Any, head: Any, targets: Any, *, forbidden: Any):
  logits = masked_logits(hidden, head, forbidden)
  logprobs = jax.nn.log_softmax(logits, axis=-1)
  return jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0], 0


def _slope(run: Function) -> Function:
  def loss(hidden: Any, head: Any, targets: Any) -> Any:
    none = jnp.zeros(VOCAB, bool)
    return run(hidden, head, targets, forbidden=none)[0].sum()

  return jax.grad(loss, (0, 1))


def _delta_as_written(q: Any, k: Any, v: Any, g: Any, beta: Any, memory: Any):
  def read(vector: Any, memory: Any) -> Any:
    return jnp.einsum("bjk,bjrkv->bjrv", vector, memory)

  memory = jnp.exp(g)[..., None, None] * memory
  d = beta[..., None] * (v - read(k, memory))
  memory = memory + k[:, :, None, :, None] * d[..., None, :]
  return read(q, memory), memory


def alternate(ours: Function, peer: Function, args: Any) -> dict[str, Any]:
  """Seconds of both, in turn, behind a call of each that is not counted."""
  taken: dict[str, list[float]] = {"ours": [], "peer": []}
  runs = {"ours": jax.jit(ours), "peer": jax.jit(peer)}
  for run in runs.values():
    jax.block_until_ready(run(*args))
  for _ in range(_SAMPLES.value):
    for name, run in runs.items():
      begin = time.perf_counter()
      jax.block_until_ready(run(*args))
      taken[name].append(time.perf_counter() - begin)
  medians = {name: statistics.median(values) for name, values in taken.items()}
  return {
    **medians,
    "ratio": medians["peer"] / medians["ours"],
    "spread": {n: [min(v), max(v)] for n, v in taken.items()},
    "samples": _SAMPLES.value,
  }


def on_gpu(operation: str, model: str, rows: int) -> dict[str, Any]:
  """The kernel against XLA, and its share of the memory's bandwidth."""
  ours = make_case(operation, model, "gpu", rows=rows)
  peer = make_case(operation, model, "reference", rows=rows)
  keys = jax.random.split(jax.random.key(0), len(ours.args))
  args = [_fill(key, leaf) for key, leaf in zip(keys, ours.args, strict=True)]
  line = alternate(ours.run, peer.run, args)
  rate, flops = CHIPS["H200"]
  floor = max(ours.read_bytes / rate, ours.flops / flops)
  share = ours.read_bytes / rate / line["ours"]
  case = {"operation": operation, "model": model, "rows": rows}
  return {**case, **line, "bandwidth": share, "floor_us": 1e6 * floor}


def _fill(key: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
  if jnp.issubdtype(leaf.dtype, jnp.floating):
    return 0.02 * jax.random.normal(key, leaf.shape, leaf.dtype)
  if leaf.dtype == jnp.bool_:
    return jnp.zeros(leaf.shape, leaf.dtype)
  return jax.random.randint(key, leaf.shape, 0, 1000).astype(leaf.dtype)


def compiled(operation: str, model: str, rows: int) -> dict[str, Any]:
  """What the TPU compiler counts, beside the floors."""
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(
    platform="tpu", topology_name=_TOPOLOGY.value
  ).devices
  case = make_case(operation, model, "tpu", rows=rows)
  where = jax.sharding.SingleDeviceSharding(devices[0])
  args = [
    jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
    for leaf in case.args
  ]
  begin = time.perf_counter()
  run = jax.jit(case.run, donate_argnums=case.donated)
  made = run.trace(*args).lower(lowering_platforms=("tpu",)).compile()
  cost: Any = made.cost_analysis()
  memory: Any = made.memory_analysis()
  rate, peak = CHIPS[_TOPOLOGY.value.split(":")[0]]
  return {
    "operation": operation,
    "model": model,
    "rows": rows,
    "topology": _TOPOLOGY.value,
    "bytes": int(cost["bytes accessed"]),
    "floor_bytes": case.read_bytes,
    "flops": int(cost["flops"]),
    "floor_flops": case.flops,
    "floor_us": 1e6 * max(case.read_bytes / rate, case.flops / peak),
    "temporary_bytes": memory.temp_size_in_bytes,
    "compile_s": time.perf_counter() - begin,
  }


def main(argv: list[str]) -> None:
  """Measures or compiles."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments {argv[1:]}.")
  lines = []
  for operation in _OPERATION.value:
    if not _TOPOLOGY.value and jax.default_backend() == "cpu":
      ours, peer, args = small(operation)
      case = {"operation": operation, "device": "cpu"}
      _print(lines, {**case, **alternate(ours, peer, args)})
      continue
    for model in _MODEL.value:
      for rows in _ROWS.value:
        measure = compiled if _TOPOLOGY.value else on_gpu
        _print(lines, measure(operation, model, rows))
  if not _TOPOLOGY.value and jax.default_backend() == "gpu":
    GPU_PAGE.write_text(_page(lines), encoding="utf-8")


def _print(lines: list[dict[str, Any]], line: dict[str, Any]) -> None:
  lines.append(line)
  print(json.dumps(line), flush=True)


def _page(lines: list[dict[str, Any]]) -> str:
  keys = ("operation", "model", "rows", "ours", "peer", "ratio", "bandwidth")
  rows = [
    " | ".join(
      f"{line[k]:.3g}" if isinstance(line[k], float) else str(line[k])
      for k in keys
    )
    for line in lines
  ]
  table = "\n".join(f"| {row} |" for row in rows)
  return (
    f"# Kernels on {jax.devices()[0].device_kind}\n\n"
    "Made by `python -m experiments.speed.kernels`; seconds, and the share of"
    " the\nmemory's bandwidth.\n\n"
    f"| {' | '.join(keys)} |\n|{' --- |' * len(keys)}\n{table}\n"
  )


if __name__ == "__main__":
  # The TPU compiler asks for a TPU's environment even where none is used.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
  app.run(main)
