"""The comparison's arithmetic, its table, and that runs are not repeated."""

import json
import math

import pytest

from experiments import arm_results, compare_arms


def run_folder(path, start, end, reward):
  path.mkdir(parents=True)
  records = [
    {"step": 0, "eval/score": start},
    {"step": 1, "reward/mean": reward},
    {"step": 2, "reward/mean": reward, "eval/score": end},
  ]
  (path / "metrics.jsonl").write_text(
    "".join(json.dumps(record) + "\n" for record in records)
  )
  (path / "evidence.jsonl").write_text("")
  return path


@pytest.fixture
def folders(tmp_path):
  """Two seeds of three arms."""
  ends = {
    "generation_only": (0.3, 0.5),
    "sibyl_sense": (0.4, 0.7),
    "rri": (0.6, 0.9),
  }
  return {
    arm: [
      run_folder(tmp_path / f"{arm}-{seed}", 0.2 + 0.1 * seed, end, 0.8)
      for seed, end in enumerate(scores)
    ]
    for arm, scores in ends.items()
  }


def test_a_result_has_every_arm_and_an_untrained_row(folders):
  result = compare_arms.collect("9b", folders, [100, 101])
  assert list(result["arms"]) == ["untrained", *folders]
  assert result["arms"]["rri"]["hidden"] == [0.6, 0.9]
  assert result["arms"]["rri"]["exploit_rate"] == [None, None]
  before = result["arms"]["untrained"]
  assert before["hidden"] == pytest.approx([0.2, 0.3])
  assert before["train_reward"] == [None, None]
  assert set(before) == set(result["arms"]["rri"])
  assert "pair_correctness" not in result
  assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_differences_are_paired_by_seed(folders):
  paired = compare_arms.collect("9b", folders, [100, 101])["paired"]
  assert list(paired) == [
    "rri - untrained",
    "rri - generation_only",
    "rri - sibyl_sense",
    "sibyl_sense - generation_only",
  ]
  # 0.3 and 0.4: deviation 0.1 / sqrt(2), over sqrt(2).
  gap = paired["rri - generation_only"]
  assert gap["mean"] == pytest.approx(0.35)
  assert gap["standard_error"] == pytest.approx(0.05)


def test_spread_by_hand():
  # Squares 0.04, 0, 0.04 over 2, then over 3.
  mean, error = compare_arms.spread([0.2, 0.4, 0.6, None])
  assert mean == pytest.approx(0.4)
  assert error == pytest.approx(math.sqrt(0.04 / 3))
  assert compare_arms.spread([0.5]) == (0.5, None)
  assert compare_arms.spread([None]) == (None, None)


def test_the_page_stands_beside_the_paper(folders):
  result = compare_arms.collect("9b", folders, [100, 101])
  page = compare_arms.page(result)
  assert "HealthBench Professional, 9B, seeds 100 to 101" in page
  assert "offline simulation" not in page
  assert "| hidden | 0.250 +- 0.050 | 0.400 +- 0.100 |" in page
  assert "| EvoRubrics | - | 0.493 |" in page
  assert "| RRI | 0.750 | 0.533 |" in page
  assert "| Untrained | 0.250 | - |" in page
  one = compare_arms.collect("9b", {"rri": folders["rri"][:1]}, [100])
  assert "| rri - untrained | +0.400 | - |" in compare_arms.page(one)


def test_a_simulation_says_so(folders):
  result = compare_arms.collect("9b", folders, [100, 101])
  result |= {"simulated": True, "title": "Story world"}
  assert "An offline simulation." in compare_arms.page(result)


def test_the_figure_is_drawn(folders, tmp_path):
  pytest.importorskip("matplotlib")
  result = compare_arms.collect("9b", folders, [100, 101])
  compare_arms.draw(result, tmp_path / "figure" / "arms.png")
  assert (tmp_path / "figure" / "arms.png").stat().st_size > 10_000


def test_a_whole_run_is_not_repeated(folders, monkeypatch):
  started = []
  monkeypatch.setattr(
    arm_results.subprocess,
    "run",
    lambda command, **_: started.append(command) or pytest.fail("started"),
  )
  [done, _] = folders["rri"]
  assert arm_results.train(done, [], steps=2, environment={}) == done
  assert started == []


def test_a_failed_run_is_named_with_its_log(tmp_path):
  with pytest.raises(RuntimeError, match=r"(?s)rri-7 failed:.*no variant"):
    arm_results.train(
      tmp_path / "rri-7",
      ["--config=configs/story.py:nonsense"],
      steps=1,
      environment={"JAX_PLATFORMS": "cpu"},
    )
