"""Official scores: hand-worked cases, traps, and an independent reading."""

import dataclasses
import json
import math
import random
import statistics

import pytest

from tests.benchmarks import rows
from varl_jax import benchmarks
from varl_jax.benchmarks import BenchmarkError, tasks
from varl_jax.rubrics import scoring
from varl_jax.types import Verdict

# Points, met, length, then r, raw and the two-sided score.
CASES = [
  ([10, 5], [1, 1], 2000, 1.0, 1.0, 1.0),
  ([10, 5], [1, 0], 1000, 0.6666667, 0.6666667, 0.6960667),
  ([7, 5, 10, -6], [1, 0, 1, 1], 2500, 0.5, 0.5, 0.4853),
  ([6, -3], [0, 1], 2000, -0.5, 0.0, -0.5),
  ([8, -10, -5], [0, 1, 1], 1500, -1.875, 0.0, -1.8603),
  ([8, 7, -5], [0, 0, 0], 0, 0.0, 0.0, 0.0588),
  ([10, 10], [1, 1], 36013, 1.0, 1.0, 0.0000178),
]


def load(name, tmp_path, *made):
  return benchmarks.load(name, rows.write_rows(tmp_path / "rows.jsonl", made))


def results(name, loaded, verdicts, answers=None):
  return benchmarks.score(
    name, loaded, verdicts, answers or ["text"] * len(loaded)
  )


@pytest.mark.parametrize(("points", "met", "length", "r", "raw", "s"), CASES)
def test_hand_worked_scores(tmp_path, points, met, length, r, raw, s):
  loaded = load(
    "healthbench_professional", tmp_path, rows.professional("a", points)
  )
  found = results(
    "healthbench_professional", loaded, [list(map(bool, met))], ["x" * length]
  )
  assert found["score"] == pytest.approx(s, abs=1e-7)
  assert found["raw"] == pytest.approx(raw, abs=1e-7)
  assert found["unclipped"] == pytest.approx(r, abs=1e-7)


def test_a_rubric_without_positives_is_reported_and_left_out(tmp_path):
  loaded = load(
    "healthbench_professional",
    tmp_path,
    rows.professional("a", (-5, -3)),
    rows.professional("b", (4,)),
  )
  found = results(
    "healthbench_professional",
    loaded,
    [[True, False], [True]],
    ["x" * 2000] * 2,
  )
  assert found["score"] == 1.0
  assert found["unscorable"]["reasons"] == {"no_positive": 1}
  assert found["unscorable"]["task_ids"] == ["a"]


def test_both_clippings_are_there_and_differ(tmp_path):
  """r is 1, -0.5 and 0.25: 0.25 over the data set, 0.41667 a task."""
  loaded = load(
    "healthbench_hard",
    tmp_path,
    rows.healthbench("a", (4,)),
    rows.healthbench("b", (4, -2)),
    rows.healthbench("c", (2, 6)),
  )
  found = results(
    "healthbench_hard", loaded, [[True], [False, True], [True, False]]
  )
  assert found["clipped_mean"] == pytest.approx(0.25)
  assert found["mean_of_clipped"] == pytest.approx(1.25 / 3)
  assert found["score"] == found["raw"] == found["mean_of_clipped"]


def test_the_data_sets_clipping_keeps_a_negative_mean_at_zero(tmp_path):
  loaded = load("healthbench", tmp_path, rows.healthbench("a", (4, -8)))
  found = results("healthbench", loaded, [[False, True]])
  assert found["unclipped"] == -2.0
  assert found["clipped_mean"] == found["mean_of_clipped"] == 0.0
  assert found["clipped_mean_bootstrap_std"] == 0.0


