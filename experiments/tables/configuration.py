"""Table 2: what every arm and setting is set to, read from the configs."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from experiments.arms import ARMS, SETTINGS
from experiments.saved import TITLES, Saved, label
from experiments.tables.table import Table
from varl_jax.config import Config, from_config_dict
from varl_jax.methods import rri

Show = Callable[[Config], str]
# Arms whose parts are what the method is, whatever the switches say.
_FIXED: Final = {
  "generation_only": rri.GENERATION_ONLY,
  "co_evolve_only": rri.CO_EVOLVE_ONLY,
}
_ARMS_OF: Final = "9b"


def config_of(setting: str, arm: str) -> Config:
  """The config of an arm in a setting, without what a machine adds."""
  path, _, variant = SETTINGS[setting].config.partition(":")
  module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
  tree = (
    module.get_config(variant) if variant else module.get_config()
  ).to_dict()
  for name, value in ARMS[arm].changes.items():
    *groups, key = name.split(".")
    place: Any = tree
    for group in groups:
      place = place[group]
    place[key] = value
  return from_config_dict(tree)


def _part(config: Config, name: str) -> str:
  """Whether a part of RRI is on; another method has parts of its own."""
  method = config.method
  if method.name not in ("rri", *_FIXED):
    return "-"
  return "yes" if getattr(_FIXED.get(method.name, method), name) else "-"


def _judge(config: Config) -> str:
  endpoints = config.endpoints
  return endpoints.judge.model or endpoints.roles.model or "the world's script"


SHOWN: Final[Mapping[str, Show]] = {
  "method": lambda c: c.method.name,
  "solver": lambda c: c.model.path.rpartition("/")[2],
  "roles": lambda c: c.endpoints.roles.model or "the world's script",
  "judge": _judge,
  "reference passages": lambda c: "yes" if c.retrieval.index else "-",
  "solver's tools": lambda c: ", ".join(c.tools.chosen) or "-",
  "guidance evolves": lambda c: _part(c, "evolve_guidance"),
  "admission repair": lambda c: _part(c, "admission_repair"),
  "patches in training": lambda c: _part(c, "training_patches"),
  "memo": lambda c: _part(c, "memo"),
  "tasks a step": lambda c: f"{c.train.tasks_per_step}",
  "answers a task": lambda c: f"{c.train.samples}",
  "tasks a mini-batch": lambda c: f"{c.train.minibatch_tasks}",
  "learning rate": lambda c: f"{c.train.learning_rate:g}",
  "clip ratio": lambda c: f"{c.train.clip_ratio:g}",
  "temperature": lambda c: f"{c.train.temperature:g}",
  "prompt, tokens": lambda c: f"{c.model.max_prompt}",
  "answer, tokens": lambda c: f"{c.model.max_response}",
  "votes a criterion": lambda c: f"{c.judge.votes}",
  "epsilon of a case": lambda c: f"{c.patch.epsilon:g}",
  "steps between validations": lambda c: f"{c.eval.interval or '-'}",
}


def configurations(saved: Saved) -> Table:
  """Table 2; nothing of it is measured, so nothing can be missing."""
  columns = {
    f"{TITLES[_ARMS_OF]}: {label(arm)}": (_ARMS_OF, arm) for arm in ARMS
  }
  columns |= {
    f"{TITLES[setting]}: RRI": (setting, "rri")
    for setting in SETTINGS
    if setting != _ARMS_OF
  }
  configs = [config_of(*place) for place in columns.values()]
  return Table(
    number=2,
    title="Configuration of every arm and setting",
    note=(
      "As the configs of this project have it. EvoRubrics is no arm here yet."
    ),
    columns=["", *columns],
    rows=[(name, [show(c) for c in configs]) for name, show in SHOWN.items()],
  )
