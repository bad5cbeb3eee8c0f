r"""Trains arms on many seeds and puts them into one table and one figure.

    python -m experiments.compare_arms --first_seed=300 --seeds=16 \
        --workdir=/tmp/arms --out=experiments/results/compare_arms.json

`--setting` and `--arms` name entries of `experiments.arms`; ablations are named
like arms. What a machine needs beside the setting, such as the folder of the
weights, is given after `--`, as for `varl_jax.main`:

    python -m experiments.compare_arms --setting=9b --seeds=2 --jobs=1 \
        --workdir=/runs/arms --out=/runs/arms.json \
        -- --config.model.path=/models/Qwen3.5-9B

A run that is complete is not repeated, one that was cut resumes, so the command
can be stopped and started again. The JSON has the form of `story_arms.json`,
with an untrained row and the paper's figures beside; `--figure` draws it (the
extra `figures`), and `--draw_only` draws what was saved.
"""

import concurrent.futures
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, Final

from absl import app, flags

from experiments import arm_results, arms
from experiments.figures import style
from experiments.saved import label
from varl_jax.metrics import read_metrics

RESULT: Final = "experiments/results/compare_arms.json"
SHOWN: Final = {
  "hidden": "held-out score",
  "train_reward": "own training reward",
  "exploit_rate": "exploit rate",
}

flags.adopt_module_key_flags(arm_results)
_SETTING = flags.DEFINE_enum(
  "setting", "story", list(arms.SETTINGS), "Where the arms are compared."
)
_FIGURE = flags.DEFINE_string("figure", "", 'Picture to write, "" for none.')
_DRAW_ONLY = flags.DEFINE_bool("draw_only", False, "Draw the saved result.")


def untrained(workdir: pathlib.Path) -> dict[str, float]:
  """The measures of a run's policy before its first step; NaN for the rest."""
  first = next((r for r in read_metrics(workdir) if "eval/score" in r), {})
  known = {
    "hidden": "eval/score",
    "hidden_start": "eval/score",
    "hidden_best": "eval/score",
    "hidden_non_overlapping": "eval/non_overlapping",
  }
  found = dict.fromkeys(arm_results.summary(workdir), math.nan)
  return found | {name: first.get(key, math.nan) for name, key in known.items()}


def collect(
  setting: str, folders: dict[str, list[pathlib.Path]], seeds: Sequence[int]
) -> dict:
  """The result of finished runs, plain values without NaN.

  Args:
    setting: a key of `arms.SETTINGS`.
    folders: of every arm, one run a seed.
    seeds: in the order of the folders.
  """
  about = arms.SETTINGS[setting]
  rows = {
    arms.UNTRAINED: [untrained(run) for run in next(iter(folders.values()))]
  }
  rows |= {
    arm: [arm_results.summary(run) for run in runs]
    for arm, runs in folders.items()
  }
  columns = {
    arm: {key: [row[key] for row in found] for key in found[0]}
    for arm, found in rows.items()
  }
  result = {
    "setting": setting,
    "title": about.title,
    "simulated": about.simulated,
    "arms": columns,
    "paired": {
      f"{one} - {two}": arm_results.paired(
        columns[one]["hidden"], columns[two]["hidden"]
      )
      for one, two in pairs(list(columns))
    },
    "curves": {arm: arm_results.curves(runs) for arm, runs in folders.items()},
    "paper": dict(arms.PAPER),
    "seeds": list(seeds),
    "versions": arm_results.versions(),
  }
  if about.simulated:
    result["pair_correctness"] = {
      arm: arm_results.pair_correctness(runs) for arm, runs in folders.items()
    }
    result["referee_agreement"] = arm_results.referee_agreement()
  return arm_results.without_nan(result)


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
  """RRI less every other arm, then every other arm less Generation Only."""
  first = [("rri", name) for name in names if name != "rri"]
  second = [
    (name, "generation_only")
    for name in names
    if name not in ("rri", "generation_only", arms.UNTRAINED)
  ]
  return [
    (one, two) for one, two in (*first, *second) if {one, two} <= set(names)
  ]


def page(result: dict) -> str:
  """The table of `arm_results`, and the paper's ordering beside ours."""
  lines = ["", "Beside the paper's figures, which are another setting's unless"]
  lines += ["this is HealthBench Professional at 9B:", ""]
  lines += ["| arm | held-out score here | the paper's, 9B |", "|---|---|---|"]
  for arm in dict.fromkeys((*result["paper"], *result["arms"])):
    mean, _ = spread(result["arms"].get(arm, {}).get("hidden", []))
    ours = "-" if mean is None else f"{mean:.3f}"
    theirs = result["paper"].get(arm)
    shown = "-" if theirs is None else f"{theirs:.3f}"
    lines.append(f"| {label(arm)} | {ours} | {shown} |")
  return arm_results.table(result) + "\n".join(lines) + "\n"