def test_tags_of_items_and_of_criteria(tmp_path):
  """A criterion tag without a positive criterion gets no ratio."""
  loaded = load(
    "healthbench",
    tmp_path,
    rows.healthbench(
      "a",
      (6, 2, -4),
      ("theme:one", "theme:two", "physician_agreed_category:x"),
      (["axis:accuracy"], ["axis:complete", "level:y"], ["axis:safety"]),
    ),
    rows.healthbench("b", (5,), ("theme:one",), (["axis:accuracy"],)),
  )
  found = results("healthbench", loaded, [[True, False, True], [False]])
  tables = found["breakdowns"]
  assert tables["theme"]["one"]["tasks"] == 2
  assert tables["theme"]["one"]["score"] == pytest.approx(0.25 / 2)
  assert tables["theme"]["two"]["score"] == pytest.approx(0.25)
  assert tables["physician_agreed_category"]["x"]["tasks"] == 1
  axes = tables["criteria axis"]
  assert axes["accuracy"]["unclipped"] == pytest.approx(0.5)
  assert axes["complete"]["unclipped"] == 0.0
  assert "safety" not in axes
  assert tables["criteria level"]["y"]["tasks"] == 1


def test_prbench_takes_the_field_that_the_class_names(tmp_path):
  """Several weight fields are filled; the first would turn the sign."""
  items = [
    rows.prbench_item(
      "Good.", "critically important", critically_important_weight=10
    ),
    rows.prbench_item(
      "Bad.",
      "slightly detrimental",
      important_weight=5,
      slightly_important_weight=3,
      slightly_detrimental_weight=-3,
    ),
    # A sign that looks wrong stays as the data have it.
    rows.prbench_item("Odd.", "detrimental", detrimental_weight=25),
  ]
  [task] = load("prbench_hard", tmp_path, rows.prbench("a", items))
  assert [item.points for item in task.criteria] == [10, -3, 25]
  assert [item.text for item in task.criteria] == ["Good.", "Bad.", "Odd."]


def test_prbench_has_two_scores_and_clips_neither(tmp_path):
  loaded = load("prbench_finance", tmp_path, rows.prbench("a"))
  worst = results("prbench_finance", loaded, [[False, True]])
  assert worst["score"] == pytest.approx(-4 / 5)
  assert worst["normalized"] == 0.0
  best = results("prbench_finance", loaded, [[True, False]])
  assert best["score"] == best["normalized"] == 1.0
  nothing = results("prbench_finance", loaded, [[False, False]])
  assert nothing["score"] == 0.0
  assert nothing["normalized"] == pytest.approx(4 / 9)


def test_profbench_is_the_mean_of_its_domains(tmp_path):
  """Three tasks of one domain weigh as much as one of another."""
  loaded = load(
    "profbench",
    tmp_path,
    *(rows.profbench(f"p{i}") for i in range(3)),
    rows.profbench("f", "Finance MBA", ("Major", "Additional")),
  )
  found = results(
    "profbench",
    loaded,
    [[True, False], [True, True], [False] * 2, [False, True]],
  )
  physics = (4 / 6 + 1 + 0) / 3
  assert found["score"] == pytest.approx((physics + 1 / 4) / 2)
  assert found["breakdowns"]["domain"]["Physics PhD"]["score"] == pytest.approx(
    physics
  )
  low, high = found["interval"]
  assert low <= found["score"] <= high


def test_profbench_does_not_drop_failed_criteria(tmp_path):
  """Dropping one would raise the score of what is left."""
  loaded = load("profbench", tmp_path, rows.profbench("a"), rows.profbench("b"))
  found = results("profbench", loaded, [[True, None], [True, False]])
  assert found["unscorable"]["reasons"] == {"undetermined": 1}
  assert found["score"] == pytest.approx(4 / 6)


def test_missing_and_unscorable_are_told_apart(tmp_path):
  made = [rows.professional(name) for name in "abcd"]
  loaded = load("healthbench_professional", tmp_path, *made)
  found = benchmarks.score(
    "healthbench_professional",
    loaded,
    [[True, False], [], [None, False], []],
    ["x" * 2000, None, "text", []],
  )
  # One full score, one missing answer that counts 0; two are left out.
  assert found["score"] == pytest.approx(0.5)
  assert found["missing"] == 1
  assert found["scored"] == 2
  assert found["unscorable"]["reasons"] == {"unanswered": 1, "undetermined": 1}
  assert found["unscorable"]["answers"] == 1


def test_an_empty_answer_is_short_and_a_missing_one_is_not(tmp_path):
  loaded = load("healthbench_professional", tmp_path, rows.professional())
  empty = results("healthbench_professional", loaded, [[False, False]], [""])
  missing = benchmarks.score("healthbench_professional", loaded, [[]], [None])
  assert empty["score"] == pytest.approx(0.0588)
  assert missing["score"] == 0.0


