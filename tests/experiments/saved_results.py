"""Small synthetic results: a folder in which nothing is missing."""

import json
import pathlib

from experiments import arms
from experiments.arms import SETTINGS
from varl_jax.roles.auditor import CATEGORIES

GROUPS = {
  "healthbench_professional": {
    "use_case": ("consult", "research", "writing"),
    "difficulty": ("difficult", "typical"),
    "specialty": ("Cardiology", "Neurology"),
  },
  "healthbench_hard": {
    "theme": ("context_seeking",),
    "criteria axis": ("accuracy",),
  },
  "prbench_hard": {"field": ("Finance", "Legal")},
  "profbench": {
    "domain": (
      "Chemistry PhD",
      "Consulting MBA",
      "Finance MBA",
      "Physics PhD",
    )
  },
  "medxpertqa": {"part": ("image", "text")},
}
ROWS = {
  "healthbench_professional": [
    *(
      f"{arm}-{setting}{judge}"
      for setting in ("9b", "27b", "all_self", "no_retrieval")
      for arm in (arms.UNTRAINED, *arms.ARMS)
      for judge in ("", "-official")
    ),
    *(
      f"{method}-{setting}"
      for method in ("medrag", "rag_fusion", "imedrag")
      for setting in ("9b", "27b")
    ),
    "frontier-some-model",
  ],
  "healthbench_hard": [
    f"{arm}-27b" for arm in (arms.UNTRAINED, "generation_only", "rri")
  ],
}
for _name in ("prbench_hard", "profbench", "medxpertqa"):
  ROWS[_name] = [
    *(f"{arm}-27b" for arm in (arms.UNTRAINED, "generation_only", "rri")),
    "untrained-9b",
    f"rri-{_name}-9b",
  ]


def number(*names: str) -> float:
  """A number of its own for each name, from 0.2 to 0.7."""
  code = sum(ord(letter) * (i + 1) for i, letter in enumerate("/".join(names)))
  return 0.2 + (code % 997) / 2000


def comparison(setting: str) -> dict:
  """A result of `compare_arms` with two seeds."""
  rows = {}
  for arm in (arms.UNTRAINED, *arms.ARMS):
    found = number(setting, arm)
    reward = [None, None] if arm == arms.UNTRAINED else [0.5, 0.7]
    rows[arm] = {"hidden": [found, found + 0.02], "train_reward": reward}
  return {"arms": rows, "seeds": [0, 1]}


def evaluation(benchmark: str, row: str) -> dict:
  """Results of `varl_jax.evaluate`."""
  return {
    "score": number(benchmark, row),
    "raw": number(benchmark, row, "raw"),
    "breakdowns": {
      kind: {
        name: {"tasks": 3, "score": number(benchmark, row, name)}
        for name in names
      }
      for kind, names in GROUPS[benchmark].items()
    },
  }


def shares(cases: int = 60) -> dict:
  """Shares that grow from category to category."""
  counts = [cases * (n + 1) // 21 for n in range(len(CATEGORIES))]
  counts[-1] += cases - sum(counts)
  return {
    "cases": cases,
    "leftovers": 1,
    "categories": {
      name: {"cases": count, "share": count / cases}
      for name, count in zip(CATEGORIES, counts, strict=True)
    },
  }


def analysis(domain: str, solver: str, text: str = "An answer.") -> dict:
  """Results of `varl_jax.analysis`."""
  thirds = {part: shares(20) for part in ("early", "middle", "late")}
  return {
    "runs": [{"name": f"{domain}-{solver}", "domain": domain}],
    "shares": shares(),
    "by_domain": {domain: shares()},
    "by_solver": {solver: shares()},
    "by_progress": {domain: thirds},
    "repaired": {
      "run": "a-run",
      "case_id": "t0-s1",
      "domain": domain,
      "step": 3,
      "label": "other",
      "task": text,
      "exploit": {"answer": text, "score": 0.9, "score_after": 0.3},
      "honest": {"answer": text, "score": 0.5, "score_after": 0.7},
      "criteria": [
        {
          "text": text,
          "points": points,
          "added": points < 0,
          "exploit": "met",
          "honest": "not met",
        }
        for points in (8, -6)
      ],
      "gap_before": 0.4,
      "gap_after": -0.4,
    },
  }


def write(folder: pathlib.Path, *, text: str = "An answer.") -> pathlib.Path:
  """Fills a folder with all of it."""

  def put(path: str, value: dict) -> None:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(value))

  for setting in SETTINGS:
    name = "compare_arms" if setting == "story" else f"arms_{setting}"
    put(f"{name}.json", comparison(setting))
  for benchmark, rows in ROWS.items():
    for row in rows:
      put(
        f"evaluations/{benchmark}/{row}/results.json",
        evaluation(benchmark, row),
      )
  for run, domain, solver in (
    ("rri-9b", "clinical", "Qwen3.5-9B"),
    ("rri-27b", "clinical", "Qwen3.6-27B"),
    ("rri-prbench", "finance_law", "Qwen3.5-9B"),
    ("rri-profbench", "expert_reports", "Qwen3.5-9B"),
    ("story", "story", "story"),
  ):
    put(f"{run}/analysis.json", analysis(domain, solver, text))
  return folder
