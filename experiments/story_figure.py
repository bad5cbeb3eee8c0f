"""Draws the arms of the story world from their saved result.

pip install matplotlib
python -m experiments.story_figure --out=docs/story_result.png
"""

import json
import pathlib

from absl import app, flags
from matplotlib import pyplot

LOOKS = {
  "generation_only": ("Generation Only", "#8a8a8a", "o"),
  "co_evolve_only": ("Co-evolve Only", "#3b75af", "s"),
  "rri": ("RRI", "#d1495b", "D"),
}
PANELS = {
  "reward/mean": "own training reward",
  "eval/score": "hidden expert score",
}

_RESULT = flags.DEFINE_string(
  "result", "experiments/results/story_arms.json", "The saved result."
)
_OUT = flags.DEFINE_string("out", "docs/story_result.png", "Picture to write.")


def main(_):
  """Two panels: what each arm pays itself, and what a reader would say."""
  result = json.loads(pathlib.Path(_RESULT.value).read_text())
  figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
  for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
    for arm, (label, colour, marker) in LOOKS.items():
      curve = result["curves"][arm][key]
      every = 5 if key == "reward/mean" else 1
      axis.plot(
        curve["step"],
        curve["mean"],
        color=colour,
        marker=marker,
        markersize=4,
        markevery=every,
        label=label,
      )
      axis.fill_between(
        curve["step"],
        [m - e for m, e in zip(curve["mean"], curve["standard_error"])],
        [m + e for m, e in zip(curve["mean"], curve["standard_error"])],
        color=colour,
        alpha=0.2,
        linewidth=0,
      )
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("training step")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  axes[1].legend(frameon=False, loc="upper left")
  figure.text(
    0.5,
    -0.04,
    f"Story world, an offline simulation: mean and standard error over"
    f" {len(result['seeds'])} seeds.",
    ha="center",
    fontsize=9,
    color="#555555",
  )
  figure.tight_layout()
  figure.savefig(_OUT.value, dpi=160, bbox_inches="tight")


if __name__ == "__main__":
  app.run(main)
