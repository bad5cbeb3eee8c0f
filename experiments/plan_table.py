"""Tables of plans: memory, operations and the smallest that fit."""

import json
import pathlib
from typing import Final

# Of a chip: memory in 10^9 bytes, bfloat16 peak in 10^12 operations/s, and
# memory bandwidth in 10^9 bytes/s.
CHIPS: Final = {
  "v5e": (16, 197, 819),
  "v5p": (95, 459, 2765),
  "v6e": (32, 918, 1640),
}
KEYS: Final = (
  "model",
  "program",
  "topology",
  "mesh",
  "rows",
  "micro",
  "lora_rank",
  "tokens",
)
TITLE: Final = """# Ahead-of-time plans

Made by `experiments/plan.py`: memory as the TPU compiler laid it out, in GB of
10^9 bytes a device, beside the chip's; operations by the formulas of
`plan_flops.py` (a step's are those of a whole mini-batch, of decoding those of
one token a row); operations by byte moved after `plan_traffic.py`, with the
chip's own ratio of peak to bandwidth behind it. `fp32 logits` lists temporaries
with the logits of more tokens than a chunk has. Where the weights and moments
alone do not fit, nothing was compiled."""


def table(rows: list[dict]) -> str:
  """Markdown of plans, sizes in GB (10^9 bytes) a device."""
  names = (
    "model",
    "program",
    "topology",
    "mesh d x f x t",
    "rows / micro",
    "arguments",
    "temporaries",
    "needed",
    "HBM",
    "fits",
    "PFLOP",
    "FLOP/byte (chip)",
    "fp32 logits",
    "compile s",
  )
  lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
  for row in sorted(rows, key=_order):
    memory = row["memory"]
    gigabytes, peak, bandwidth = CHIPS[row["topology"].split(":")[0]]
    cells = [
      _model(row),
      row["program"],
      row["topology"],
      row["mesh"],
      f"{row['rows']} / {row['micro']}" if row["micro"] else row["rows"],
      *(
        f"{memory[name] / 1e9:.2f}" if name in memory else "-"
        for name in ("arguments", "temporaries")
      ),
      f"{'' if row['compile_s'] else 'over '}{row['needed_gb']}",
      gigabytes,
      "yes" if row["fits"] else "no",
      f"{row['flops']['total'] / 1e15:.3g}",
      f"{row['intensity']} ({1e3 * peak / bandwidth:.0f})",
      ", ".join(row["fp32_logits"]) or "none",
      row["compile_s"],
    ]
    lines.append("| " + " | ".join(map(str, cells)) + " |")
  return "\n".join(lines)


def largest(rows: list[dict]) -> str:
  """Markdown of each plan's largest temporaries."""
  lines = ["| program | largest temporaries, GB |", "| --- | --- |"]
  for row in sorted(rows, key=_order):
    name = f"{_model(row)} {row['program']} {row['topology']} {row['mesh']}"
    listed = ", ".join(
      f"{found['array']} {found['bytes'] / 1e9:.2f}" for found in row["largest"]
    )
    lines.append(f"| {name} | {listed or '-'} |")
  return "\n".join(lines)


def smallest(rows: list[dict]) -> str:
  """A sentence for each program and family: the fewest chips that suffice."""
  found: dict[tuple[str, ...], dict] = {}
  for row in sorted(rows, key=lambda r: -r["chips"]):
    kind = row["topology"].split(":")[0]
    if row["fits"]:
      found[_model(row), row["program"], kind] = row
  return "\n".join(
    f"Smallest {kind} seen to fit the {program} of {model}: {row['topology']}"
    f" ({row['chips']} chips), mesh {row['mesh']}."
    for (model, program, kind), row in sorted(found.items())
  )


def write(path: pathlib.Path, row: dict) -> None:
  """Adds a plan to a JSON file, in the place of one of the same program."""
  rows = json.loads(path.read_text()) if path.exists() else []
  rows = [r for r in rows if any(r[k] != row[k] for k in KEYS)] + [row]
  path.write_text(json.dumps(rows, indent=1) + "\n")
  sentences = "\n".join(f"- {line}" for line in smallest(rows).splitlines())
  path.with_suffix(".md").write_text(
    f"{TITLE}\n\n{table(rows)}\n\n{sentences}\n\n## Largest temporaries\n\n"
    f"{largest(rows)}\n"
  )


def _model(row: dict) -> str:
  return row["model"] + (
    f" rank {row['lora_rank']}" if row["lora_rank"] else ""
  )


def _order(row: dict) -> tuple:
  kind = row["topology"].split(":")[0]
  return (row["program"], row["model"], kind, row["chips"], row["lora_rank"])