def test_several_answers_are_averaged_within_their_task(tmp_path):
  loaded = load(
    "healthbench",
    tmp_path,
    rows.healthbench("a", (2,)),
    rows.healthbench("b", (2,)),
  )
  found = benchmarks.score(
    "healthbench",
    loaded,
    {"a": [[True], [False], [None]], "b": [[True]]},
    {"a": ["1", "2", "3"], "b": ["4"]},
  )
  assert found["score"] == pytest.approx((0.5 + 1) / 2)
  assert found["answers"] == 4
  assert found["unscorable"]["tasks"] == 0
  assert found["unscorable"]["answers"] == 1
  assert found["task_scores"] == {"a": 0.5, "b": 1.0}


def test_nothing_scorable_is_no_score(tmp_path):
  loaded = load("healthbench", tmp_path, rows.healthbench())
  found = results("healthbench", loaded, [[None, None]])
  assert found["score"] is None
  assert found["interval"] is None
  json.dumps(found, allow_nan=False)


def test_verdicts_of_judges_and_plain_ones_score_alike(tmp_path):
  loaded = load("healthbench", tmp_path, rows.healthbench())
  judged = [
    Verdict(met=met, votes=(met,), explanation="", judge="j")
    for met in (True, False)
  ]
  assert results("healthbench", loaded, [judged]) == results(
    "healthbench", loaded, [[True, False]]
  )


@pytest.mark.parametrize(
  ("verdicts", "answers", "match"),
  [
    ([[True]], ["x"], "2 criteria but 1 verdicts"),
    ([[True, "false"]], ["x"], "True, False or None"),
    ([[True, 1]], ["x"], "True, False or None"),
    ([], [], "1 tasks but 0 verdicts"),
    ([[[True, False]]], [["x", "y"]], "2 answers but verdicts on 1"),
    ({"z": []}, ["x"], "of tasks that are not there"),
  ],
)
def test_what_does_not_belong_together_is_refused(
  tmp_path, verdicts, answers, match
):
  loaded = load("healthbench", tmp_path, rows.healthbench())
  with pytest.raises(BenchmarkError, match=match):
    benchmarks.score("healthbench", loaded, verdicts, answers)


def test_the_projects_own_tasks_follow_the_reward():
  reward = scoring_settings = type(
    "Reward",
    (),
    dict(
      length_weight=0.01,
      length_center=100,
      length_unit=10,
      length_adjusted=True,
    ),
  )()
  made = tasks.make(scoring_settings)
  row = {
    "task_id": "a",
    "prompt": [{"role": "user", "content": "?"}],
    "rubric": {"criteria": [{"text": "One.", "points": 4}]},
    "red_team": True,
  }
  task = made.to_task(row, "file")
  found = benchmarks.score(made, [task], [[True]], ["x" * 120])
  assert found["score"] == pytest.approx(1 - 0.02)
  assert found["breakdowns"]["type"]["red_team"]["tasks"] == 1
  reward.length_adjusted = False
  plain = tasks.make(reward)
  assert benchmarks.score(plain, [task], [[True]], ["x" * 120])["score"] == 1.0


@pytest.mark.parametrize(
  "values", [{}, {"score": math.nan}, {"score": 1.0, "x": math.inf}]
)
def test_scores_are_finite_or_an_error(values):
  made = dataclasses.replace(
    tasks.make(), measures=lambda task, met, answer: values
  )
  row = {
    "task_id": "a",
    "prompt": [{"role": "user", "content": "?"}],
    "rubric": {"criteria": [{"text": "One.", "points": 4}]},
  }
  with pytest.raises(BenchmarkError, match="no finite"):
    benchmarks.score(made, [made.to_task(row, "")], [[True]], ["x"])


# An independent reading of what the benchmarks' own programs compute, from
# their formulas alone; it shares no code with the package.


def by_upstream_healthbench(items):
  values = []
  for points, met, _ in items:
    total = sum(p for p in points if p > 0)
    values.append(sum(p for p, m in zip(points, met, strict=True) if m) / total)
  mean = sum(values) / len(values)
  return min(max(mean, 0.0), 1.0)


