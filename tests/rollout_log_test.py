"""What is kept of answers: which, how much, and the same after a restart."""

import dataclasses
import json
import random

import pytest

from tests.report_runs import case, patch, record, verdict
from varl_jax.config import ReportConfig
from varl_jax.metrics import MetricsError
from varl_jax.rollout_log import (
  FILE_NAME,
  chosen_answers,
  open_log,
  token_pieces,
)
from varl_jax.rollouts import Group
from varl_jax.types import (
  Criterion,
  GradedAnswer,
  GradedGroup,
  Message,
  Rollout,
  Rubric,
  Task,
)

WORDS = ("a", " tale", " of", " rain")


def decode(ids):
  return "".join(WORDS[i] for i in ids)


def bytewise(ids):
  return bytes(ids).decode("utf-8", "replace")


def group(number, *, scores=(0.5, 1.0, 0.0)):
  task = Task(
    task_id=f"task{number}",
    prompt=(Message(role="user", content="Write."),),
    rubric=Rubric(
      criteria=(
        Criterion(text="Names rain", points=8),
        Criterion(text="Repeats", points=-6),
      )
    ),
  )
  graded = GradedGroup(
    task=task,
    step=3,
    answers=tuple(
      GradedAnswer(
        sample=i,
        answer="a tale of rain",
        verdicts=() if score is None else (verdict(score > 0.4), verdict(None)),
        score=score,
        raw=score,
      )
      for i, score in enumerate(scores)
    ),
  )
  rollouts = tuple(
    Rollout(
      task_id=task.task_id,
      sample=i,
      answer="a tale of rain",
      tokens=(0, 1, 2, 3),
      logprobs=(-0.5, -0.25, -0.12345, -2.0),
      mask=(1, 1, 0, 1),
      finish="stop",
    )
    for i in range(len(scores))
  )
  return Group(task=task, prompt=(1,), rollouts=rollouts), graded


def log(folder, **changed):
  config = dataclasses.replace(ReportConfig(), **changed)
  made = open_log(folder, config, decode=decode, seed=0)
  assert made is not None
  return made


def pair_case(number, exploit, honest, **changed):
  made = case(number, **changed)
  return record(
    dataclasses.replace(
      made,
      exploit=dataclasses.replace(made.exploit, sample=exploit),
      honest=dataclasses.replace(made.honest, sample=honest),
    ),
    patch(made),
  )


def test_answers_of_exploit_cases_come_first():
  graded = [group(i)[1] for i in range(6)]
  cases = [
    pair_case(4, 2, 0),
    pair_case(1, 1, 2, source="re_attack"),
    pair_case(2, 1, 2, step=2),
    pair_case(5, 0, 2),
  ]
  found = chosen_answers(graded, cases, count=4, rng=random.Random(0))
  assert found == {"task4": [0, 2], "task5": [0, 2]}
  assert chosen_answers(graded, cases, count=1, rng=random.Random(0)) == {
    "task4": [2]
  }


def test_others_are_the_best_and_the_worst_of_groups_drawn_by_lot():
  graded = [group(i)[1] for i in range(6)]
  draws = [
    chosen_answers(graded, [], count=3, rng=random.Random(i)) for i in range(9)
  ]
  for found in draws:
    assert sum(len(picked) for picked in found.values()) == 3
    for picked in found.values():
      assert set(picked) <= {1, 2}
  assert draws[0] == chosen_answers(graded, [], count=3, rng=random.Random(0))
  assert len({tuple(found) for found in draws}) > 3


def test_a_line_holds_the_group_and_its_tokens(tmp_path):
  made = log(tmp_path, rollouts=1, max_tokens=3)
  rollouts, graded = group(0, scores=(0.5, None, 0.0))
  made.write(3, [rollouts], [graded], [])
  made.lines.close()
  (line,) = (tmp_path / FILE_NAME).read_text().splitlines()
  (kept,) = json.loads(line)["groups"]
  assert json.loads(line)["step"] == 3
  assert kept["scores"] == [0.5, None, 0.0]
  assert [(c["met"], c["unmet"]) for c in kept["criteria"]] == [(1, 1), (0, 0)]
  (answer,) = kept["rollouts"]
  assert answer == {
    "sample": 0,
    "score": 0.5,
    "finish": "stop",
    "tokens": 4,
    "trained": 3,
    "pieces": ["a", " tale", " of"],
    "logprobs": [-0.5, -0.25, -0.123],
    "mask": [1, 1, 0],
    "met": [True, None],
  }


def test_a_step_done_again_is_kept_once_and_the_same(tmp_path):
  made = log(tmp_path)
  groups, graded = zip(*(group(i) for i in range(5)), strict=True)
  for step in (1, 2, 3):
    made.write(step, groups, graded, [])
  whole = (tmp_path / FILE_NAME).read_bytes()
  made.rewind(1)
  made.write(2, groups, graded, [])
  made.lines.close()
  with open(tmp_path / FILE_NAME, "ab") as file:
    file.write(b'{"step": 3, "gro')
  again = log(tmp_path)
  assert again.lines.last_step == 2
  again.write(3, groups, graded, [])
  again.lines.close()
  assert (tmp_path / FILE_NAME).read_bytes() == whole


def test_damage_is_told_and_nothing_is_kept_where_none_is_wanted(tmp_path):
  none = ReportConfig(rollouts=0)
  assert open_log(tmp_path, none, decode=decode, seed=0) is None
  assert not (tmp_path / FILE_NAME).exists()
  (tmp_path / FILE_NAME).write_text("no\n{}\n")
  with pytest.raises(MetricsError, match="Line 1 of"):
    log(tmp_path)


@pytest.mark.parametrize(
  "text", ["plain", "d\u00e9j\u00e0 vu \u2603 \U0001f600!", "\u65e5\u672c", ""]
)
def test_pieces_of_split_characters_join_to_the_text(text):
  pieces = token_pieces(list(text.encode()), bytewise)
  assert len(pieces) == len(text.encode())
  assert "".join(pieces) == text


def test_bytes_that_are_no_text_are_shown_as_such():
  broken = [0xFF, 0x80, *b"ok", 0xE2, 0x98]
  pieces = token_pieces(broken, bytewise)
  assert len(pieces) == len(broken)
  assert "ok" in "".join(pieces)
  assert "".join(pieces).endswith("\ufffd")
