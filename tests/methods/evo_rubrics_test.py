"""EvoRubrics' service: what answers and rubric sets earn from one another."""

import asyncio
import dataclasses

import numpy as np
import pytest

from tests import fakes
from tests.methods import running
from tests.service import hosts
from varl_jax.config import LoraConfig
from varl_jax.methods import learners
from varl_jax.methods.co_grading import GENERATOR, CoGrading
from varl_jax.methods.rubric_sets import distinct, middle_answer
from varl_jax.service.assessment import Assessor
from varl_jax.types import Criterion

FOX = ("Brings the fox into the text.", 5, "has(fox)")
LAMP = ("Brings the lamp into the text.", 5, "has(lamp)")
LISTED = ("Lists things without a verb.", -6, "bare_list()")
CONFIG = fakes.config(method={"name": "evo_rubrics"}, evo__sets=3)


@dataclasses.dataclass(frozen=True)
class Axes:
  """An embedder: each text its own axis, a text as the first one its."""

  def embed_queries(self, texts):
    first = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    return np.eye(len(texts))[[first[text] for text in texts]]


def grading(**changed):
  roles = fakes.roles(**changed.pop("roles", {}))
  parts = {
    "language": roles.rubric_language,
    "assessor": Assessor(grader=roles.grader, reward=CONFIG.reward, seed=0),
    "reviser": roles.reviser,
    "checks": fakes.CHECKS,
    "embedder": Axes(),
    "reference": True,
    "seed": 0,
    **changed,
  }
  return CoGrading(**parts)


def graded(answers, sets, *, task=None, **changed):
  """One task's answers under one task's sets."""
  task = task or fakes.task(FOX, LAMP)
  made = grading(**changed)
  [prompt] = made.prompts(GENERATOR, [task])
  return asyncio.run(
    made.grade(
      3,
      [(task, [fakes.rollout(task, *a) for a in enumerate(answers)])],
      {
        GENERATOR: [
          (prompt, [fakes.rollout(prompt, *s) for s in enumerate(sets)])
        ]
      },
    )
  )


ANSWERS = ("They found a fox.", "fox lamp")
SETS = (
  fakes.rubric_set(FOX, LAMP),
  fakes.rubric_set((LAMP[0], 6, LAMP[2]), LISTED),
  "There is no set in this.",
)


def test_a_hand_worked_step():
  """Answers 0.5, 1 under the first set, 0.5, 0.5 under the second.

  Second set, answer 1: 6 - 6 = 0 of -6 .. 6. Discriminations 0.25 and 0; every
  axis is at a right angle, so diversity 0.5; the own rubric is the first set's,
  likeness 1 and 0.5. The middle answer is the first; with the first set it gets
  fox and lamp, which the second set scores 1, with the second it gets lamp,
  which the first scores 1: both gain 0.5.
  """
  found = graded(ANSWERS, SETS)
  [group] = found.groups
  assert [a.score for a in group.answers] == pytest.approx([0.5, 0.75])
  assert [a.raw for a in group.answers] == pytest.approx([0.5, 0.75])
  [rewards] = found.rewards[GENERATOR]
  assert rewards == pytest.approx((2.25 / 4, 1.5 / 4, -1))
  assert found.measures == pytest.approx(
    {
      "evo/parsed": 2 / 3,
      "evo/items": 2,
      "evo/discrimination": 0.125,
      "evo/diversity": 0.5,
      "evo/reflect": 0.5,
      "evo/reference": 0.75,
    }
  )


def test_parts_that_are_left_out_are_not_averaged():
  [rewards] = graded(ANSWERS, SETS, reference=False).rewards[GENERATOR]
  assert rewards == pytest.approx((1.25 / 3, 1 / 3, -1))
  [rewards] = graded(ANSWERS, SETS, reviser=None).rewards[GENERATOR]
  assert rewards == pytest.approx((1.75 / 3, 1 / 3, -1))
  alone = graded(ANSWERS, SETS[:1], reference=False, reviser=None)
  assert alone.rewards[GENERATOR] == (pytest.approx((0.25,)),)


def test_a_set_that_is_alone_says_itself_what_a_revision_gained():
  # The middle answer has fox; revised it has lamp, too: from 0.5 to 1.
  found = graded(ANSWERS, SETS[:1], reference=False)
  assert found.rewards[GENERATOR] == (pytest.approx((0.75 / 2,)),)


@pytest.mark.parametrize(
  "text",
  [
    "",
    "[]",
    '{"rubric_items": []}',
    fakes.rubric_set(LISTED),
    fakes.rubric_set((FOX[0], 11, FOX[2])),
    fakes.rubric_set((FOX[0], 5, "flies(fox)")),
    fakes.rubric_set(*[FOX] * 7),
    SETS[0][:-4],
    None,
  ],
)
def test_what_is_no_set_earns_minus_one(text):
  found = graded(ANSWERS, [text])
  assert found.rewards[GENERATOR] == ((-1.0,),)
  [group] = found.groups
  assert [a.score for a in group.answers] == [None, None]


def test_a_set_cut_at_its_limit_is_none():
  made = grading()
  task = fakes.task()
  whole = fakes.rollout(task, 0, SETS[0])
  assert made.read(whole, task.prompt) is not None
  cut = dataclasses.replace(whole, finish="length")
  assert made.read(cut, task.prompt) is None


