"""The arms of the comparison, their ablations and their settings, as data.

An arm is what of a config it changes; a setting is a config file with a variant
for the models and judges of Section 10 of the specification. Any arm can be run
in any setting (`experiments.compare_arms`), and the order is the paper's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

Value = str | float | bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """A way to train.

  Attributes:
    label: for tables and figures.
    changes: what it sets, by dotted name.
  """

  label: str
  changes: Mapping[str, Value]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Where arms are compared.

  Attributes:
    config: the config file and its variant.
    title: for tables and figures.
    simulated: whether it is the offline story world, run on CPUs with one
      thread a run, and with a hidden expert.
  """

  config: str
  title: str
  simulated: bool = False


# Not trained: what every arm starts from.
UNTRAINED: Final = "untrained"
UNTRAINED_LABEL: Final = "Untrained"

ARMS: Final[Mapping[str, Arm]] = {
  "generation_only": Arm(
    label="Generation Only", changes={"method.name": "generation_only"}
  ),
  "rar": Arm(label="RaR", changes={"method.name": "rar"}),
  "evo_rubrics": Arm(
    label="EvoRubrics", changes={"method.name": "evo_rubrics"}
  ),
  "sibyl_sense": Arm(
    label="SibylSense", changes={"method.name": "sibyl_sense"}
  ),
  "co_evolve_only": Arm(
    label="Co-evolve Only", changes={"method.name": "co_evolve_only"}
  ),
  "rri": Arm(label="RRI", changes={"method.name": "rri"}),
}

_RRI: Final = {"method.name": "rri"}
ABLATIONS: Final[Mapping[str, Arm]] = {
  "rri_no_admission": Arm(
    label="RRI without admission repair",
    changes=_RRI | {"method.admission_repair": False},
  ),
  "rri_no_patches": Arm(
    label="RRI without patches in training",
    changes=_RRI | {"method.training_patches": False},
  ),
  "rri_no_memo": Arm(
    label="RRI without memo", changes=_RRI | {"method.memo": False}
  ),
  "rri_one_round": Arm(
    label="RRI, one repair round",
    changes=_RRI | {"admission.rounds": 1, "patch.rounds": 1},
  ),
  "rri_negatives_0": Arm(
    label="RRI, no negatives", changes=_RRI | {"rubric.negative_share": 0.0}
  ),
  "rri_negatives_33": Arm(
    label="RRI, negatives in 33%",
    changes=_RRI | {"rubric.negative_share": 0.33},
  ),
  "rri_negatives_75": Arm(
    label="RRI, negatives in 75%",
    changes=_RRI | {"rubric.negative_share": 0.75},
  ),
  "rri_two_criteria": Arm(
    label="RRI, two positive criteria",
    changes=_RRI | {"rubric.positive_mean": 2.0},
  ),
  "rri_four_criteria": Arm(
    label="RRI, four positive criteria",
    changes=_RRI | {"rubric.positive_mean": 4.0},
  ),
  "rri_verified": Arm(
    label="RRI, pairs verified before repair",
    changes=_RRI | {"patch.verify_pairs": True},
  ),
  "rri_stop_equal": Arm(
    label="RRI, no repair of equal pairs",
    changes=_RRI | {"patch.stop_equal": True},
  ),
  "rar_explicit": Arm(
    label="RaR, explicit aggregation",
    changes={"method.name": "rar", "rar.aggregation": "explicit"},
  ),
  "rar_committed": Arm(
    label="RaR, pitfalls as faults",
    changes={"method.name": "rar", "rar.pitfalls": "committed"},
  ),
}
ALL: Final[Mapping[str, Arm]] = {**ARMS, **ABLATIONS}

_CLINICAL: Final = "configs/healthbench_professional.py"
SETTINGS: Final[Mapping[str, Setting]] = {
  "story": Setting(
    config="configs/story.py", title="Story world", simulated=True
  ),
  "9b": Setting(config=f"{_CLINICAL}:9b", title="HealthBench Professional, 9B"),
  "27b": Setting(
    config=f"{_CLINICAL}:27b", title="HealthBench Professional, 27B"
  ),
  "all_self": Setting(
    config=f"{_CLINICAL}:all_self",
    title="HealthBench Professional, 9B in every role",
  ),
  "no_retrieval": Setting(
    config=f"{_CLINICAL}:no_retrieval",
    title="HealthBench Professional, 9B in every role, without retrieval",
  ),
}

# The paper's adjusted scores on HealthBench Professional at 9B, for reference.
PAPER: Final[Mapping[str, float]] = {
  "generation_only": 0.424,
  "rar": 0.433,
  "evo_rubrics": 0.493,
  "sibyl_sense": 0.502,
  "co_evolve_only": 0.506,
  "rri": 0.533,
}


def config_flags(setting: str, arm: str) -> list[str]:
  """The flags of `varl_jax.main` for an arm in a setting.

  Raises:
    KeyError: there is no such setting or arm.
  """
  changes = {"name": f"{setting}_{arm}", **ALL[arm].changes}
  return [
    f"--config={SETTINGS[setting].config}",
    *(f"--config.{key}={value}" for key, value in changes.items()),
  ]
