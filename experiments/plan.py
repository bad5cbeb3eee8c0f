"""Plans a run on TPUs that are not there: compiles its steps ahead of time.

    python -m experiments.plan --model=qwen3_5_9b --topology=v5p:2x2x4

compiles, for the true shape, one sharded GRPO update and one decoding step for
that topology on this host's CPU (the extra `tpu` brings the compiler) and
prints memory per device, operations, and the largest arrays. With `--smallest`
topologies are tried from the smallest up until both programs fit.
"""

import argparse
import json
import math
import os
import pathlib
import re
import sys
import time
from typing import Any, Final

GIB: Final = 2**30
# Memory of a chip in 10^9 bytes, and its bfloat16 peak in 10^12 operations/s.
CHIPS: Final = {"v5e": (16, 197), "v5p": (95, 459), "v6e": (32, 918)}
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
BYTES: Final = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
_ARRAY = re.compile(r"= (\w+)\[([\d,]+)\]\S* ([\w-]+)\(")
_OVER = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")


def main(argv: list[str] | None = None) -> int:
  """Compiles what the flags name; prints and writes the table."""
  args = _flags().parse_args(argv)
  problem = prepare(args.topology or "v5e")
  if problem:
    print(f"plan: {problem}", file=sys.stderr)
    return 2
  rows = []
  for topology in _tried(args):
    for program in args.program.split(","):
      row = plan(args, topology, program)
      rows.append(row)
      print(table([row]), flush=True)
      if args.json:
        write(pathlib.Path(args.json), row)
    if args.smallest and all(
      any(r["fits"] for r in rows if r["program"] == program)
      for program in args.program.split(",")
    ):
      break
  for program in args.program.split(","):
    fitting = [r for r in rows if r["program"] == program and r["fits"]]
    if args.smallest and fitting:
      first = fitting[0]["topology"]
      print(f"Smallest for the {program} of {args.model}: {first}.")
  return 0


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
  from experiments import plan_flops, plan_programs

  kind, grid = topology.split(":")
  chips = math.prod(map(int, grid.split("x")))
  mesh = _mesh(args, kind, chips, program)
  setting = plan_programs.Setting(
    model=args.model,
    topology=topology,
    mesh=mesh,
    prompt=args.prompt,
    response=args.response,
    rows=args.rows or max(mesh[0] * mesh[1], 1),
    micro=args.micro,
    groups=args.groups or mesh[0] * mesh[1],
    samples=args.samples,
    lora_rank=args.lora_rank,
  )
  started = time.perf_counter()
  lowered = plan_programs.lower(setting, program)
  row: dict[str, Any] = {
    "model": args.model,
    "program": program,
    "topology": topology,
    "chips": chips,
    "mesh": "x".join(map(str, mesh)),
    "lora_rank": args.lora_rank,
    "rows": setting.rows
    if program == "step"
    else setting.groups * setting.samples,
    "tokens": args.prompt + args.response,
  }
  config = plan_programs.CONFIGS[args.model]()
  if program == "step":
    flops = plan_flops.step_flops(
      config,
      rows=setting.rows,
      length=args.prompt + args.response,
      width=args.response,
    )
  else:
    flops = plan_flops.decode_flops(
      config, rows=row["rows"], past=args.prompt + args.response
    )
  row["flops"] = flops
  try:
    compiled = lowered.compile()
  except Exception as error:  # the compiler's own type is private
    over = _OVER.search(str(error))
    if over is None:
      raise
    used = float(over[1]) * {"K": 2**10, "M": 2**20, "G": GIB}[over[2]]
    row |= {"fits": False, "needed": int(used), "largest": []}
  else:
    row |= measures(compiled, kind)
    parts = mesh[1] * mesh[2] if program == "step" else mesh[2]
    check_no_logits(row["arrays"], vocab=config.vocab_size, parts=parts)
    row["largest"] = row.pop("arrays")[:8]
  row["compile_s"] = round(time.perf_counter() - started, 1)
  row["needed_gb"] = round(row["needed"] / 1e9, 2)
  # Operations a byte, each byte that the program holds counted once.
  row["intensity"] = round(flops["total"] / (row["needed"] * chips), 1)
  return row


def measures(compiled: Any, kind: str) -> dict[str, Any]:
  """Memory per device and the arrays of a compiled program."""
  memory = compiled.memory_analysis()
  parts = {
    "arguments": memory.argument_size_in_bytes,
    "temporaries": memory.temp_size_in_bytes,
    "code": memory.generated_code_size_in_bytes,
    "fresh_outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
  }
  needed = sum(parts.values())
  found = largest_arrays(compiled.as_text())
  return {
    "memory": parts,
    "needed": needed,
    "fits": needed <= CHIPS[kind][0] * 1e9,
    "arrays": found,
  }


