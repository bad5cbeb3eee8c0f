"""The plan's arithmetic by hand, and against calls that were counted."""

import asyncio
import collections
import dataclasses
import json
import subprocess
import sys

import pytest

from tests import fakes
from varl_jax.config import ConfigError, from_config_dict
from varl_jax.methods import METHODS, learners
from varl_jax.plan import make_plan, show
from varl_jax.plan_lines import PARTS, fresh_tasks
from varl_jax.plan_terms import Assumptions
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.bundle import make_roles
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.service.store import Store
from varl_jax.story import world
from varl_jax.types import Criterion, Message, Rollout, Rubric, Task, to_json

PRICED = {"model": "m", "price_in": 2.0, "price_out": 10.0}


def config(**groups):
  tree = {
    "domain": "clinical",
    "endpoints": {"roles": {"model": "m"}},
    "eval": {"interval": 0},
  }
  return from_config_dict(tree | groups)


def line(plan, role, purpose):
  [found] = [x for x in plan.lines if (x.role, x.purpose) == (role, purpose)]
  return found


def test_every_method_is_known():
  assert set(PARTS) == set(METHODS)


def test_training_grades_some_six_thousand_votes_a_step():
  """64 tasks x 8 answers x 4 criteria x 3 votes; 12 criteria at most."""
  found = line(make_plan(config()), "judge", "training")
  assert found.calls == pytest.approx(64 * 8 * 4 * 3)
  assert found.calls == pytest.approx(6144)
  assert found.most == 64 * 8 * 12 * 3


def test_a_written_rubric_has_three_and_a_bit_criteria():
  """0.9 x 3 + 0.1 x 1.5 positives and 0.75 negatives."""
  derived = make_plan(config()).derived
  assert derived["criteria of a written task"] == pytest.approx(3.6)
  assert derived["criteria of a served task"] == pytest.approx(4.0)
  plain = make_plan(config(method={"name": "generation_only"}))
  assert plain.derived["criteria of a served task"] == pytest.approx(3.6)
  assert plain.derived["criteria of a task at most"] == 6


def test_votes_in_one_request_are_a_third_of_the_calls():
  one = line(
    make_plan(config(judge={"one_request": True})), "judge", "training"
  )
  many = line(make_plan(config()), "judge", "training")
  assert one.calls == pytest.approx(many.calls / 3)
  assert one.prompt == many.prompt
  assert one.reply == pytest.approx(3 * many.reply)


@pytest.mark.parametrize(
  ("capacity", "evicted", "expected"),
  [
    (1000, 0.0, 10.0),  # never full: every batch is new
    (10, 0.0, 2.5),  # full after the first batch of four
    (10, 0.5, (10 + 5 + 5 + 5) / 4),  # half of a batch makes room
    (10, 1.0, 10.0),
    (16, 0.5, (10 + 10 + 6 + 5) / 4),  # room for 10, 10, 6, 5
  ],
)
def test_new_tasks_are_what_the_pool_has_room_for(capacity, evicted, expected):
  settings = config(
    train={"tasks_per_step": 10, "minibatch_tasks": 10, "steps": 4},
    pool={"capacity": capacity, "floor": 0},
  )
  found = fresh_tasks(settings, evicted=evicted, replayed=0.0)
  assert found == pytest.approx(expected)


def test_replayed_tasks_need_no_new_ones():
  """But for the first batch, which fills the pool to its floor."""
  settings = config(
    train={"tasks_per_step": 10, "minibatch_tasks": 10, "steps": 4},
    pool={"capacity": 1000, "replay_share": 0.3},
  )
  assert fresh_tasks(settings, evicted=0, replayed=2.0) == pytest.approx(8.5)
  assert fresh_tasks(settings, evicted=0, replayed=9.0) == pytest.approx(7.75)


