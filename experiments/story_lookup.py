"""Tells how the use of a tool went in a run of `configs/story.py:lookup`.

    python -m varl_jax.main --config=configs/story.py:lookup --workdir=runs/look
    python -m experiments.story_lookup --run=runs/look

Reads the run's metrics; writes `experiments/results/story_lookup.json` and the
page beside it.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, Final

from absl import app, flags

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

_RUN = flags.DEFINE_string("run", "runs/story_lookup", "The run's folder.")


def curve(lines: Sequence[str]) -> list[dict[str, float]]:
  """What is kept of each trained step."""
  found = []
  for line in lines:
    record = json.loads(line)
    if "tools/calls" in record:
      found.append({k: record[k] for k in ("step", *KEPT) if k in record})
  return found


def page(steps: Sequence[dict[str, float]], settings: dict[str, Any]) -> str:
  """The curve as a table of means over `WINDOW` steps."""
  lines = [
    "# A tool that pays, and its use",
    "",
    f"Seed {settings['seed']}, {len(steps)} steps,"
    f" {settings['train']['tasks_per_step']} tasks of"
    f" {settings['train']['samples']} answers a step. One criterion of each"
    " rubric asks for a word that only the tool `lookup` tells. One run; made"
    " by `python -m experiments.story_lookup`.",
    "",
    "| steps | reward | answers with a result | calls that failed |",
    "| --- | --- | --- | --- |",
  ]
  for start in range(0, len(steps), WINDOW):
    part = steps[start : start + WINDOW]

    def mean(name: str, part: Sequence[dict[str, float]] = part) -> str:
      found = [step[name] for step in part if name in step]
      return f"{sum(found) / len(found):.3f}" if found else "-"

    span = f"{part[0]['step']:.0f}-{part[-1]['step']:.0f}"
    cells = map(mean, ("reward/mean", "tools/answers", "tools/failed"))
    lines.append(f"| {' | '.join([span, *cells])} |")
  return "\n".join(lines) + "\n"


def main(_):
  """Reads the run, writes both files."""
  folder = pathlib.Path(_RUN.value)
  steps = curve((folder / "metrics.jsonl").read_text().splitlines())
  settings = json.loads((folder / "config.json").read_text())
  result = {"seed": settings["seed"], "steps": steps}
  text = json.dumps(result, indent=1) + "\n"
  (RESULTS / "story_lookup.json").write_text(text)
  (RESULTS / "story_lookup.md").write_text(page(steps, settings))


if __name__ == "__main__":
  app.run(main)
