"""Every arm is a config that loads, in every setting it can be run in."""

import importlib.util
import pathlib

import pytest
from ml_collections import ConfigDict

from experiments import arms
from varl_jax.config import from_config_dict
from varl_jax.methods import METHODS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def loaded(setting, arm):
  first, *rest = arms.config_flags(setting, arm)
  path, _, variant = first.removeprefix("--config=").partition(":")
  spec = importlib.util.spec_from_file_location("config_file", ROOT / path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  tree: ConfigDict = (
    module.get_config(variant) if variant else module.get_config()
  )
  values = {"name": f"{setting}_{arm}", **arms.ALL[arm].changes}
  assert rest == [f"--config.{k}={v}" for k, v in values.items()]
  plain = from_config_dict(tree)
  tree.update_from_flattened_dict(values)
  return plain, from_config_dict(tree)


@pytest.mark.parametrize("setting", arms.SETTINGS)
@pytest.mark.parametrize("arm", arms.ALL)
def test_an_arm_changes_what_it_says_and_nothing_else(setting, arm):
  plain, config = loaded(setting, arm)
  before, after = plain.to_dict(), config.to_dict()
  changed = {
    f"{group}.{key}"
    for group, values in before.items()
    if isinstance(values, dict)
    for key in values
    if values[key] != after[group][key]
  }
  assert changed <= set(arms.ALL[arm].changes)
  assert config.method.name in METHODS
  assert config.name == f"{setting}_{arm}"


def test_every_method_is_an_arm():
  named = {arm.changes["method.name"] for arm in arms.ARMS.values()}
  assert named == set(METHODS)


def test_an_ablation_differs_from_its_arm():
  for name, arm in arms.ABLATIONS.items():
    base = loaded("story", arm.changes["method.name"])[1].to_dict()
    same = loaded("story", name)[1].to_dict()
    base.pop("name"), same.pop("name")
    # 0.75 is the default itself, there for the table.
    assert (base == same) == (name == "rri_negatives_75")


def test_the_papers_figures_have_names():
  assert set(arms.PAPER) == set(arms.ARMS)
  # Specification, Section 11.
  order = sorted(arms.PAPER, key=arms.PAPER.__getitem__)
  assert order == [
    "generation_only",
    "rar",
    "evo_rubrics",
    "sibyl_sense",
    "co_evolve_only",
    "rri",
  ]
