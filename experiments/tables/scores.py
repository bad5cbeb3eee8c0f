"""Tables 3, 5 to 10 and 14: scores."""

from collections.abc import Mapping
from typing import Final

from experiments import paper_values as paper
from experiments.arms import ARMS, SETTINGS, UNTRAINED
from experiments.saved import (
  COLUMNS,
  PROFESSIONAL,
  RUNS,
  TITLES,
  Cell,
  Saved,
  label,
  less,
  professional,
)
from experiments.tables.table import Table

PAPER_SETTINGS: Final = tuple(name for name in SETTINGS if name != "story")
PAIR: Final = ("generation_only", "rri")
GAIN: Final = "RRI less Generation Only"


def use_cases(saved: Saved) -> Table:
  """Table 3."""
  rows = []
  for setting in PAPER_SETTINGS:
    found = {
      arm: [
        professional(saved, setting, arm, column).beside(
          paper.PROFESSIONAL.get((setting, arm, column))
        )
        for column in COLUMNS
      ]
      for arm in (UNTRAINED, *PAIR)
    }
    rows += [
      (f"{TITLES[setting]}: {label(arm)}", row) for arm, row in found.items()
    ]
    gains = [
      less(two, one, paper.GAINS.get((setting, column)))
      for column, one, two in zip(
        COLUMNS, found[PAIR[0]], found[PAIR[1]], strict=True
      )
    ]
    rows.append((f"{TITLES[setting]}: {GAIN}", gains))
  return Table(
    number=3,
    title="HealthBench Professional by use case and difficulty",
    note="Adjusted score; raw is the clipped fraction without a length term.",
    columns=["", "adjusted", *list(COLUMNS)[1:]],
    rows=rows,
  )


def official_judge(saved: Saved) -> Table:
  """Table 5."""
  rows = []
  for setting in PAPER_SETTINGS:
    cells = [
      saved.score(
        PROFESSIONAL,
        f"{arm}-{setting}-official",
        more=f" --answers={saved.name}/evaluations/{PROFESSIONAL}"
        f"/{arm}-{setting} --official_judge",
        model=f"{RUNS}/{setting}/{arm}-0",
      )
      for arm in PAIR
    ]
    gain = less(cells[1], cells[0], paper.OFFICIAL_GAINS[setting])
    rows.append((TITLES[setting], [*cells, gain]))
  return Table(
    number=5,
    title="The same answers graded by the official judge",
    columns=["setting", *map(label, PAIR), GAIN],
    rows=rows,
  )


def specialties(saved: Saved) -> Table:
  """Table 6."""
  heads = [(setting, arm) for setting in PAPER_SETTINGS for arm in PAIR]
  names = sorted(
    {
      name
      for setting, arm in heads
      for name in saved.evaluation(PROFESSIONAL, f"{arm}-{setting}")
      .get("breakdowns", {})
      .get("specialty", {})
    }
  )
  rows = []
  for name in names or ["each of the 28 specialties"]:
    rows.append(
      (
        name,
        [
          saved.score(
            PROFESSIONAL,
            f"{arm}-{setting}",
            "specialty",
            name.lower(),
            model=f"{RUNS}/{setting}/{arm}-0",
          )
          for setting, arm in heads
        ],
      )
    )
  return Table(
    number=6,
    title="HealthBench Professional by specialty",
    columns=["", *(f"{TITLES[s]}: {label(a)}" for s, a in heads)],
    rows=rows,
  )


# Rows of the table, and where an evaluation of them has the number.
_OWN: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
  "prbench_hard": ("PRBench Hard", "prbench_hard", ("score",)),
  "profbench": ("ProfBench", "profbench", ("score",)),
  "medxpertqa": ("MedXpertQA", "medxpertqa", ("score",)),
  "text": ("MedXpertQA, text", "medxpertqa", ("part", "text")),
  "image": ("MedXpertQA, images", "medxpertqa", ("part", "image")),
}


def own_descriptions(saved: Saved) -> Table:
  """Table 7."""
  rows = []
  for key, (title, benchmark, keys) in _OWN.items():
    base = saved.score(benchmark, "untrained-9b", *keys, model="MODEL")
    own = saved.score(
      benchmark, f"rri-{benchmark}-9b", *keys, model=f"{RUNS}/{benchmark}"
    )
    gain = less(own, base, paper.OWN_DESCRIPTION_GAINS[key])
    rows.append((title, [base, own, gain]))
  return Table(
    number=7,
    title="9B solvers trained on a benchmark's own description",
    columns=["benchmark", "Untrained", "RRI", "RRI less untrained"],
    rows=rows,
  )