def test_probes_and_patches_by_hand():
  """All new (a pool without end), round numbers assumed."""
  assume = Assumptions(
    share_probes_failing=0.5,
    share_repaired_twice=0.5,
    share_patches_accepted=0.5,
    share_attacks_found=1.0,
    share_groups_exploited=0.125,
    criteria_proposed=2.0,
    share_proposed_negative=0.5,
    criteria_kept=1.0,
  )
  plan = make_plan(config(pool={"capacity": 10**6}), assume)
  # 64 x 0.125 = 8 cases, 4 of them replayed: 60 new tasks after the first 64.
  new = 60 + 4 / 100
  assert plan.derived["new tasks a step"] == pytest.approx(new)
  # 1 + 0.5 + 0.25 probes a task.
  assert line(plan, "adversary", "probes").calls == pytest.approx(1.75 * new)
  assert line(plan, "honest", "probes").calls == pytest.approx(1.75 * new)
  assert line(plan, "repairer", "rewrites").calls == pytest.approx(0.75 * new)
  assert line(plan, "judge", "probes").calls == pytest.approx(
    1.75 * new * 2 * 4 * 3
  )
  # 1 + 0.5 x 1 rounds a case.
  assert line(plan, "patcher", "repairs").calls == pytest.approx(12)
  assert line(plan, "judge", "proposed criteria").calls == pytest.approx(
    12 * 2 * 2.5 * 3
  )
  assert line(plan, "adversary", "attacks on patches").calls == pytest.approx(6)
  assert line(plan, "judge", "attacks on patches").calls == pytest.approx(
    6 * 2 * 5 * 3
  )
  assert line(plan, "judge", "re-scored groups").calls == pytest.approx(
    6 * 8 * 1 * 3
  )
  assert line(plan, "referee", "rankings").calls == 65


def test_what_the_settings_allow():
  """Of 64 new tasks and the next batch begun on, in 100 steps."""
  plan = make_plan(config())
  new = 64 * 101 / 100
  assert line(plan, "generator", "tasks and rubrics").most == 4 * new
  assert line(plan, "repairer", "rewrites").most == 2 * new
  assert line(plan, "judge", "probes").most == pytest.approx(
    3 * new * 2 * 12 * 3
  )
  assert line(plan, "patcher", "repairs").most == 8 * 2
  assert line(plan, "judge", "proposed criteria").most == 16 * 5 * 3 * 3
  assert line(plan, "memo_optimizer", "memo").most == 1
  assert all(found.calls <= found.most for found in plan.lines)


def test_evolution_is_spread_over_its_interval():
  plan = make_plan(config(evolution={"interval": 4, "cases": 20}))
  assert line(plan, "analyst", "diagnoses").calls == 5
  assert line(plan, "meta_optimizer", "guidance").calls == 0.25


@pytest.mark.parametrize(
  ("method", "roles"),
  [
    ("generation_only", {"proposer", "generator", "judge"}),
    (
      "co_evolve_only",
      {"proposer", "generator", "judge", "analyst", "meta_optimizer"},
    ),
  ],
)
def test_an_arm_pays_for_its_own_parts_alone(method, roles):
  plan = make_plan(config(method={"name": method}))
  assert {found.role for found in plan.lines} == roles
  watched = make_plan(config(method={"name": method, "measure_exploits": True}))
  assert {found.role for found in watched.lines} == roles | {"referee"}


def test_cost_is_tokens_times_price():
  """A judge's prompt: system, task, answer, criterion and three blocks."""
  settings = config(endpoints={"roles": PRICED, "judge": {}})
  plan = make_plan(settings)
  found = line(plan, "judge", "training")
  system = len(load_prompts("clinical").texts["judge"]) / 4
  assert found.prompt == pytest.approx(system + 300 + 600 + 30 + 3 * 40)
  assert found.reply == 60
  assert found.cost == pytest.approx(6144 * (found.prompt * 2 + 60 * 10) / 1e6)
  assert plan.unpriced == ()
  assert plan.total("cost") == pytest.approx(sum(x.cost for x in plan.lines))
  tree = plan.to_dict()
  assert tree["run"]["cost"] == pytest.approx(100 * plan.total("cost"))
  assert sum(r["calls"] for r in tree["roles"].values()) == pytest.approx(
    tree["step"]["calls"]
  )


def test_judge_and_roles_are_paid_apart():
  judge = {"model": "j", "price_in": 1.0}
  plan = make_plan(config(endpoints={"roles": PRICED, "judge": judge}))
  assert line(plan, "judge", "training").endpoint.model == "j"
  assert line(plan, "generator", "tasks and rubrics").endpoint.model == "m"


def test_a_price_that_is_missing_is_named_and_no_cost_is_shown():
  plan = make_plan(config())
  assert plan.unpriced == ("m",)
  page = show(plan)
  assert "No price is set for m" in page
  assert "endpoints.roles.price_in" in page
  assert "$" not in page.replace("dollars", "")


