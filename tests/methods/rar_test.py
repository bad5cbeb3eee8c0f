"""RaR as an arm: a static list, checklists from references, two rewards."""

import dataclasses
import json

import pytest

from tests import fakes
from tests.methods.running import service, step
from varl_jax.config import ConfigError
from varl_jax.rubrics import checklists
from varl_jax.rubrics.scoring import by_criterion


def config(**changed):
  return fakes.config(method__name="rar", rar__tasks=6, rar__parts=2, **changed)


def test_a_rating_of_the_whole_answer_is_the_reward(tmp_path):
  with service(tmp_path / "s.sqlite", config()) as made:
    graded, metrics = step(made, 0)
  for group in graded:
    for answer in group.answers:
      if answer.answer is None:
        continue
      things = len(set(fakes.words_of(answer.answer)))
      rating = min(10, 1 + 2 * things + 3 * (fakes.VERB in answer.answer))
      assert answer.raw == pytest.approx((rating - 1) / 9)
      assert answer.score == answer.raw  # far below 2,000 characters
      assert [v.explanation for v in answer.verdicts] == [
        f"Rated {rating}: Counted."
      ]
  assert metrics["judge/undetermined_rate"] == 0


@pytest.mark.parametrize("pitfalls", ["avoided", "committed"])
def test_explicit_items_are_judged_one_by_one(tmp_path, pitfalls):
  settings = config(rar__aggregation="explicit", rar__pitfalls=pitfalls)
  with service(tmp_path / "s.sqlite", settings) as made:
    graded, _ = step(made, 0)
  for group in graded:
    listed = checklists.categorized(group.task.rubric)
    assert len(listed) == 7
    for answer in group.answers:
      if answer.answer is None:
        continue
      met = [verdict.met for verdict in answer.verdicts]
      earned = sum(
        checklists.points_of(category, pitfalls)
        for (category, _), held in zip(listed, met, strict=True)
        if held
      )
      most = 3 * 10 + 7 + 2 * 3 + (9 if pitfalls == "avoided" else 0)
      assert answer.score == pytest.approx(earned / most)


def test_the_list_is_static_and_comes_round(tmp_path):
  """Six tasks, four a step: nothing leaves, though scores are constant."""
  served, sizes = [], []
  constant = json.dumps({"explanation": "", "rating": 10})
  with service(
    tmp_path / "s.sqlite", config(), rater=lambda _: constant
  ) as made:
    for number in range(5):
      graded, metrics = step(made, number)
      served.append([group.task for group in graded])
      sizes.append(metrics["pool/size"])
      assert metrics["pool/evicted"] == 0
  assert sizes[-1] == 6
  tasks = {task.task_id: task for batch in served for task in batch}
  assert len(tasks) == 6
  assert all(tasks[t.task_id] == t for batch in served for t in batch)


def test_a_task_is_a_part_with_its_reference(tmp_path):
  def split(reading):
    parts = [f"{reading.blocks['TASK']} part {n}" for n in range(2)]
    return json.dumps({"parts": parts})

  with service(tmp_path / "s.sqlite", config(), decomposer=split) as made:
    tasks = made.poll(0, 4)
  asked = [task.prompt[-1].content for task in tasks]
  assert [text[-6:] for text in asked] == ["part 0", "part 1"] * 2
  assert asked[0][:-1] == asked[1][:-1]
  for task in tasks:
    assert fakes.VERB in task.cached_honest


def test_a_run_that_is_opened_again_goes_on(tmp_path):
  def run(path, cuts):
    found = []
    for first, last in cuts:
      with service(path, config()) as made:
        found += [step(made, number) for number in range(first, last)]
    return found

  whole = run(tmp_path / "a.sqlite", [(0, 4)])
  assert run(tmp_path / "b.sqlite", [(0, 2), (2, 4)]) == whole


def test_checklists_that_cannot_be_used_are_dropped_and_counted(tmp_path):
  def no_essential(reading):
    reply = json.loads(fakes.checklist(reading))
    if reading.rng.random() < 0.5:
      for item in reply["items"]:
        item["category"] = "Optional"
    return json.dumps(reply)

  with service(tmp_path / "s.sqlite", config(), checklist=no_essential) as made:
    tasks = made.poll(0, 4)
  for task in tasks:
    found = {c for c, _ in checklists.categorized(task.rubric)}
    assert "Essential" in found


def test_a_failed_rating_leaves_no_score(tmp_path):
  def rater(reading):
    return "?" if reading.rng.random() < 0.5 else fakes.rater(reading)

  settings = config(judge__max_failure_rate=1.0)
  with service(tmp_path / "s.sqlite", settings, rater=rater) as made:
    graded = [a for n in range(4) for g in step(made, n)[0] for a in g.answers]
  failed = [a for a in graded if a.answer is not None and a.score is None]
  assert failed
  assert {a.verdicts[0].failures for a in failed} == {("malformed",)}


def test_a_list_shorter_than_a_batch_is_refused(tmp_path):
  short = dataclasses.replace(config().rar, tasks=3)
  settings = dataclasses.replace(config(), rar=short)
  with pytest.raises(ConfigError, match=r"rar\.tasks is at least"):
    with service(tmp_path / "s.sqlite", settings):
      pass


def test_readers_of_verdicts_do_not_take_a_rating_for_an_items(tmp_path):
  with service(tmp_path / "s.sqlite", config()) as made:
    [group, *_] = step(made, 0)[0]
  [answer, *_] = [a for a in group.answers if a.answer is not None]
  assert len(answer.verdicts) == 1
  rubric = group.task.rubric
  assert by_criterion(rubric, answer.verdicts) == (None,) * 7
  explicit = (fakes.verdict(True),) * 7
  assert by_criterion(rubric, explicit) == explicit