def spread(
  values: Sequence[float | None],
) -> tuple[float | None, float | None]:
  """Mean and standard error over seeds; None where there are too few."""
  kept = [value for value in values if value is not None]
  if not kept:
    return None, None
  mean = math.fsum(kept) / len(kept)
  if len(kept) < 2:
    return mean, None
  squares = math.fsum((value - mean) ** 2 for value in kept)
  return mean, math.sqrt(squares / (len(kept) - 1) / len(kept))


def draw(result: dict, path: pathlib.Path) -> None:
  """A panel a measure, and one of the paper's figures, marked as theirs.

  Raises:
    ImportError: matplotlib is missing.
  """
  plots = style.pyplot()
  names = list(result["arms"])[::-1]
  figure, axes = plots.subplots(
    1,
    len(SHOWN) + 1,
    figsize=(1.5 * style.WIDTH, 1.2 + 0.28 * len(names)),
    layout="constrained",
  )
  for axis, (key, title) in zip(axes, SHOWN.items(), strict=False):
    for row, arm in enumerate(names):
      mean, error = spread(result["arms"][arm][key])
      look = style.LOOKS.get(arm, style.LOOKS["rri"])
      if mean is not None:
        axis.errorbar(
          mean,
          row,
          xerr=error or 0.0,
          fmt=look.marker,
          color=style.INK,
          markerfacecolor=look.colour,
          capsize=2,
        )
    _named_rows(axis, names if axis is axes[0] else [""] * len(names))
    axis.set_title(title)
  paper = sorted(result["paper"].items(), key=lambda pair: pair[1])
  for row, (_, score) in enumerate(paper):
    axes[-1].plot([score], [row], **style.PAPER)
  _named_rows(axes[-1], [arm for arm, _ in paper])
  axes[-1].set_title("reference: the paper, 9B")
  kind = ", an offline simulation" if result["simulated"] else ""
  figure.suptitle(
    f"{result['title']}{kind}: mean and standard error over"
    f" {len(result['seeds'])} seeds",
    fontsize=9.5,
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path)
  plots.close(figure)


def _named_rows(axis: Any, names: Sequence[str]) -> None:
  """A line an arm; "" for a line whose name stands elsewhere."""
  axis.set_yticks(range(len(names)), [label(n) if n else "" for n in names])
  axis.set_ylim(-0.6, len(names) - 0.4)
  axis.set_xlim(0, 1.05 * axis.get_xlim()[1])
  axis.grid(axis="x")
  axis.grid(visible=False, axis="y")


def chosen() -> list[str]:
  """The arms of the flags."""
  return arm_results.ARMS.value or list(arms.ARMS)


def compare(workdir: pathlib.Path, more: Sequence[str]) -> dict:
  """Runs what is missing and collects it.

  Args:
    workdir: folder of the runs of all settings.
    more: flags that every run gets.
  """
  setting = _SETTING.value
  seeds = arm_results.seeds()
  simulated = arms.SETTINGS[setting].simulated

  def run(arm: str, seed: int) -> pathlib.Path:
    return arm_results.train(
      workdir / setting / f"{arm}-{seed}",
      [*arms.config_flags(setting, arm), f"--config.seed={seed}", *more],
      steps=arm_results.STEPS.value,
      environment=arm_results.ONE_THREAD if simulated else {},
    )

  order = [(arm, seed) for seed in seeds for arm in chosen()]
  with concurrent.futures.ThreadPoolExecutor(arm_results.JOBS.value) as jobs:
    found = dict(
      zip(order, jobs.map(lambda each: run(*each), order), strict=True)
    )
  folders = {arm: [found[arm, seed] for seed in seeds] for arm in chosen()}
  return collect(setting, folders, seeds) | {
    "steps": arm_results.STEPS.value,
    "command": (
      f"python -m experiments.compare_arms --setting={setting}"
      f" --arms={','.join(chosen())} {arm_results.command_flags()}"
    )
    + "".join(f" {flag}" for flag in (["--", *more] if more else [])),
  }


def main(argv: Sequence[str]) -> None:
  """Compares and writes, or draws what was written."""
  out = pathlib.Path(arm_results.OUT.value or RESULT)
  unknown = [name for name in chosen() if name not in arms.ALL]
  if unknown:
    raise app.UsageError(
      f"There is no arm {unknown[0]!r}; choose {', '.join(arms.ALL)}."
    )
  if _DRAW_ONLY.value:
    result = json.loads(out.read_text())
  else:
    result = compare(arm_results.workdir(), argv[1:])
    arm_results.write(result, out, page(result))
    print(page(result))
  if _FIGURE.value:
    draw(result, pathlib.Path(_FIGURE.value))


if __name__ == "__main__":
  app.run(main)