def test_effort_is_paid_for():
  with_effort = PRICED | {"effort": "low"}
  plain = make_plan(config(endpoints={"roles": PRICED}))
  more = make_plan(config(endpoints={"roles": with_effort}))
  for a, b in zip(plain.lines, more.lines, strict=True):
    assert b.reply == a.reply + 300


def test_validation_is_counted_in_its_file(tmp_path):
  """5 criteria x 2 answers x 3 votes, at steps 0, 4, 8 and 10 of 10."""
  path = tmp_path / "tasks.jsonl"
  tasks = [
    Task(
      task_id=f"t{count}",
      prompt=(Message(role="user", content="Why?"),),
      rubric=Rubric(criteria=(Criterion(text="Says it.", points=8),) * count),
    )
    for count in (2, 3)
  ]
  path.write_text("\n".join(json.dumps(to_json(task)) for task in tasks))
  plan = make_plan(
    config(
      train={"steps": 10},
      eval={"interval": 4, "samples": 2, "tasks_path": str(path)},
    )
  )
  found = line(plan, "judge", "validation")
  assert found.calls * 10 == pytest.approx(5 * 2 * 4 * 3)


def test_the_page_says_what_it_rests_on():
  page = " ".join(show(make_plan(config())).split())
  assert "64 tasks x 8 answers x 4 criteria x" in page
  for name in (f.name for f in dataclasses.fields(Assumptions)):
    assert name.replace("_", " ") in page


def test_an_unusable_config_is_refused():
  with pytest.raises(ConfigError, match="knows the methods"):
    make_plan(config(method={"name": "nothing"}))
  with pytest.raises(ConfigError, match=r"endpoints\.roles\.model"):
    make_plan(config(endpoints={}))


class Counter:
  """The story world without verifiers, so that a judge decides everything.

  Criteria that its script cannot read without their verifier are not met.
  """

  name = world.CHAT.name

  def __init__(self):
    self.calls = collections.Counter()

  async def complete(self, request):
    purpose = request.operation.partition("/")[0]
    self.calls[request.role, purpose] += 1
    reply = await world.CHAT.complete(request)
    if request.role not in ("judge", "generator", "repairer", "patcher"):
      return reply
    tree = json.loads(reply.text)
    if request.role == "judge":
      tree["criteria_met"] = bool(tree["criteria_met"])
    for item in tree.get("rubric_items", tree.get("items", [])):
      item.pop("check", None)
    return dataclasses.replace(reply, text=json.dumps(tree))


def story_config(method):
  return from_config_dict(
    {
      "domain": "story",
      "description": world.DESCRIPTION,
      "train": {"steps": 4, "tasks_per_step": 12, "minibatch_tasks": 12},
      "judge": {"max_failure_rate": 1.0, "canary": False},
      "evolution": {"interval": 2},
      "admission": {"barrier": True},
      "method": {"name": method},
    }
  )


def answers(task, step, count):
  """Half written honestly, half by the adversary."""
  prompts = load_prompts("story")
  for sample in range(count):
    op = f"{task.task_id}/{step}/{sample}"
    if sample % 2:
      call = Adversary(chat=world.CHAT, prompts=prompts).attack(
        prompt=task.prompt, rubric=task.rubric, op=op, seed=0
      )
    else:
      call = HonestAnswerer(chat=world.CHAT, prompts=prompts).answer(
        prompt=task.prompt, op=op, seed=0
      )
    yield Rollout(
      task_id=task.task_id,
      sample=sample,
      answer=asyncio.run(call),
      tokens=(1,),
      logprobs=(-0.5,),
      mask=(1,),
      finish="stop",
    )


def rubric_sets(prompt, task, count):
  """The task's own rubric, again and again."""
  items = [(c.text, c.points, c.check) for c in task.rubric.criteria]
  text = fakes.rubric_set(*items)
  return [fakes.rollout(prompt, sample, text) for sample in range(count)]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
  """Calls of short runs, by method."""
  found = {}
  for method in METHODS:
    settings, chat = story_config(method), Counter()
    service = METHODS[method](
      settings,
      roles=make_roles(chat, "story", settings.judge, world.CHECKS),
      store=Store(tmp_path_factory.mktemp(method) / "service.sqlite"),
      checks=world.CHECKS,
    )
    for step in range(1, settings.train.steps + 1):
      groups = [
        (task, list(answers(task, step, settings.train.samples)))
        for task in service.poll(step, settings.train.tasks_per_step)
      ]
      sets = {
        spec.name: [
          (prompt, rubric_sets(prompt, task, spec.train.samples))
          for prompt, (task, _) in zip(
            service.prompts_for(step, spec.name), groups, strict=True
          )
        ]
        for spec in learners(settings)[1:]
      }
      service.report(step, service.grade(step, groups, sets))
    service.close()
    found[method] = chat.calls
  return found


