"""Plans a run on TPUs that are not there: compiles its steps ahead of time.

    python -m experiments.plan --model=qwen3_5_9b --topology=v5p:2x2x4

compiles, for the true shape, one sharded GRPO update and one decoding step for
that topology on this host's CPU (the extra `tpu` brings the compiler) and
prints memory per device, operations, arithmetic intensity and, in the file of
`--json`, the largest temporaries. With `--smallest` topologies are tried from
the smallest up until both programs fit.

The update is one mini-batch of the paper, 16 tasks of 8 answers, in
micro-batches of a row for each piece that the mesh cuts a batch into.
"""

import argparse
import json
import math
import os
import pathlib
import sys
from typing import Any, Final

from experiments.plan_table import CHIPS, smallest, table, write

# What `--smallest` tries, in this order.
TOPOLOGIES: Final = {
  "v5e": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
  "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"),
  "v6e": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16"),
}
ACCELERATORS: Final = {
  "v5e": "v5litepod-16",
  "v5p": "v5p-32",
  "v6e": "v6e-16",
}
LISTED: Final = 8


def main(argv: list[str] | None = None) -> int:
  """Compiles what the flags name; prints and writes the table."""
  args = _flags().parse_args(argv)
  problem = prepare(args.topology or "v5e")
  if problem:
    print(f"plan: {problem}", file=sys.stderr)
    return 2
  rows: list[dict] = []
  for program in args.program.split(","):
    for topology in _tried(args):
      row = _found(args, topology, program) or plan(args, topology, program)
      rows.append(row)
      print(table([row]), flush=True)
      if args.json:
        write(pathlib.Path(args.json), row)
      if args.smallest and row["fits"]:
        break
  print(smallest(rows))
  wrong = [row["topology"] for row in rows if row["fp32_logits"]]
  if wrong:
    print(f"plan: Logits of many tokens on {wrong}.", file=sys.stderr)
  return 1 if wrong else 0


def prepare(topology: str) -> str:
  """Makes the TPU compiler usable without a TPU; says what is missing."""
  import importlib.util

  kind = topology.split(":")[0]
  if kind not in CHIPS:
    return f"Unknown chip {kind!r}; choose {', '.join(CHIPS)}."
  if importlib.util.find_spec("libtpu") is None:
    return (
      "The TPU compiler (libtpu) is not installed; install it with: pip install"
      ' "varl_jax[tpu]".'
    )
  for name, value in (
    ("JAX_PLATFORMS", "cpu"),
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", ACCELERATORS[kind]),
    # Nothing runs there: several compilers may work side by side.
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
  ):
    os.environ.setdefault(name, value)
  return ""


def plan(args: argparse.Namespace, topology: str, program: str) -> dict:
  """Compiles one program for one topology and describes it."""
  from experiments import plan_compile, plan_programs

  kind, grid = topology.split(":")
  chips = math.prod(map(int, grid.split("x")))
  mesh = _mesh(args, kind, chips, program)
  parts = mesh[0] * mesh[1]
  rows = max(args.rows, parts)
  setting = plan_programs.Setting(
    model=args.model,
    topology=topology,
    mesh=mesh,
    prompt=args.prompt,
    response=args.response,
    rows=rows,
    micro=(args.micro or parts) % rows,
    groups=args.groups or parts,
    samples=args.samples,
    lora_rank=args.lora_rank,
  )
  row = describe(setting, program)
  limit = CHIPS[kind][0] * 1e9
  if row["needed"] > limit:
    return row
  made = plan_compile.compile_apart(setting, program, whole=args.whole)
  row |= {
    "memory": made.memory,
    "compile_s": round(made.seconds, 1),
    "largest": made.buffers[:LISTED],
  }
  config = plan_programs.CONFIGS[args.model]()
  row["fp32_logits"] = plan_compile.logits_among(
    made.buffers,
    vocab=config.vocab_size,
    width=config.hidden_size,
    parts=mesh[1] * mesh[2] if program == "step" else mesh[2],
  )
  row["needed"] = sum(made.memory.values()) or made.over
  row["needed_gb"] = round(row["needed"] / 1e9, 2)
  row["fits"] = not made.over and row["needed"] <= limit
  return row