def test_an_item_of_several_sets_is_judged_once_an_answer():
  asked = []

  def judge(reading):
    asked.append(reading.blocks["CRITERION"])
    return fakes.judge(reading)

  told = ("Tells of a 'fox' with love.", 4, "")
  graded(
    ANSWERS,
    [fakes.rubric_set(told, FOX), fakes.rubric_set(told, LAMP)],
    roles={"judge": judge},
    reviser=None,
  )
  assert len(asked) == len(ANSWERS) * 3  # votes


def test_an_undetermined_item_leaves_its_sets_out():
  def judge(reading):
    return "no verdict"

  told = ("Tells of a 'fox' with love.", 4, "")
  found = graded(
    ANSWERS,
    [fakes.rubric_set(told, FOX), fakes.rubric_set(LAMP)],
    roles={"judge": judge},
    reviser=None,
    reference=False,
  )
  [group] = found.groups
  assert [a.score for a in group.answers] == [0, 1]
  [rewards] = found.rewards[GENERATOR]
  # The first is told apart from the second and nothing else is known of it.
  assert rewards == pytest.approx((0.5, (0.5 + 0.5) / 2))


def test_truncated_answers_and_missing_tasks():
  found = graded([None, "fox lamp", "fox"], SETS[:1], reviser=None)
  [group] = found.groups
  assert [a.score for a in group.answers] == [0.0, 1.0, 0.5]
  made = grading()
  prompts = made.prompts(GENERATOR, [fakes.task()])
  sets = [fakes.rollout(prompts[0], 0, SETS[0])]
  alone = asyncio.run(made.grade(0, [], {GENERATOR: [(prompts[0], sets)]}))
  assert alone.rewards[GENERATOR] == ((None,),)


def test_the_middle_answer():
  rows = [[0.9, None], [0.1, 0.3], [None, None], [0.5, 0.5]]
  assert middle_answer(rows) == 3
  assert middle_answer(rows[:2]) == 1
  assert middle_answer([[None]]) is None


def test_distinct_items_have_mean_points():
  one, two = (Criterion(text="a", points=p, check="c()") for p in (4, 8))
  other = Criterion(text="a", points=1)
  assert distinct([(one, other), None, (two,)]) == (
    dataclasses.replace(one, points=6),
    other,
  )


def test_two_learners_as_data():
  policy, generator = learners(CONFIG)
  assert (policy.name, generator.name) == ("policy", GENERATOR)
  assert policy.lora == generator.lora
  assert policy.lora == LoraConfig(rank=32, alpha=64.0)
  assert policy.train == CONFIG.train
  assert generator.train.samples == 3
  changed = dataclasses.replace(
    CONFIG,
    lora=LoraConfig(rank=4),
    evo=dataclasses.replace(CONFIG.evo, generator_learning_rate=0.5),
  )
  policy, generator = learners(changed)
  assert (policy.lora.rank, generator.lora.rank) == (4, 4)
  assert generator.train.learning_rate == 0.5
  [alone] = learners(fakes.config())
  assert alone.lora.rank == 0


def step(service, number):
  """A step as the trainer has it."""
  tasks = service.poll(number, 4)
  prompts = service.prompts_for(number, GENERATOR)
  graded = service.grade(
    number,
    [(task, fakes.rollouts(task, number)) for task in tasks],
    {GENERATOR: [(p, fakes.rubric_sets(p, number)) for p in prompts]},
  )
  paid = service.rewards_for(number, GENERATOR)
  return graded, paid, service.report(number, graded)


def test_a_run_is_the_same_in_a_thread_and_behind_http(tmp_path):
  found = []
  for kind in ("thread", "http"):
    path = tmp_path / f"{kind}.sqlite"
    with hosts.opened(kind, path, config=CONFIG) as service:
      found.append([step(service, number) for number in range(3)])
      assert service.rewards_for(1, GENERATOR) == found[-1][1][1]
  assert found[0] == found[1]
  for graded, paid, metrics in found[0]:
    assert len(graded) == len(paid) == 4
    assert all(row[0] == -1 and max(row) > 0 for row in paid)
    assert metrics["evo/parsed"] == 0.75
    assert 0 < metrics["evo/discrimination"] < 0.5


def test_rewards_outlive_the_service_and_not_a_rewind(tmp_path):
  path = tmp_path / "s.sqlite"
  with running.service(path, CONFIG) as service:
    first = step(service, 0)
    number = service.event_number()
    second = step(service, 1)
  with running.service(path, CONFIG) as service:
    assert service.rewards_for(1, GENERATOR) == second[1]
    service.rewind(number)
    with pytest.raises(ValueError, match="Step 1 paid no learner"):
      service.rewards_for(1, GENERATOR)
    assert service.rewards_for(0, GENERATOR) == first[1]
    assert step(service, 1) == second


def test_other_methods_ask_and_pay_nobody_else(tmp_path):
  config = fakes.config(method={"name": "generation_only"})
  with running.service(tmp_path / "s.sqlite", config) as service:
    running.step(service, 0)
    with pytest.raises(ValueError, match="asks nothing of a learner"):
      service.prompts_for(0, GENERATOR)
    with pytest.raises(ValueError, match="paid no learner"):
      service.rewards_for(0, GENERATOR)