def largest_arrays(text: str) -> list[dict[str, Any]]:
  """Arrays of a compiled program's text by size, each shape once."""
  found: dict[str, dict[str, Any]] = {}
  for kind, shape, operation in _ARRAY.findall(text):
    if kind not in BYTES or operation in ("parameter", "get-tuple-element"):
      continue
    size = math.prod(map(int, shape.split(","))) * BYTES[kind]
    name = f"{kind}[{shape}]"
    found.setdefault(name, {"array": name, "bytes": size, "by": operation})
  return sorted(found.values(), key=lambda a: -a["bytes"])


def check_no_logits(
  arrays: list[dict[str, Any]], *, vocab: int, parts: int
) -> None:
  """Looks for logits of many tokens at once.

  Args:
    arrays: from `largest_arrays`.
    vocab: size of the vocabulary.
    parts: pieces that it is cut into.

  Raises:
    AssertionError: a float32 array of the vocabulary, whole or one device's
      piece, is larger than the learner's limit for a chunk of logits.
  """
  from varl_jax.rl.logprobs import MAX_LOGITS

  for array in arrays:
    kind, sizes = array["array"].rstrip("]").split("[")
    shape = [int(size) for size in sizes.split(",")]
    found = {vocab, vocab // parts} & set(shape)
    # Of the head and its moments, [V, D], D is no number of tokens.
    if kind == "f32" and found and math.prod(shape) > 2 * MAX_LOGITS:
      if len(shape) - shape.count(1) > 2 or shape[-1] in found:
        raise AssertionError(
          f"The program holds {array['array']}: tokens by vocabulary."
        )


def table(rows: list[dict]) -> str:
  """Markdown of plans, sizes in GB (10^9 bytes) a device."""
  head = (
    "| model | program | topology | mesh d x f x t | rows | arguments |"
    " temporaries | code | needed | HBM | fits | PFLOP | compile s |"
  )
  lines = [head, "|" + " --- |" * 13]
  for row in rows:
    memory = row.get("memory", {})
    cells = [
      row["model"] + (f" rank {row['lora_rank']}" if row["lora_rank"] else ""),
      row["program"],
      row["topology"],
      row["mesh"],
      row["rows"],
      *(
        f"{memory[name] / 1e9:.2f}" if name in memory else "-"
        for name in ("arguments", "temporaries", "code")
      ),
      row["needed_gb"],
      CHIPS[row["topology"].split(":")[0]][0],
      "yes" if row["fits"] else "no",
      f"{row['flops']['total'] / 1e15:.3g}",
      row["compile_s"],
    ]
    lines.append("| " + " | ".join(map(str, cells)) + " |")
  return "\n".join(lines)


def write(path: pathlib.Path, row: dict) -> None:
  """Adds a plan to a JSON file, in the place of one of the same program."""
  rows = json.loads(path.read_text()) if path.exists() else []
  keys = ("model", "program", "topology", "mesh", "rows", "lora_rank", "tokens")
  rows = [r for r in rows if any(r[k] != row[k] for k in keys)] + [row]
  path.write_text(json.dumps(rows, indent=1) + "\n")
  path.with_suffix(".md").write_text(
    "# Ahead-of-time plans\n\nMade by `experiments/plan.py`; sizes in GB a"
    " device.\n\n" + table(rows) + "\n"
  )


def _mesh(
  args: argparse.Namespace, kind: str, chips: int, program: str
) -> tuple[int, int, int]:
  if args.mesh:
    data, fsdp, tensor = (int(size) for size in args.mesh.split("x"))
    return data, fsdp, tensor
  tensor = 4 if program == "decode" or kind == "v5e" else 1
  return (
    (chips // tensor, 1, tensor)
    if program == "decode"
    else (
      1,
      chips // tensor,
      tensor,
    )
  )


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
  flags.add_argument("--rows", type=int, default=0, help="of the mini-batch")
  flags.add_argument("--micro", type=int, default=0, help="rows a micro-batch")
  flags.add_argument("--groups", type=int, default=0, help="prompts decoded")
  flags.add_argument("--samples", type=int, default=8)
  flags.add_argument("--lora-rank", type=int, default=0)
  flags.add_argument("--smallest", action="store_true")
  flags.add_argument("--json", default="")
  return flags


if __name__ == "__main__":
  sys.exit(main())