def describe(setting: Any, program: str) -> dict[str, Any]:
  """What is known of a program without a compiler.

  Where weights, with their moments if they are trained, do not fit, nothing
  does; of those that fit the compiler says what they need.
  """
  from experiments import plan_flops, plan_programs, plan_traffic

  config = plan_programs.CONFIGS[setting.model]()
  length = setting.prompt + setting.response
  data, fsdp, tensor = setting.mesh
  cut = plan_traffic.Cut(data=data, fsdp=fsdp, tensor=tensor)
  weights = sum(plan_flops.matrix_sizes(config)) + config.vocab_size * (
    config.hidden_size
  )
  if program == "step":
    held = weights * (2 if setting.lora_rank else 12) // (fsdp * tensor)
    rows, micro = setting.rows, setting.micro or setting.rows
    size = {
      "rows": rows,
      "length": length,
      "width": setting.response,
      "adapters": setting.lora_rank > 0,
    }
    flops = plan_flops.step_flops(config, **size)
    moved = plan_traffic.step_bytes(config, **size, micro=micro, cut=cut)
  else:
    held = 2 * weights // tensor
    rows, micro = setting.groups * setting.samples, 0
    flops = plan_flops.decode_flops(config, rows=rows, past=length)
    moved = plan_traffic.decode_bytes(
      config,
      groups=setting.groups,
      samples=setting.samples,
      prompt=setting.prompt,
      response=setting.response,
      cut=cut,
    )
  chips = math.prod(setting.mesh)
  return {
    "model": setting.model,
    "program": program,
    "topology": setting.topology,
    "chips": chips,
    "mesh": "x".join(map(str, setting.mesh)),
    "lora_rank": setting.lora_rank,
    "rows": rows,
    "micro": micro,
    "tokens": length,
    "flops": flops,
    "moved": moved,
    # Operations a byte that a device moves.
    "intensity": round(flops["total"] / chips / moved["total"], 1),
    "memory": {"arguments": held},
    "needed": held,
    "needed_gb": round(held / 1e9, 2),
    "fits": False,
    "compile_s": 0.0,
    "largest": [],
    "fp32_logits": [],
  }


def _mesh(
  args: argparse.Namespace, kind: str, chips: int, program: str
) -> tuple[int, int, int]:
  if args.mesh:
    data, fsdp, tensor = (int(size) for size in args.mesh.split("x"))
    return data, fsdp, tensor
  # Four key-value heads are as many as `tensor` can split.
  tensor = 1 if program == "step" and kind == "v5p" else 4
  rest = chips // tensor
  return (rest, 1, tensor) if program == "decode" else (1, rest, tensor)


def _found(
  args: argparse.Namespace, topology: str, program: str
) -> dict | None:
  """With `--resume`, the plan of an earlier call."""
  path = pathlib.Path(args.json)
  if not args.resume or not args.json or not path.exists():
    return None
  kind, grid = topology.split(":")
  chips = math.prod(map(int, grid.split("x")))
  wanted = {
    "model": args.model,
    "program": program,
    "topology": topology,
    "mesh": "x".join(map(str, _mesh(args, kind, chips, program))),
    "lora_rank": args.lora_rank,
    "tokens": args.prompt + args.response,
  }
  for row in json.loads(path.read_text()):
    if all(row[name] == value for name, value in wanted.items()):
      return row
  return None


def _tried(args: argparse.Namespace) -> list[str]:
  if args.topology and ":" in args.topology and not args.smallest:
    return [args.topology]
  kind = (args.topology or "v5e").split(":")[0]
  return [f"{kind}:{grid}" for grid in TOPOLOGIES[kind]]


def _flags() -> argparse.ArgumentParser:
  flags = argparse.ArgumentParser(description=__doc__)
  flags.add_argument("--model", default="qwen3_5_9b")
  flags.add_argument("--topology", default="", help="such as v5p:2x2x4, or v5p")
  flags.add_argument("--program", default="step,decode")
  flags.add_argument("--mesh", default="", help="data x fsdp x tensor: 1x16x1")
  flags.add_argument("--prompt", type=int, default=6144)
  flags.add_argument("--response", type=int, default=8192)
  flags.add_argument("--rows", type=int, default=128, help="of a mini-batch")
  flags.add_argument("--micro", type=int, default=0, help="rows a micro-batch")
  flags.add_argument("--groups", type=int, default=0, help="prompts decoded")
  flags.add_argument("--samples", type=int, default=8)
  flags.add_argument("--lora-rank", type=int, default=0)
  flags.add_argument("--smallest", action="store_true")
  flags.add_argument(
    "--whole", action="store_true", help="generate code too: minutes more"
  )
  flags.add_argument("--json", default="", help="file that plans are added to")
  flags.add_argument(
    "--resume", action="store_true", help="take what --json has already"
  )
  return flags


if __name__ == "__main__":
  sys.exit(main())
