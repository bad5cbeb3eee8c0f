"""Sampling beside a peer's: same weights, prompts and lengths, temperature 1.

    python -m experiments.speed.sampler --peer=hf --peer_python=VENV/bin/python

Prints a JSON line a case, rates in new tokens a second:

    ours, peer     medians of samples taken in turns
    ratio          ours over the peer's
    samples        of each
    memory_mb      peak of each process
    to_ceiling     the least time over ours: arithmetic of
                   the prompts at its matrix products, weights read once a step

Cases: `b8` and `b32` are that many prompts; `shared` is 4 prompts of 512 tokens
with 8 answers each; `unequal` has answers of geometric lengths in 64 rows.
"""

import json
import random
import sys
from typing import Any

from absl import app, flags

from experiments.speed import duel
from experiments.speed.smollm2_folder import smollm2_folder
from varl_jax.models.loading import smollm2_file

_PEER = flags.DEFINE_enum("peer", "hf", ["hf", "tunix", "llama_cpp"], "Beside.")
_PYTHON = flags.DEFINE_string(
  "peer_python", None, "Python of its environment.", required=True
)
_CASES = flags.DEFINE_multi_enum(
  "case",
  ["b8", "b32", "shared", "unequal"],
  ["b8", "b32", "shared", "unequal"],
  "What to measure.",
)
_SAMPLES = flags.DEFINE_integer("samples", 5, "Samples of each.")
_PROMPT = flags.DEFINE_integer("prompt", 128, "Tokens of a prompt.")
_NEW = flags.DEFINE_integer("new", 128, "New tokens; the mean, if unequal.")
_LONG = flags.DEFINE_integer("long_prompt", 512, "The same in `shared`.")
_ANSWERS = flags.DEFINE_integer("answers", 128, "Answers of `unequal`.")


def make_case(name: str, model: str) -> dict[str, Any]:
  """Random ids; `rows` at a time where a peer has static batches."""
  lots = random.Random(0)
  count, answers, prompt, rows = {
    "b8": (8, 1, _PROMPT.value, 8),
    "b32": (32, 1, _PROMPT.value, 32),
    "shared": (4, 8, _LONG.value, 32),
    "unequal": (_ANSWERS.value, 1, _PROMPT.value, 64),
  }[name]
  new = _NEW.value
  limits = [new] * count
  if name == "unequal":
    limits = [
      min(4 * new, 1 + int(lots.expovariate(1 / new))) for _ in range(count)
    ]
  return {
    "model": model,
    "gguf": str(smollm2_file()),
    "prompts": [
      [lots.randrange(100, 49000) for _ in range(prompt)] for _ in range(count)
    ]
    if name != "unequal"
    else [[lots.randrange(100, 49000) for _ in range(prompt)]] * count,
    "n": answers,
    "rows": rows,
    "limits": limits,
  }


def floor_s(
  case: dict[str, Any], shape: dict[str, int], ceilings: duel.Ceilings
) -> float:
  """Seconds that the prompts and the steps of decoding take at least."""
  weights = shape["layer_weights"] + shape["head_weights"]
  read = 2.0 * shape["layer_weights"] * sum(map(len, case["prompts"]))
  tokens = sum(case["limits"]) * case["n"]
  steps = max(max(case["limits"]), tokens / case["rows"])
  return ceilings.floor_s(flops=read) + ceilings.floor_s(
    flops=2.0 * weights * tokens, bytes=4.0 * weights * steps
  )


def measure(name: str, model: str) -> dict[str, Any]:
  """The line of one case."""
  case = make_case(name, model)
  tokens = sum(case["limits"]) * case["n"]
  with (
    duel.Contestant("ceilings", {}) as meter,
    duel.Contestant("our_generate", case) as ours,
    duel.Contestant(
      f"{_PEER.value}_generate", case, python=_PYTHON.value
    ) as peer,
  ):
    mine, theirs, ceilings = duel.take_turns(
      ours, peer, meter, samples=_SAMPLES.value
    )
  made = duel.compared(
    [s["seconds"] for s in mine], [s["seconds"] for s in theirs], work=tokens
  )
  least = floor_s(case, ours.facts["shape"], ceilings)
  return {
    "what": f"sampling {name}",
    "peer_name": _PEER.value,
    **made,
    "new_tokens": tokens,
    "memory_mb": {
      "ours": round(max(s["peak_mb"] for s in mine)),
      "peer": round(max(s["peak_mb"] for s in theirs)),
    },
    "to_ceiling": duel.rounded(least * made["ours"] / tokens),
    "ceilings": {
      "gflops": duel.rounded(ceilings.flops / 1e9),
      "read_gbps": duel.rounded(ceilings.bytes / 1e9),
    },
    "versions": {
      "ours": ours.facts["versions"],
      "peer": peer.facts["versions"],
    },
    **duel.stamp(["experiments.speed.sampler", *sys.argv[1:]]),
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  model = str(smollm2_folder())
  for name in _CASES.value:
    print(json.dumps(measure(name, model)), flush=True)


if __name__ == "__main__":
  app.run(main)
