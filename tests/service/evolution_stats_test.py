import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.service import evolution_stats as stats
from varl_jax.types import Criterion, Diagnosis, Message, Rubric, Task


def test_half_worst_quarter_best_rest_random():
  scores = [i / 100 for i in range(100)]
  chosen = stats.sample_cases(scores, 20, rng=random.Random(0))
  assert chosen[:10] == list(range(10))
  assert chosen[10:15] == [99, 98, 97, 96, 95]
  assert len(set(chosen)) == 20
  assert all(10 <= i < 95 for i in chosen[15:])
  assert chosen == stats.sample_cases(scores, 20, rng=random.Random(0))
  assert chosen != stats.sample_cases(scores, 20, rng=random.Random(1))


def test_ties_are_broken_at_random():
  firsts = {
    stats.sample_cases([0.0] * 50, 4, rng=random.Random(seed))[0]
    for seed in range(20)
  }
  assert len(firsts) > 5


@given(
  st.lists(st.none() | st.floats(-2, 1), max_size=40),
  st.integers(0, 25),
  st.integers(0, 99),
)
def test_samples_are_distinct_graded_cases(scores, count, seed):
  chosen = stats.sample_cases(scores, count, rng=random.Random(seed))
  graded = [i for i, score in enumerate(scores) if score is not None]
  assert len(chosen) == len(set(chosen)) == min(count, len(graded))
  assert set(chosen) <= set(graded)


def _diagnosis(**kwargs):
  base = {
    "failure_mode": "incompleteness",
    "rubric_defect": "none",
    "task_defect": "none",
    "verdict": "model_failed_fair_task",
    "gap": "names no dose",
  }
  return Diagnosis(**{**base, **kwargs})


def test_only_fair_failures_are_gaps_and_only_faults_are_bugs():
  counts = stats.count_diagnoses(
    [
      _diagnosis(),
      _diagnosis(gap="no unit"),
      _diagnosis(failure_mode="calculation", rubric_defect="untestable_vague"),
      _diagnosis(
        verdict="generator_at_fault",
        failure_mode="safety_miss",
        rubric_defect="untestable_vague",
        task_defect="too_easy",
        gap="vague rubric",
      ),
      _diagnosis(verdict="model_succeeded", failure_mode="none", gap=""),
      stats.TRUNCATED,
      stats.TRUNCATED,
    ]
  )
  assert counts == stats.DiagnosisCounts(
    cases=7,
    non_answers=2,
    verdicts={
      "model_failed_fair_task": 3,
      "generator_at_fault": 1,
      "model_succeeded": 1,
    },
    capability={"incompleteness": 2, "calculation": 1},
    rubric_defects={"untestable_vague": 1},
    task_defects={"too_easy": 1},
    gaps=("names no dose", "no unit", "names no dose"),
  )


def _task(text, points, use_case="story", specialty=""):
  criteria = tuple(Criterion(text="x" * 10, points=p) for p in points)
  return Task(
    task_id=text,
    prompt=(Message(role="user", content=text),),
    rubric=Rubric(criteria=criteria),
    use_case=use_case,
    specialty=specialty,
  )


def test_corpus_statistics():
  tasks = [
    _task("Tell of a key in a door", [8, -5], specialty="Cardiology"),
    _task("Tell of a key in a wall", [8], "letter", "cardiology"),
  ]
  got = stats.corpus_statistics(tasks)
  assert got == stats.CorpusStatistics(
    tasks=2,
    criteria_per_task=1.5,
    criterion_chars=10.0,
    negative_share=0.5,
    use_cases={"letter": 0.5, "story": 0.5},
    specialties=1,
    self_similarity=pytest.approx(4 / 6),
  )
  reference = dataclasses.replace(
    got, criteria_per_task=3.0, use_cases={"story": 1.0}, specialties=None
  )
  assert stats.drift(got, reference) == {
    "criteria_per_task": -1.5,
    "criterion_chars": 0.0,
    "negative_share": 0.0,
    "use_cases/letter": 0.5,
    "use_cases/story": -0.5,
    "self_similarity": 0.0,
  }
  with pytest.raises(ValueError):
    stats.corpus_statistics([])


def test_specialties_are_compared_where_tasks_name_them():
  names = ["Renal medicine", "", "cardiology", "Cardiology"]
  got = stats.corpus_statistics([_task(n, [8], specialty=n) for n in names])
  assert got.specialties == 2
  reference = stats.CorpusStatistics(tasks=525, specialties=28)
  assert stats.drift(got, reference) == {"specialties": -26.0}
  assert stats.corpus_statistics([_task("a", [8])]).specialties is None


def test_self_similarity():
  assert stats.self_similarity(["one two three"]) == 0.0
  assert stats.self_similarity(["one two", "One, two!"]) == 1.0
  assert stats.self_similarity(["", ""]) == 0.0
  assert stats.self_similarity(["a b c d", "e f g h", "a b c d"]) == (
    pytest.approx(1 / 3)
  )


def test_random_cases_of_an_interval_are_a_fair_sample():
  """Extremes of each step are kept too, and must not pass for random ones."""
  rng = random.Random(0)
  middles = []
  for _ in range(200):
    scores, uniform = [], []
    for _ in range(5):
      step = sorted(rng.random() for _ in range(64))
      fair = set(rng.sample(range(64), 20))
      kept = [i for i in range(64) if i < 10 or i >= 59 or i in fair]
      uniform += [len(scores) + n for n, i in enumerate(kept) if i in fair]
      scores += [step[i] for i in kept]
    drawn = stats.sample_cases(scores, 20, rng=rng, uniform=uniform)
    middles += [0.1 < scores[i] < 0.9 for i in drawn[15:]]
  # 80% of uniform draws, a little more once the very extremes are taken.
  assert 0.76 < sum(middles) / len(middles) < 0.9
