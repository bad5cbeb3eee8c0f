"""The benchmark configs through a real HTTP endpoint, roles, judge and all.

Settings come from the config files themselves; only the batch is small, and the
server is a local one that answers as the fake world does.
"""

import collections
import contextlib
import json

import pytest

from tests import fakes
from tests.configs_test import ALL, VARIANTS, load
from tests.faults.server import fault_server
from varl_jax import serving
from varl_jax.config import from_config_dict
from varl_jax.domains import load_domain
from varl_jax.frozen_models import open_validation_judge
from varl_jax.plan import make_plan
from varl_jax.retrieval.opening import open_writer
from varl_jax.retrieval.passage import Passage
from varl_jax.service.hosting import Notices
from varl_jax.types import to_json

STEPS = 2
FIELD = {
  "healthbench_professional": "clinical medicine",
  "prbench": "finance and law",
  "profbench": "physics, chemistry",
  "medxpertqa": "specialist examinations",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  """The folder of an index that any request finds something in."""
  folder = tmp_path_factory.mktemp("index") / "clinical"
  with contextlib.closing(open_writer(folder)) as writer:
    writer.put(
      [
        Passage(
          passage_id=f"icd10cm:{number}",
          source="icd10cm",
          title=f"Page {number}",
          text="A text of words: fox lamp rope tells write of the and about.",
        )
        for number in range(20)
      ]
    )
    writer.publish()
  return str(folder)


def small(name, variant, url, index="", **eval_settings):
  """The config with its own prompts, arm and reward, and a small batch.

  `index` takes the place of the reference passages where there are some.
  """
  tree = load(name, variant).to_dict()
  if tree["retrieval"]["index"]:
    tree["retrieval"]["index"] = index
  for endpoint in tree["endpoints"].values():
    endpoint.update(base_url=url, api_key_env="")
  tree["train"].update(
    tasks_per_step=4, minibatch_tasks=4, samples=4, steps=STEPS
  )
  tree["evolution"].update(interval=2, cases=8)
  tree["eval"].update(eval_settings)
  return from_config_dict(tree)


def role_of(body):
  """The role that a request's system message names."""
  first = body["messages"][0]["content"].splitlines()[0]
  return first.removeprefix("Role: ") if "Role: " in first else "honest"


def generator(reading):
  """Tasks whose criteria only a judge can decide."""
  words = fakes.words_of(reading.blocks["REQUEST"]) * 2
  items = [
    {"criterion_text": f"Brings a '{word}' into the text.", "points": 8}
    for word in words[: int(reading.blocks["POSITIVE COUNT"])]
  ]
  if int(reading.blocks["NEGATIVE COUNT"]):
    items.append(
      {"criterion_text": "Speaks of a 'dragon' at length.", "points": -6}
    )
  return json.dumps(
    {
      "question": reading.blocks["REQUEST"],
      "use_case": reading.blocks["USE CASE"],
      "rubric_items": items,
    }
  )


@pytest.fixture(scope="module")
def server():
  with fault_server(replies=fakes.chat(generator=generator)) as started:
    yield started


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_config_runs_its_loop_over_http(
  tmp_path, server, index, name, variant
):
  config = small(name, variant, server.url, index)
  before = len(server.requests)
  hosted = serving.make_service(
    config,
    load_domain(config),
    tmp_path / "service.sqlite",
    notices=Notices(lambda sentence: pytest.fail(sentence)),
  )
  with contextlib.closing(hosted) as service:
    for step in range(1, STEPS + 1):
      tasks = service.poll(step, config.train.tasks_per_step)
      assert len(tasks) == config.train.tasks_per_step
      grounded = [bool(task.passages) for task in tasks]
      assert grounded == [bool(config.retrieval.index)] * len(tasks)
      groups = [(task, fakes.rollouts(task, step)) for task in tasks]
      graded = service.grade(step, groups)
      assert all(a.score is not None for g in graded for a in g.answers)
      service.report(step, graded)
  bodies = server.requests[before:]
  assert {body["model"] for body in bodies} == {config.endpoints.roles.model}
  counts = collections.Counter(map(role_of, bodies))
  plan = make_plan(config)
  assert set(counts) <= {line.role for line in plan.lines}
  for role, count in counts.items():
    assert count <= plan.total("most", role) * STEPS, role
  arm = {"generation_only": set(), "co_evolve": {"analyst", "meta_optimizer"}}
  expected = arm.get(variant)
  if expected is None:
    assert {"adversary", "honest", "repairer", "referee"} <= set(counts)
  else:
    assert set(counts) - {"proposer", "generator", "judge"} == expected
  if "honest" in counts:
    [solver] = {
      body["messages"][0]["content"]
      for body in bodies
      if role_of(body) == "honest"
    }
    assert FIELD[name] in solver


@pytest.mark.parametrize("name", VARIANTS)
def test_held_out_tasks_are_graded_over_http(tmp_path, server, name):
  path = tmp_path / "tasks.jsonl"
  held_out = [
    fakes.task(
      ("Speaks of a 'fox' in it.", 8, None),
      ("Speaks of a 'lamp' in it.", 2, None),
      task_id=f"v{index}",
    )
    for index in range(2)
  ]
  path.write_text("\n".join(json.dumps(to_json(task)) for task in held_out))
  config = small(
    name, VARIANTS[name][0], server.url, tasks_path=str(path), interval=1
  )
  with contextlib.ExitStack() as stack:
    judge = open_validation_judge(
      config, tmp_path, notify=lambda sentence: None, stack=stack
    )
    assert judge is not None
    validator = load_domain(config).make_validator(lambda: judge)
    stack.enter_context(contextlib.closing(validator))
    answers = [["a fox".ljust(2000)], [None]]
    found = validator.score(validator.tasks, answers)
    again = validator.score(validator.tasks, answers)
  assert found["eval/score"] == pytest.approx(0.4)
  assert found["eval/missing"] == 0.5
  assert again == found
  assert judge.answered == 6
