"""Settings are read strictly; every config file in configs/ builds."""

import dataclasses
import importlib.util
import json
import pathlib
import re

import ml_collections
import pytest

from varl_jax.config import Config, ConfigError, from_config_dict

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / "configs").glob("*.py"))


def _get_config(path):
  spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_builds(path):
  tree = _get_config(path)()
  assert isinstance(from_config_dict(tree), Config)


@pytest.mark.parametrize(
  "variant", ["rri", "co_evolve_only", "generation_only", "smollm2"]
)
def test_the_story_variants_build(variant):
  [path] = [path for path in CONFIGS if path.stem == "story"]
  config = from_config_dict(_get_config(path)(variant))
  assert config.domain == "story"
  with pytest.raises(ValueError, match="no variant 'nonsense'"):
    _get_config(path)("nonsense")


def test_defaults_survive_the_round_trip():
  tree = ml_collections.ConfigDict(Config().to_dict())
  assert from_config_dict(tree) == Config()
  assert (
    from_config_dict(json.loads(json.dumps(Config().to_dict()))) == Config()
  )
  assert from_config_dict({}) == Config()


@pytest.mark.parametrize(
  ("tree", "message"),
  [
    ({"stepz": 3}, "Unknown setting 'stepz'; the config has: name, seed"),
    ({"train": {"stepz": 3}}, "Unknown setting 'train.stepz'; train has:"),
    ({"train": 3}, "'train' is a group, got 3"),
    ({"train": {"steps": "3"}}, "'train.steps' wants a int, got '3'"),
    ({"train": {"steps": 3.0}}, "'train.steps' wants a int, got 3.0"),
    ({"train": {"steps": True}}, "'train.steps' wants a int, got True"),
    ({"train": {"steps": None}}, "'train.steps' wants a int, got None"),
    ({"memo": {"kappa": "2"}}, "'memo.kappa' wants a float"),
    ({"admission": {"barrier": 1}}, "'admission.barrier' wants a bool"),
    ({"name": 3}, "'name' wants a str"),
    ({"train": {"steps": -1}}, "train.steps is at least 1, got -1"),
    ({"train": {"steps": 0}}, "train.steps is at least 1, got 0"),
    ({"train": {"samples": 1}}, "train.samples is at least 2"),
    ({"evo": {"sets": 1}}, "evo.sets is at least 2"),
    ({"train": {"temperature": 0.0}}, "train.temperature is above 0"),
    ({"train": {"learning_rate": -1e-6}}, "learning_rate is above 0"),
    (
      {"train": {"temperature": float("nan")}},
      "'train.temperature' is a finite number, got nan",
    ),
    (
      {"train": {"tasks_per_step": 10, "minibatch_tasks": 4}},
      "multiple of train.minibatch_tasks, got 10 and 4",
    ),
    ({"pool": {"replay_share": 1.5}}, "replay_share is between 0 and 1"),
    ({"pool": {"floor": 9, "capacity": 8}}, "pool.floor is at most"),
    ({"patch": {"referee_share": 0.0}}, "patch.referee_share is above 0"),
    ({"patch": {"referee_share": 1.1}}, "referee_share is between 0 and 1"),
    ({"discriminator": {"learning_rate": 0}}, "learning_rate is above 0"),
    ({"discriminator": {"decay": -1.0}}, "discriminator.decay is at least 0"),
    ({"discriminator": {"on": 1}}, "'discriminator.on' wants a bool"),
    (
      {"reward": {"truncated_score": "minus"}},
      "one of zero, group_min, unscorable, got 'minus'",
    ),
  ],
)
def test_a_wrong_setting_is_named_in_one_sentence(tree, message):
  with pytest.raises(ConfigError) as caught:
    from_config_dict(tree)
  assert message in str(caught.value)
  assert "\n" not in str(caught.value)


def test_whole_numbers_serve_as_floats():
  config = from_config_dict({"memo": {"kappa": 2}})
  assert type(config.memo.kappa) is float


def _leaves(group, path=""):
  for field in dataclasses.fields(group):
    value = getattr(group, field.name)
    if dataclasses.is_dataclass(value):
      yield from _leaves(value, f"{path}{field.name}.")
    else:
      yield f"{path}{field.name}", value


def _changed(group, path, value):
  head, _, rest = path.partition(".")
  if rest:
    value = _changed(getattr(group, head), rest, value)
  return dataclasses.replace(group, **{head: value})


# How long a run is, and the devices and servers that it runs on.
_MAY_CHANGE = re.compile(
  r"train\.(steps|stall_s)|mesh\..*|service\..*|report\..*|retrieval\.encoder"
  r"|gate\..*|local\.(slots|width)|checkpoint\.background"
  r"|tools\.(timeout_s|web_(url|key_env|mode|recordings))"
  r"|judge\.(concurrency|check_workers|canary)"
  r"|endpoints\.\w+\.(?!model$|effort$|max_tokens$).*"
)


def test_the_fingerprint_sees_every_setting_that_shapes_results():
  base = Config().fingerprint()
  seen = 0
  for path, value in _leaves(Config()):
    changed = _changed(Config(), path, _other(value)).fingerprint()
    same = _MAY_CHANGE.fullmatch(path) is not None
    assert (changed == base) == same, path
    seen += 1
  assert seen > 80


def _other(value):
  if isinstance(value, bool):
    return not value
  return value + "x" if isinstance(value, str) else value + 1


def test_nothing_in_a_config_can_be_changed():
  with pytest.raises(dataclasses.FrozenInstanceError):
    Config().train.steps = 3


@pytest.mark.parametrize(
  ("group", "key", "value"),
  [
    ("evolution", "max_words", 301),
    ("memo", "max_chars", 2401),
    ("patch", "max_criteria", 6),
    ("patch", "max_criteria", 0),
  ],
)
def test_limits_the_prompts_state_cannot_be_loosened(group, key, value):
  with pytest.raises(ConfigError, match=f"{group}.{key} is between 1 and"):
    from_config_dict({group: {key: value}})
