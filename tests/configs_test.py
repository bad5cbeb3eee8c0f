"""Every variant of a benchmark config loads and says the paper's numbers."""

import importlib.util
import pathlib

import pytest

from varl_jax.config import Config, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.methods import METHODS
from varl_jax.rubrics import scoring
from varl_jax.solver_tools import tool_specs

FOLDER = pathlib.Path(__file__).parents[1] / "configs"
VARIANTS = {
  "healthbench_professional": (
    "9b",
    "27b",
    "all_self",
    "no_retrieval",
    "generation_only",
    "co_evolve",
  ),
  "prbench": ("9b", "27b"),
  "profbench": ("9b", "27b"),
  "medxpertqa": ("9b", "27b"),
}
ALL = [(name, v) for name, variants in VARIANTS.items() for v in variants]
DOMAINS = {
  "healthbench_professional": "clinical",
  "prbench": "finance_law",
  "profbench": "expert_reports",
  "medxpertqa": "medical_exam",
}

# Sections 3 and 9 of the specification (appendices E and G).
PAPER = [
  ("train.samples", 8),
  ("train.temperature", 1.0),
  ("train.tasks_per_step", 64),
  ("train.minibatch_tasks", 16),
  ("train.learning_rate", 1e-6),
  ("train.clip_ratio", 0.2),
  ("model.max_prompt", 6144),
  ("model.max_response", 8192),
  ("eval.temperature", 1.0),
  ("evolution.interval", 5),
  ("checkpoint.interval", 5),
  ("judge.votes", 3),
]
# What a benchmark config may say of its own; all else is the paper's default.
OWN = {
  "name",
  "domain",
  "model",
  "mesh",
  "endpoints",
  "method",
  "retrieval.index",
  "tools.names",
  "tools.web_url",
  "tools.web_mode",
  "tools.web_recordings",
  "reward.length_adjusted",
  "judge.concurrency",
  "train.micro_batch",
  "eval.interval",
}


def load(name, variant=None):
  path = FOLDER / f"{name}.py"
  spec = importlib.util.spec_from_file_location(f"config_{name}", path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  tree = module.get_config(variant) if variant else module.get_config()
  return from_config_dict(tree)


def setting(config, path):
  value = config
  for key in path.split("."):
    value = getattr(value, key)
  return value


def test_every_file_is_known_here():
  files = {path.stem for path in FOLDER.glob("*.py")}
  assert files == {*VARIANTS, "story"}


@pytest.mark.parametrize(("name", "variant"), ALL)
@pytest.mark.parametrize(("path", "value"), PAPER)
def test_the_numbers_are_the_papers(name, variant, path, value):
  assert setting(load(name, variant), path) == value


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_nothing_else_departs_from_the_defaults(name, variant):
  tree, plain = load(name, variant).to_dict(), Config().to_dict()
  changed = set()
  for key, value in tree.items():
    if isinstance(value, dict):
      changed |= {f"{key}.{k}" for k in value if value[k] != plain[key][k]}
    elif value != plain[key]:
      changed.add(key)
  assert {c for c in changed if {c, c.split(".")[0]}.isdisjoint(OWN)} == set()


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_the_length_term_belongs_to_one_benchmark(name, variant):
  reward = load(name, variant).reward
  assert reward.length_adjusted == (name == "healthbench_professional")
  assert reward.length_weight == scoring.LENGTH_WEIGHT
  score = scoring.training_score(0.5, 4000, reward)
  expected = 0.5 - 0.0147 * 2000 / 500 if reward.length_adjusted else 0.5
  assert score == pytest.approx(expected)


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_variant_names_solver_domain_and_judge(name, variant):
  config = load(name, variant)
  assert config.domain == DOMAINS[name]
  size = "Qwen3.6-27B" if variant == "27b" else "Qwen3.5-9B"
  assert config.model.path.endswith(size)
  assert config.model.reasoning and config.model.compute_dtype == "bfloat16"
  local = variant in ("all_self", "no_retrieval")
  for endpoint in (config.endpoints.roles, config.endpoints.judge):
    assert endpoint.model == ("Qwen/Qwen3.5-9B" if local else "gpt-5.5-chat")
    assert endpoint.base_url == ("http://127.0.0.1:8000/v1" if local else "")
    assert endpoint.api_key_env == ("" if local else "OPENAI_API_KEY")


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_micro_batch_divides_over_the_mesh(name, variant):
  config = load(name, variant)
  rows = config.train.minibatch_tasks * config.train.samples
  assert rows % config.train.micro_batch == 0
  assert config.train.micro_batch % (config.mesh.data * config.mesh.fsdp) == 0


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_the_domain_of_a_variant_is_there(name, variant):
  config = load(name, variant)
  domain = load_domain(config)
  assert domain.chat is None
  assert domain.description
  assert config.method.name in METHODS


def test_medicine_is_grounded_unless_a_variant_leaves_it_out():
  grounded = {
    (name, variant)
    for name, variant in ALL
    if load(name, variant).retrieval.index
  }
  medical = {
    pair
    for pair in ALL
    if pair[0] in ("healthbench_professional", "medxpertqa")
  }
  assert grounded == medical - {("healthbench_professional", "no_retrieval")}
  assert not any(load(*pair).retrieval.verify_answer_key for pair in ALL)


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_solver_has_the_tools_of_its_benchmark(name, variant):
  config = load(name, variant)
  found = [spec.name for spec in tool_specs(config)]
  if variant == "no_retrieval":
    assert found == []
  elif name in ("prbench", "profbench"):
    assert found == ["web_search"]
  else:
    assert found == ["clinical_search", "web_search"]
  assert config.tools.max_calls == 2


def test_arms_differ_in_their_method_alone():
  base = load("healthbench_professional").to_dict()
  for variant, method in (
    ("generation_only", "generation_only"),
    ("co_evolve", "co_evolve_only"),
  ):
    arm = load("healthbench_professional", variant).to_dict()
    assert arm.pop("method") == {**base["method"], "name": method}
    rest = {k: v for k, v in base.items() if k not in ("method", "name")}
    assert {k: v for k, v in arm.items() if k != "name"} == rest


@pytest.mark.parametrize("name", VARIANTS)
def test_unknown_variants_are_refused(name):
  with pytest.raises(ValueError, match=f"{name}.py has no variant 'nonsense'"):
    load(name, "nonsense")