def calls_of(counts, role):
  return sum(n for (name, _), n in counts.items() if name == role)


@pytest.mark.parametrize("method", METHODS)
def test_counted_calls_stay_within_the_bound(counted, method):
  plan = make_plan(story_config(method))
  roles = {role for role, _ in counted[method]}
  assert roles <= {found.role for found in plan.lines}
  for role in roles:
    most = plan.total("most", role) * plan.steps
    assert 0 < calls_of(counted[method], role) <= most, role


@pytest.mark.parametrize("method", METHODS)
def test_what_is_certain_is_counted_exactly(counted, method):
  plan, counts = make_plan(story_config(method)), counted[method]
  if method == "generation_only":
    # No repaired task is replayed, and the pool has room for all.
    assert calls_of(counts, "generator") >= plan.derived["new tasks a step"] * 4
    assert plan.derived["new tasks a step"] == 12
  elif method == "rar":
    assert calls_of(counts, "rater") == 12 * 8 * 4
    assert line(plan, "rater", "training").calls == 12 * 8
    # Three lists' worth of tasks fit, so every serving is a new one.
    assert plan.derived["new tasks a step"] == 12
    assert calls_of(counts, "decomposer") >= 12 * 4 / 2
  elif method == "evo_rubrics":
    assert calls_of(counts, "reviser") == 12 * 4 * 4
    assert line(plan, "reviser", "revisions").calls == 12 * 4
  elif method == "sibyl_sense":
    assert calls_of(counts, "honest") == 12 * 4 / 2
    assert line(plan, "honest", "references").calls == 12 / 2
    assert calls_of(counts, "item_writer") >= 12 * 4
  else:
    assert calls_of(counts, "analyst") == 20 * 4 / 2
    assert calls_of(counts, "meta_optimizer") == 2
  if method == "rri":
    assert calls_of(counts, "referee") == 13 * 4
    assert line(plan, "referee", "rankings").calls == 13


@pytest.mark.parametrize("method", ["generation_only", "co_evolve_only"])
def test_expected_votes_are_near_what_was_counted(counted, method):
  """12 tasks x 8 answers x 3.6 criteria x 3 votes a step, within a tenth."""
  plan = make_plan(story_config(method))
  expected = line(plan, "judge", "training").calls * plan.steps
  got = calls_of(counted[method], "judge")
  assert got == pytest.approx(expected, rel=0.1)


def test_the_command_prints_a_plan_without_jax():
  code = (
    "import sys; from varl_jax import main;"
    "from absl import app;"
    "sys.argv = ['main', '--config=configs/profbench.py', '--plan', '--json'];"
    "main.parse(sys.argv); code = main.main(['main']);"
    "sys.exit(code or ('jax' in sys.modules and 9))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  tree = json.loads(done.stdout)
  assert tree["name"] == "profbench_9b"
  assert tree["roles"]["referee"]["calls"] == 65


def test_a_static_list_is_written_once():
  """100 steps x 64 servings of 256 tasks; every part of it judged alone."""
  settings = {"method": {"name": "rar"}, "pool": {"capacity": 10_000}}
  plan = make_plan(config(**settings))
  assert plan.derived["new tasks a step"] == pytest.approx(256 / 100)
  assert {found.purpose for found in plan.lines if found.role == "judge"} == {
    "canary"
  }
  explicit = make_plan(config(**settings, rar={"aggregation": "explicit"}))
  assert line(explicit, "judge", "training").calls == 64 * 8 * 10 * 3
  assert not [found for found in explicit.lines if found.role == "rater"]


def test_the_rater_is_the_judges_model():
  plan = make_plan(
    config(
      method={"name": "rar"},
      endpoints={"roles": {"model": "m"}, "judge": PRICED},
    )
  )
  assert line(plan, "rater", "training").cost > 0
  assert line(plan, "checklist", "checklists").cost == 0