def other_models(saved: Saved) -> Table:
  """Table 8; rows are the evaluations whose name begins with `frontier-`."""
  prefix = "frontier-"
  names = [n for n in saved.rows(PROFESSIONAL) if n.startswith(prefix)]
  rows = [
    (
      name.removeprefix(prefix),
      [
        saved.score(
          PROFESSIONAL,
          name,
          column,
          model="NAME --model_url=URL",
          more=" --greedy --judge=JUDGE",
        )
        for column in ("score", "raw")
      ],
    )
    for name in names or [f"{prefix}NAME"]
  ]
  return Table(
    number=8,
    title="Other models on HealthBench Professional, greedy, without tools",
    columns=["model", "adjusted", "raw"],
    rows=rows,
  )


_METHODS: Final = {
  "medrag": "Single-pass medical RAG",
  "rag_fusion": "RAG-Fusion",
  "imedrag": "i-MedRAG",
}


def inference_time(saved: Saved) -> Table:
  """Table 9."""
  settings = ("9b", "27b")
  found: dict[str, list[Cell]] = {}
  for method in _METHODS:
    found[method] = [
      saved.score(
        PROFESSIONAL,
        f"{method}-{setting}",
        model="MODEL",
        more=f" --method={method} --greedy --judge=JUDGE",
      ).beside(paper.INFERENCE.get((method, setting)))
      for setting in settings
    ]
  for arm in PAIR:
    found[arm] = [
      professional(saved, setting, arm).beside(
        paper.PROFESSIONAL.get((setting, arm, "score"))
      )
      for setting in settings
    ]
  gains = []
  for index, setting in enumerate(settings):
    column = [found[method][index] for method in _METHODS]
    known = [cell for cell in column if cell.value is not None]
    best = max(known, key=lambda cell: cell.value or 0.0, default=column[-1])
    if len(known) < len(column):
      best = next(cell for cell in column if cell.value is None)
    gains.append(
      less(found["rri"][index], best, paper.INFERENCE_GAINS[setting])
    )
  rows = [
    (_METHODS.get(name) or label(name), row) for name, row in found.items()
  ]
  return Table(
    number=9,
    title="Retrieval at inference time on the frozen base models",
    columns=["method", *(TITLES[setting] for setting in settings)],
    rows=[*rows, ("RRI less the best of the first three", gains)],
  )


def healthbench_hard(saved: Saved) -> Table:
  """Table 10."""
  arms = (UNTRAINED, *PAIR)
  groups = sorted(
    {
      (kind, name)
      for arm in arms
      for kind in ("theme", "criteria axis")
      for name in saved.evaluation("healthbench_hard", f"{arm}-27b")
      .get("breakdowns", {})
      .get(kind, {})
    },
    reverse=True,
  )
  columns = {"overall": ("score",)} | {
    f"{kind.removeprefix('criteria ')}: {name}": (kind, name.lower())
    for kind, name in groups
  }
  rows = []
  for name, keys in columns.items():
    cells = [
      saved.score(
        "healthbench_hard",
        f"{arm}-27b",
        *keys,
        model="MODEL" if arm == UNTRAINED else f"{RUNS}/27b/{arm}-0",
      ).beside(
        paper.TRANSFER.get(("healthbench_hard", arm))
        if name == "overall"
        else None
      )
      for arm in arms
    ]
    rows.append((name, cells))
  return Table(
    number=10,
    title="HealthBench Hard, 27B",
    columns=["", *map(label, arms)],
    rows=rows,
  )


def every_row(saved: Saved) -> Table:
  """Table 14."""
  rows = []
  for setting in SETTINGS:
    shown = dict.fromkeys(
      (UNTRAINED, *ARMS, *saved.arms(setting).get("arms", {}))
    )
    for arm in shown:
      rows.append(
        (f"{TITLES[setting]}: {label(arm)}", _own_judge(saved, setting, arm))
      )
  return Table(
    number=14,
    title="Every row under the judge of its setting",
    note=(
      "Story world: score of the hidden expert, an offline simulation; raw is"
      " not measured there."
    ),
    columns=["row", "adjusted", "raw", "own training reward"],
    rows=rows,
  )


def _own_judge(saved: Saved, setting: str, arm: str) -> list[Cell | str]:
  reward = "" if arm == UNTRAINED else saved.arm(setting, arm, "train_reward")
  if setting == "story":
    return [saved.arm(setting, arm), "", reward]
  known = paper.PROFESSIONAL.get((setting, arm, "score"))
  score = professional(saved, setting, arm).beside(known)
  return [score, professional(saved, setting, arm, "raw"), reward]
