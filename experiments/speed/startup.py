"""Time to a first GRPO update beside a peer's: a process, import, compilation.

    python -m experiments.speed.startup --peer=tunix --peer_python=V/bin/python

Every sample is a new process that makes one update of two short rows. Ours
starts without compiled programs (`cold`), then with those of an earlier process
(`warm`, as every run but the first on a machine, since `varl_jax.main` keeps
them). Prints a JSON line for each, in seconds; `ratio` is ours over the peer's,
`load_s` the part of each that reads the weights and imports what does.
"""

import json
import random
import statistics
import sys
import tempfile
from typing import Any

from absl import app, flags

from experiments.speed import duel
from experiments.speed.smollm2_folder import smollm2_folder

_PEER = flags.DEFINE_enum("peer", "tunix", ["torch", "tunix"], "Whom beside.")
_PYTHON = flags.DEFINE_string(
  "peer_python", None, "Python of its environment.", required=True
)
_SAMPLES = flags.DEFINE_integer("samples", 5, "Samples of each.")


def started(module: str, case: dict[str, Any], **how: Any) -> dict[str, float]:
  """Seconds from the start of a process to its first update."""
  with duel.Contestant(module, case, **how) as one:
    one.sample(0)
    return {"seconds": one.since_start(), "load_s": one.facts["load_s"]}


def make_case() -> dict[str, Any]:
  """Two rows of 16 tokens: the arithmetic takes no time."""
  lots = random.Random(0)
  return {
    "model": str(smollm2_folder()),
    "tokens": [[lots.randrange(100, 49000) for _ in range(16)] for _ in "ab"],
    "new": 8,
    "advantages": [1.0, -1.0],
    "remat": True,
    "cache": True,
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  case = make_case()
  taken: dict[str, list[dict[str, float]]] = {
    "cold": [],
    "warm": [],
    "peer": [],
  }
  for _ in range(_SAMPLES.value):
    with tempfile.TemporaryDirectory() as folder:
      environment = {"XDG_CACHE_HOME": folder}
      for kind in ("cold", "warm"):
        taken[kind].append(started("our_update", case, environment=environment))
    taken["peer"].append(
      started(f"{_PEER.value}_update", case, python=_PYTHON.value)
    )
  peer = [s["seconds"] for s in taken["peer"]]
  for kind in ("cold", "warm"):
    ours = [s["seconds"] for s in taken[kind]]
    middle = statistics.median(ours), statistics.median(peer)
    line = {
      "what": f"start to first update, {kind}",
      "peer_name": _PEER.value,
      "ours": duel.rounded(middle[0]),
      "peer": duel.rounded(middle[1]),
      "ratio": duel.rounded(middle[0] / middle[1]),
      "samples": len(ours),
      "spread": {"ours": duel.spread(ours), "peer": duel.spread(peer)},
      "load_s": {
        name: duel.rounded(statistics.median(s["load_s"] for s in taken[key]))
        for name, key in (("ours", kind), ("peer", "peer"))
      },
      **duel.stamp(["experiments.speed.startup", *sys.argv[1:]]),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  app.run(main)
