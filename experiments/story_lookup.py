"""Whether a policy learns to call a tool where that pays, and only there.

    python -m varl_jax.main --config=configs/story.py:lookup \
        --workdir=runs/look --config.eval.interval=0
    python -m experiments.story_lookup --train_unpaid=runs/unpaid
    python -m experiments.story_lookup --paid=runs/look --unpaid=runs/unpaid

The second run has the same policy and the same tool, and rubrics that ask for
nothing one could look up. The last command reads the metrics of both, or of the
first alone, and writes `experiments/results/story_lookup.json` and the page
beside it.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Final

from absl import app, flags

from configs.story import get_config
from varl_jax import build
from varl_jax.config import Config, from_config_dict
from varl_jax.domains import Domain, load_domain
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.story import lookup, writers

RESULTS: Final = pathlib.Path(__file__).parent / "results"
KEPT: Final = (
  "reward/mean",
  "tools/calls",
  "tools/answers",
  "tools/failed",
  "tools/tokens",
  "rollout/length",
)
# Steps that a row of the page takes the mean of.
WINDOW: Final = 5

_PAID = flags.DEFINE_string("paid", "", "Folder of the run that pays.")
_UNPAID = flags.DEFINE_string("unpaid", "", "Folder of the other.")
_TRAIN = flags.DEFINE_string("train_unpaid", "", "Train the other here.")


def unpaid_domain(config: Config) -> Domain:
  """The sign world whose rubrics ask for no sign."""
  responders = {**lookup.CHAT.responders, "generator": writers.generate}
  chat = ScriptedChat(name="story-script-1", responders=responders)
  return dataclasses.replace(load_domain(config), chat=chat)


def train_unpaid(folder: pathlib.Path) -> int:
  """Trains in the world where looking up does not pay."""
  tree = get_config("lookup").to_dict()
  tree["name"] = "story_lookup_unpaid"
  tree["eval"]["interval"] = 0
  build.load_domain = unpaid_domain
  return build.run(from_config_dict(tree), folder)


def curve(lines: Sequence[str]) -> list[dict[str, float]]:
  """What is kept of each trained step."""
  found = []
  for line in lines:
    record = json.loads(line)
    if "tools/calls" in record:
      found.append({k: record[k] for k in ("step", *KEPT) if k in record})
  return found


def page(runs: dict[str, list[dict[str, float]]]) -> str:
  """The curves as a table of means over `WINDOW` steps."""
  lines = [
    "# A tool that pays, and its use",
    "",
    "In `paid` one criterion of each rubric asks for a word that only the tool"
    " `lookup` tells, in `unpaid` none does. One run each, seed 0; made by"
    " `python -m experiments.story_lookup`.",
    "",
  ]
  shown = ("answers with a result", "reward")
  heads = [f"{name}: {what}" for name in runs for what in shown]
  lines.append(f"| {' | '.join(['steps', *heads])} |")
  lines.append(f"|{' --- |' * (1 + len(heads))}")
  longest = max(map(len, runs.values()))
  for start in range(0, longest, WINDOW):
    cells = [f"{start + 1}-{min(start + WINDOW, longest)}"]
    for steps in runs.values():
      for name in ("tools/answers", "reward/mean"):
        part = [step[name] for step in steps[start : start + WINDOW]]
        cells.append(f"{sum(part) / len(part):.3f}" if part else "-")
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def main(_):
  """Trains the second run, or reads both."""
  if _TRAIN.value:
    return train_unpaid(pathlib.Path(_TRAIN.value))
  runs = {}
  for name, folder in (("paid", _PAID.value), ("unpaid", _UNPAID.value)):
    if not folder:
      continue
    text = (pathlib.Path(folder) / "metrics.jsonl").read_text()
    runs[name] = curve(text.splitlines())
  text = json.dumps(runs, indent=1) + "\n"
  (RESULTS / "story_lookup.json").write_text(text)
  (RESULTS / "story_lookup.md").write_text(page(runs))
  return 0


if __name__ == "__main__":
  app.run(main)
