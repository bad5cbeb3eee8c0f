"""One GRPO update beside a peer's: AdamW, same loss, rows and weights.

    python -m experiments.speed.grpo --peer=torch --peer_python=VENV/bin/python

Prints a JSON line; rates are tokens a second, prompts included:

    ours, peer      medians of samples taken in turns
    ratio           ours over the peer's
    samples         of each
    memory_mb       peak of each process, and the ratio ours to the peer's
    to_ceiling      share of the machine's own matrix products, measured between
                    the samples, that the update's arithmetic comes to: a pass
                    forward and two backward, without what is made again
    check           loss and gradient norm of the first update of both
"""

import json
import random
import sys
from typing import Any

from absl import app, flags

from experiments.speed import duel
from experiments.speed.smollm2_folder import smollm2_folder

_PEER = flags.DEFINE_enum("peer", "torch", ["torch", "tunix"], "Whom beside.")
_PYTHON = flags.DEFINE_string(
  "peer_python", None, "Python of its environment.", required=True
)
_SAMPLES = flags.DEFINE_integer("samples", 5, "Samples of each.")
_ROWS = flags.DEFINE_integer("rows", 8, "Rows of the update.")
_PROMPT = flags.DEFINE_integer("prompt", 128, "Tokens of a prompt.")
_NEW = flags.DEFINE_integer("new", 128, "Trained tokens of a row.")
_MICRO = flags.DEFINE_integer("micro_batch", 0, "Of ours; 0 for all rows.")
_REMAT = flags.DEFINE_boolean("remat", True, "Ours makes layers again.")
_PEER_REMAT = flags.DEFINE_boolean("peer_remat", False, "The peer does.")
_CHUNK = flags.DEFINE_integer("head_chunk", 0, "Of ours; 0 chooses.")


def update_flops(
  shape: dict[str, int], *, rows: int, length: int, new: int
) -> float:
  """Of forward and backward: products with weights, and causal attention."""
  tokens = rows * length
  weights = 2.0 * shape["layer_weights"] * tokens
  head = 2.0 * shape["head_weights"] * rows * new
  mixed = 2.0 * shape["layers"] * shape["attention_width"] * rows * length**2
  return 3 * (weights + head + mixed)


def make_case(model: str) -> dict[str, Any]:
  """Random ids of the shape of the flags."""
  lots = random.Random(0)
  length = _PROMPT.value + _NEW.value
  return {
    "model": model,
    "tokens": [
      [lots.randrange(100, 49000) for _ in range(length)]
      for _ in range(_ROWS.value)
    ],
    "new": _NEW.value,
    "advantages": [lots.gauss(0, 1) for _ in range(_ROWS.value)],
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  case = make_case(str(smollm2_folder()))
  own = {
    "remat": _REMAT.value,
    "micro_batch": _MICRO.value,
    "head_chunk": _CHUNK.value,
  }
  module = f"{_PEER.value}_update"
  with (
    duel.Contestant("ceilings", {}) as meter,
    duel.Contestant("our_update", {**case, **own}) as ours,
    duel.Contestant(
      module, {**case, "remat": _PEER_REMAT.value}, python=_PYTHON.value
    ) as peer,
  ):
    mine, theirs, ceilings = duel.take_turns(
      ours, peer, meter, samples=_SAMPLES.value
    )
  length = _PROMPT.value + _NEW.value
  made = duel.compared(
    [s["seconds"] for s in mine],
    [s["seconds"] for s in theirs],
    work=_ROWS.value * length,
  )
  flops = update_flops(
    ours.facts["shape"], rows=_ROWS.value, length=length, new=_NEW.value
  )
  seconds = _ROWS.value * length / made["ours"]
  memory = [max(s["peak_mb"] for s in taken) for taken in (mine, theirs)]
  line = {
    "what": "grpo update",
    "peer_name": _PEER.value,
    **made,
    "memory_mb": {
      "ours": round(memory[0]),
      "peer": round(memory[1]),
      "ratio": duel.rounded(memory[0] / memory[1]),
    },
    "to_ceiling": duel.rounded(ceilings.floor_s(flops=flops) / seconds),
    "ceilings": {
      "gflops": duel.rounded(ceilings.flops / 1e9),
      "read_gbps": duel.rounded(ceilings.bytes / 1e9),
    },
    "check": {
      name: [duel.rounded(s[0][name]) for s in (mine, theirs)]
      for name in ("loss", "grad_norm")
    },
    "versions": {
      "ours": ours.facts["versions"],
      "peer": peer.facts["versions"],
    },
    **duel.stamp(["experiments.speed.grpo", *sys.argv[1:]]),
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  app.run(main)
