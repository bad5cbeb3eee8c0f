"""Domains by name and by folder, and what they lack said in one sentence."""

import json
import subprocess
import sys

import pytest

from tests import fakes
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.judged_validation import JudgedValidator
from varl_jax.methods import METHODS
from varl_jax.prompts import loader
from varl_jax.prompts.loader import domain_names, load_description
from varl_jax.roles.bundle import make_roles
from varl_jax.service.evolution_stats import corpus_statistics, drift
from varl_jax.service.store import Store
from varl_jax.types import Criterion, Message, Rubric, Task, to_json

ENDPOINT = {"roles": {"model": "some-model"}}
BENCHMARKS = sorted({*domain_names()} - {"story"})


def config(domain, **more):
  return from_config_dict({"domain": domain, "endpoints": ENDPOINT, **more})


@pytest.fixture(name="mine")
def own_folder(tmp_path):
  folder = tmp_path / "mine"
  folder.mkdir()
  slots = loader._folder() / "finance_law" / "slots.json"
  (folder / "slots.json").write_text(slots.read_text())
  (folder / "description.txt").write_text("Requests of a kind.")
  return folder


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_domain_is_its_prompts(name):
  domain = load_domain(config(name))
  assert domain.chat is None
  assert domain.description == load_description(name)
  assert not domain.checks.checks and not domain.verifiers


def test_the_story_world_has_a_model_unless_an_endpoint_is_named():
  assert load_domain(from_config_dict({"domain": "story"})).chat is not None
  assert load_domain(config("story")).chat is None


def test_a_folder_of_the_users_is_a_domain(mine):
  domain = load_domain(config(str(mine)))
  assert domain.description == "Requests of a kind."
  assert domain.reference is None


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_domain_without_a_model_names_the_setting(name):
  with pytest.raises(ConfigError, match=r"endpoints\.roles\.model"):
    load_domain(from_config_dict({"domain": name}))


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", ""])
def test_an_unknown_domain_is_a_config_error(name):
  with pytest.raises(ConfigError, match="There is no"):
    load_domain(config(name))


@pytest.mark.parametrize(
  ("name", "known"),
  [
    ("clinical", {"tasks": 525, "specialties": 28}),
    ("expert_reports", {"tasks": 40, "negative_share": 0.0}),
    (
      "finance_law",
      {"tasks": 550, "use_cases": {"finance": 0.5455, "legal": 0.4545}},
    ),
    ("medical_exam", {"tasks": 4450}),
  ],
)
def test_references_hold_public_facts_and_leave_the_rest_open(name, known):
  """550 tasks are 300 and 250; 4,450 are 2,450 with text and 2,000 images."""
  reference = load_domain(config(name)).reference
  told = {k: v for k, v in to_json(reference).items() if v is not None}
  assert told == known


def test_distance_is_taken_only_where_both_are_known():
  task = Task(
    task_id="t",
    prompt=(Message(role="user", content="Why?"),),
    rubric=Rubric(criteria=(Criterion(text="Says it.", points=8),)),
    use_case="finance",
  )
  reference = load_domain(config("finance_law")).reference
  assert reference is not None
  assert drift(corpus_statistics([task]), reference) == {
    "use_cases/finance": pytest.approx(1 - 0.5455),
    "use_cases/legal": pytest.approx(-0.4545),
  }


@pytest.mark.parametrize(
  ("tree", "match"),
  [
    ({"tasks": "many"}, "'tasks' is no number, got 'many'"),
    ({"tasks": 3, "use_cases": 0.5}, "'use_cases' is no number a use case"),
    ({"tasks": 3, "use_cases": {"a": "x"}}, "'use_cases' is no number"),
    ({"tasks": {"a": 1}}, "'tasks' is no number"),
    ({"tasks": 3, "colour": 1}, "no field 'colour'"),
    ({"specialties": 3}, "Incomplete"),
  ],
)
def test_a_bad_reference_is_a_config_error(mine, tree, match):
  (mine / "reference.json").write_text(json.dumps(tree))
  with pytest.raises(ConfigError, match=match):
    load_domain(config(str(mine)))


@pytest.mark.parametrize(
  ("text", "match"),
  [
    ('{"tasks": NaN}', "'tasks' is no number, got nan"),
    ('{"tasks": 3, "negative_share": -Infinity}', "'negative_share' is no"),
    ('{"tasks": 3, "self_similarity": 1e999}', "'self_similarity' is no"),
    ('{"tasks": 3, "use_cases": {"a": NaN}}', "'use_cases' is no number"),
  ],
)
def test_numbers_that_are_none_are_refused(mine, text, match):
  (mine / "reference.json").write_text(text)
  with pytest.raises(ConfigError, match=match):
    load_domain(config(str(mine)))


def test_held_out_tasks_come_from_a_file(tmp_path):
  path = tmp_path / "tasks.jsonl"
  task = Task(
    task_id="t",
    prompt=(Message(role="user", content="Why?"),),
    rubric=Rubric(criteria=(Criterion(text="Says it.", points=8),)),
  )
  path.write_text(json.dumps(to_json(task)))
  domain = load_domain(config("clinical", eval={"tasks_path": str(path)}))
  with pytest.raises(ConfigError, match=r"endpoints\.judge\.model"):
    domain.make_validator()
  validator = domain.make_validator(lambda: pytest.fail("not needed yet"))
  assert isinstance(validator, JudgedValidator)
  assert validator.tasks == [task]


def test_a_domain_without_held_out_tasks_says_so():
  domain = load_domain(config("clinical"))
  with pytest.raises(
    ConfigError, match=r"eval\.tasks_path, or set eval\.inter"
  ):
    domain.make_validator()


@pytest.mark.parametrize("name", domain_names())
def test_the_whole_method_runs_on_the_prompts_of_every_domain(tmp_path, name):
  """Scripted models that read the blocks, behind each domain's own texts."""
  settings = fakes.config(domain=name, pool__capacity=60)
  service = METHODS["rri"](
    settings,
    roles=make_roles(fakes.chat(), name, settings.judge, fakes.CHECKS),
    store=Store(tmp_path / "service.sqlite"),
    checks=fakes.CHECKS,
  )
  accepted = 0.0
  for step in range(4):
    groups = [
      (task, fakes.rollouts(task, step)) for task in service.poll(step, 4)
    ]
    measured = service.report(step, service.grade(step, groups))
    accepted += measured["patch/accepted"]
  service.close()
  assert accepted > 0 and measured["guidance/version"] == 2


def test_domains_load_without_jax():
  """The service's process builds them too."""
  code = (
    "import sys, varl_jax.domains;"
    "sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
  )
  done = subprocess.run([sys.executable, "-c", code], timeout=120)
  assert done.returncode == 0