def by_upstream_professional(items):
  values = []
  for points, met, text in items:
    earned = total = 0
    for p, m in zip(points, met, strict=True):
      earned += p * m
      total += max(p, 0)
    values.append(earned / total - 0.0147 * ((len(text) - 2000) / 500))
  return sum(values) / len(values)


def by_upstream_prbench(items):
  plain, normalized = [], []
  for points, met, _ in items:
    high = sum(p for p in points if p > 0)
    low = sum(p for p in points if p < 0)
    earned = sum(p for p, m in zip(points, met, strict=True) if m)
    plain.append(earned / high)
    normalized.append((earned - low) / (high - low))
  return statistics.mean(plain), statistics.mean(normalized)


def random_items(seed, count=1000):
  rng = random.Random(seed)
  items = []
  for _ in range(count):
    points = [rng.choice([p for p in range(-10, 11) if p]) for _ in range(8)]
    points[rng.randrange(8)] = rng.randint(1, 10)
    met = [rng.random() < 0.5 for _ in points]
    items.append((points, met, "é" * rng.randrange(6000)))
  return items


def test_a_thousand_rubrics_agree_with_the_formulas(tmp_path):
  items = random_items(7)
  verdicts = [met for _, met, _ in items]
  answers = [text for _, _, text in items]
  loaded = load(
    "healthbench",
    tmp_path,
    *(rows.healthbench(str(i), item[0]) for i, item in enumerate(items)),
  )
  found = benchmarks.score("healthbench", loaded, verdicts, answers)
  assert found["clipped_mean"] == pytest.approx(
    by_upstream_healthbench(items), abs=1e-9
  )
  loaded = load(
    "healthbench_professional",
    tmp_path,
    *(rows.professional(str(i), item[0]) for i, item in enumerate(items)),
  )
  found = benchmarks.score(
    "healthbench_professional", loaded, verdicts, answers
  )
  assert found["score"] == pytest.approx(
    by_upstream_professional(items), abs=1e-9
  )


def test_a_thousand_rubrics_of_the_other_two_agree_as_well(tmp_path):
  items = random_items(8)
  verdicts = [met for _, met, _ in items]
  names = {True: "important", False: "detrimental"}

  def item(index, points):
    kind = names[points > 0]
    return rows.prbench_item(str(index), kind, **{f"{kind}_weight": points})

  loaded = load(
    "prbench",
    tmp_path,
    *(
      rows.prbench(str(i), [item(j, p) for j, p in enumerate(points)])
      for i, (points, _, _) in enumerate(items)
    ),
  )
  found = results("prbench", loaded, verdicts)
  plain, normalized = by_upstream_prbench(items)
  assert found["score"] == pytest.approx(plain, abs=1e-9)
  assert found["normalized"] == pytest.approx(normalized, abs=1e-9)

  weights = {"Critical": 4, "Major": 3, "Minor": 2, "Additional": 1}
  domains = ["Physics PhD", "Chemistry PhD", "Finance MBA", "Consulting MBA"]
  rng = random.Random(9)
  drawn = [
    (
      rng.choice(domains),
      [rng.choice(list(weights)) for _ in range(6)],
      [rng.random() < 0.4 for _ in range(6)],
    )
    for _ in range(1000)
  ]
  loaded = load(
    "profbench",
    tmp_path,
    *(rows.profbench(str(i), d, w) for i, (d, w, _) in enumerate(drawn)),
  )
  found = results("profbench", loaded, [met for _, _, met in drawn])
  means = []
  for domain in domains:
    values = []
    for where, names_of, met in drawn:
      if where == domain:
        got = math.fsum(
          weights[n] for n, m in zip(names_of, met, strict=True) if m
        )
        values.append(got / sum(weights[n] for n in names_of))
    means.append(sum(values) / len(values))
  assert found["score"] == pytest.approx(sum(means) / 4, abs=1e-9)


def test_the_length_constants_are_the_papers():
  assert scoring.LENGTH_WEIGHT == 0.0147
  assert scoring.LENGTH_CENTER == 2000
  assert scoring.LENGTH_UNIT == 500
