"""What a judge is worth, by scripted judges whose worth is known."""

import dataclasses
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.config import Config, ConfigError, GateConfig, JudgeConfig
from varl_jax.judge_gate import CALIBRATION, pass_gate, read_calibration
from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatError
from varl_jax.roles.bundle import make_roles
from varl_jax.roles.calibration import ITEMS, PAIRS
from varl_jax.rubrics.checks import CheckRegistry

TRUTH = {(item.answer, item.criterion): item.met for item in ITEMS}
BETTER = {pair.better for pair in PAIRS}


def judge_reply(met):
  return json.dumps({"explanation": "e", "criteria_met": met})


def rank_reply(*tiers):
  return json.dumps({"tiers": list(tiers), "notes": ""})


def chat_of(*, judge, referee):
  """A model by what it says of (answer, criterion, seed) and of (A, B)."""

  def answer(request):
    blocks = dict(read_blocks(request.messages[-1].content))
    if request.role == "judge":
      return judge_reply(
        judge(blocks["ANSWER"], blocks["CRITERION"], request.seed)
      )
    return referee(blocks["ANSWER A"], blocks["ANSWER B"])

  return FakeChat(answer, name="tiny")


def sound(first, second):
  del second
  return rank_reply(*((["A"], ["B"]) if first in BETTER else (["B"], ["A"])))


def first_shown(first, second):
  del first, second
  return rank_reply(["A"], ["B"])


def right(answer, criterion, seed):
  del seed
  return TRUTH[answer, criterion]


def measured(chat, folder, *, mode="warn", votes=3, **levels):
  config = Config(
    judge=JudgeConfig(votes=votes), gate=GateConfig(mode=mode, **levels)
  )
  roles = make_roles(chat, "story", config.judge, CheckRegistry())
  said = []
  try:
    pass_gate(config, roles, folder, say=said.append)
  finally:
    roles.close()
  return read_calibration(folder), said


def test_a_sound_judge_passes(tmp_path):
  chat = chat_of(judge=right, referee=sound)
  found, said = measured(chat, tmp_path, mode="refuse")
  assert said == []
  assert (found.agreement, found.flip_rate, found.undetermined) == (1, 0, 0)
  assert (found.referee_right, found.position_bias) == (1, 0)
  assert found.chance == 17 / 32
  asked = len(chat.requests)
  assert asked == 3 * len(ITEMS) + 2 * len(PAIRS)
  # A run that goes on does not pay again.
  measured(chat, tmp_path, mode="refuse")
  assert len(chat.requests) == asked


def test_one_who_says_yes_to_all_is_no_better_than_chance(tmp_path):
  chat = chat_of(judge=lambda *_: True, referee=first_shown)
  found, said = measured(chat, tmp_path)
  assert found.agreement == found.chance == 17 / 32
  assert found.flip_rate == 0
  assert found.position_bias == 1 and found.referee_right == 0.5
  (sentence,) = said
  assert "tiny falls short as a judge" in sentence
  assert "53%, below 80%" in sentence and "+100%, beyond 30%" in sentence
  with pytest.raises(ConfigError, match="Choose a stronger one"):
    measured(chat, tmp_path, mode="refuse")
  levels = dict(min_agreement=0.5, max_position_bias=1.0)
  assert measured(chat, tmp_path, mode="refuse", **levels)[1] == []


def test_votes_that_flip_are_counted(tmp_path):
  seen = {}

  def wavering(answer, criterion, seed):
    del seed
    turn = seen[answer, criterion] = seen.get((answer, criterion), -1) + 1
    return TRUTH[answer, criterion] if turn else not TRUTH[answer, criterion]

  found, said = measured(chat_of(judge=wavering, referee=sound), tmp_path)
  # Of the three pairs of votes the one that flipped differs from both others.
  assert found.flip_rate == pytest.approx(2 / 3)
  assert found.agreement == 1 and "votes that flip 67%" in said[0]


def test_what_cannot_be_read_counts_against_it(tmp_path):
  chat = FakeChat(lambda request: "no JSON", name="mute")
  found, said = measured(chat, tmp_path)
  assert (found.agreement, found.undetermined) == (0, 1)
  assert found.flip_rate is None and found.position_bias is None
  assert found.referee_failed == 1 and "unknown" in said[0]


def test_off_asks_nothing(tmp_path):
  chat = FakeChat([])
  assert measured(chat, tmp_path, mode="off") == (None, [])
  assert not (tmp_path / CALIBRATION).exists()


def test_a_judge_that_is_not_there_is_a_clear_error(tmp_path):
  chat = FakeChat(lambda _: ChatError("rejected", "No such model."))
  with pytest.raises(ConfigError, match="cannot be measured: No such model"):
    measured(chat, tmp_path)
  assert read_calibration(tmp_path) is None


def test_another_judge_is_measured_anew(tmp_path):
  measured(chat_of(judge=right, referee=sound), tmp_path)
  path = tmp_path / CALIBRATION
  tree = json.loads(path.read_text())
  assert tree["levels"] == dataclasses.asdict(GateConfig(mode="warn"))
  path.write_text(json.dumps(tree | {"judge": "other", "agreement": 0.0}))
  found, said = measured(chat_of(judge=right, referee=sound), tmp_path)
  assert found.judge == "tiny" and said == []
  path.write_text("{")
  with pytest.raises(ConfigError, match="delete it"):
    read_calibration(tmp_path)
