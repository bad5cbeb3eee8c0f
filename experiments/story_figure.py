"""Draws the arms of the story world from their saved result.

python -m experiments.story_figure --out=docs/story_result.png
"""

import json
import pathlib

from absl import app, flags

from experiments.figures import style
from experiments.saved import label

PANELS = {
  "reward/mean": "own training reward",
  "eval/score": "hidden expert score",
}

_RESULT = flags.DEFINE_string(
  "result", "experiments/results/story_arms.json", "The saved result."
)
_OUT = flags.DEFINE_string("out", "docs/story_result.png", "Picture to write.")


def main(_):
  """What each arm pays itself, and what a reader would say."""
  result = json.loads(pathlib.Path(_RESULT.value).read_text())
  drawn = [arm for arm in style.LOOKS if arm in result["curves"]]
  plots = style.pyplot()
  figure, axes = plots.subplots(
    1, 2, figsize=(style.WIDTH, 2.7), sharey=True, layout="constrained"
  )
  for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
    for arm in drawn:
      look = style.LOOKS[arm]
      curve = result["curves"][arm][key]
      every = 5 if key == "reward/mean" else 1
      axis.plot(
        curve["step"],
        curve["mean"],
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markeredgecolor=style.INK,
        markeredgewidth=0.5,
        markersize=4.5,
        markevery=every,
        label=label(arm),
      )
      axis.fill_between(
        curve["step"],
        [m - e for m, e in zip(curve["mean"], curve["standard_error"])],
        [m + e for m, e in zip(curve["mean"], curve["standard_error"])],
        color=look.colour,
        alpha=0.25,
        linewidth=0,
      )
    axis.set_title(title)
    axis.set_xlabel("training step")
    axis.set_ylim(0, 1)
  axes[1].legend(loc="upper left")
  figure.supxlabel(
    f"Story world, an offline simulation: mean and standard error over"
    f" {len(result['seeds'])} seeds.",
    fontsize=style.FOOT + 0.6,
    color=style.QUIET,
  )
  figure.savefig(_OUT.value, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
  app.run(main)
