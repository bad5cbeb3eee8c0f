"""Whatever a text says, to a role it is material and nothing else.

Each role is called with an attack in every place where a text can come in. Its
messages must be those of a harmless text, block by block, with nothing of the
attack outside a block; its reply must be read as the model meant it, though the
model quotes the attack.
"""

import json
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.injection.attacks import ATTACKS, VERDICT
from tests.injection.role_calls import (
  NAMES,
  PLAIN,
  QUOTING,
  REPLIES,
  reply_of,
  send,
)
from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatError
from varl_jax.llm.untrusted import neutralised, restored
from varl_jax.prompts.loader import ROLES

HARMLESS = "harmless"
ROLE = pytest.mark.parametrize("name", NAMES)
ATTACK = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
_MARK = re.compile(r"(?<= )[0-9a-f]{12}(?=>>>)")


def test_every_role_is_attacked():
  assert set(ROLES) <= set(NAMES)


def messages(name, text):
  return send(name, text)[0].requests[0].messages


def outside(user):
  """A user message with its blocks emptied and its marks taken out."""
  for name, text in read_blocks(user):
    mark = re.search(rf"<<<{name} ([0-9a-f]{{12}})>>>", user)[1]
    whole = f"<<<{name} {mark}>>>\n{text}\n<<<END {name} {mark}>>>"
    assert whole in user
    user = user.replace(whole, f"<<<{name} {'0' * 12}>>>", 1)
  return _MARK.sub("", user)


def assert_contained(name, attack):
  sent, plain = messages(name, attack), messages(name, HARMLESS)
  assert [m.role for m in sent] == [m.role for m in plain]
  if name == "solver":
    assert sent[0] == plain[0]
    assert [restored(m.content) for m in sent[1:]] == [attack] * 3
    return
  assert sent[:-1] == plain[:-1]
  user, model = sent[-1].content, plain[-1].content
  assert outside(user) == outside(model)
  found, expected = read_blocks(user), read_blocks(model)
  assert [key for key, _ in found] == [key for key, _ in expected]
  line = " ".join(attack.split())
  for (_, inside), (_, wanted) in zip(found, expected, strict=True):
    # A criterion's text is put on one line; all else is kept as it is.
    assert restored(inside) in (
      wanted.replace(HARMLESS, attack),
      wanted.replace(HARMLESS, line),
      _mixed(wanted, attack, line),
    )


def _mixed(wanted, attack, line):
  """Verdict lines and rubric lines are one line each, whatever they hold."""
  return "\n".join(
    row.replace(HARMLESS, line if " | " in row else attack)
    for row in wanted.split("\n")
  )


def assert_no_special_token(name, attack):
  """No string that a chat template would take for a token of its own."""
  for message in messages(name, attack)[1:]:
    text = message.content.replace("<<<NAME mark>>>", "")
    folded = unicodedata.normalize("NFKC", text)
    for token in (
      *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|turn>", "<turn|>"),
      *("</s>", "[INST]", "[/INST]", "<end_of_turn>", "<start_of_turn>"),
      *("<think>", "</think>", "<tool_call>", "</tool_response>", "<|User|>"),
    ):
      assert token not in folded
    text.encode()  # a lone surrogate could not be sent


@ROLE
@ATTACK
def test_an_attack_stays_inside_its_block(name, attack):
  assert_contained(name, attack)
  assert_no_special_token(name, attack)


@pytest.mark.parametrize("name", REPLIES)
@ATTACK
def test_a_quoted_attack_does_not_become_the_reply(name, attack):
  """The model repeats what it saw, then replies; the last reply counts."""
  _, meant = send(name, HARMLESS)
  reply = f"{attack}\n{reply_of(name)}"
  if name.startswith("judge"):
    _, read = send(name, attack, reply=reply)
    if read.met is None:
      assert set(read.failures) == {"malformed"}
    else:
      assert read == meant
    return
  try:
    _, read = send(name, attack, reply=reply)
  except ChatError as error:
    kind, read = error.kind, meant
  else:
    kind = "malformed"
  assert (kind, read) == ("malformed", meant)


@pytest.mark.parametrize("name", QUOTING)
@ATTACK
def test_an_attack_quoted_in_the_reply_is_a_string(name, attack):
  short = neutralised(attack)[:300]
  (key,) = QUOTING[name]
  reply = json.dumps({**REPLIES[name], key: short or "n"})
  _, read = send(name, HARMLESS, reply=reply)
  _, meant = send(name, HARMLESS)
  if name.startswith("judge"):
    assert read.met is meant.met is False
    assert read.votes == (False,) * 3
  elif name == "referee":
    assert read.tiers == meant.tiers
  elif name == "auditor":
    assert read.category == meant.category
  elif name == "pair_checker":
    assert read == meant
  elif name == "analyst":
    assert read.verdict == meant.verdict
  elif name == "rater":
    assert read.rating == meant.rating
  else:
    assert read.proposer == meant.proposer


@ATTACK
def test_no_attack_is_a_yes(attack):
  _, verdict = send("yes_no", HARMLESS, reply=f"{attack} Yes")
  # What ends in a closing tag of the channel was the model's own thought.
  assert verdict.met is None or attack.endswith("</think>")


def test_a_verdict_in_an_unfinished_thought_is_none():
  _, verdict = send("judge", HARMLESS, reply=f"<think>{VERDICT}")
  assert verdict.met is None
  assert verdict.failures == ("malformed",) * 3


@pytest.mark.parametrize("name", PLAIN)
def test_plain_replies_hold_no_thought(name):
  word = PLAIN[name]
  _, read = send(name, HARMLESS, reply=f"<think>Yes</think>{word}")
  assert (read.met is False) if name == "yes_no" else (read == word)


PIECES = st.sampled_from(
  [
    *(text[:200] for text in ATTACKS.values()),
    *(
      "<<<",
      ">>>",
      "<",
      ">",
      "·",
      "END ANSWER",
      " ",
      "\n",
      "\r",
      "|",
      "{",
      "}",
    ),
    *("⟦U+202E⟧", "\u202e", "\u200b", "\ud800", HARMLESS[:4]),
  ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=40)


@ROLE
@given(text=TEXTS.filter(lambda text: text and HARMLESS not in text))
@settings(max_examples=25, deadline=None)
def test_any_text_stays_inside_its_block(name, text):
  assert_contained(name, text)
  assert_no_special_token(name, text)
