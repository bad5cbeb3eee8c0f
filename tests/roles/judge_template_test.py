"""Published judge templates: read by path and hash, filled as they say."""

import asyncio
import dataclasses
import hashlib
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax.config import ConfigError, JudgeConfig
from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.untrusted import restored
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.bundle import make_judge
from varl_jax.roles.judge_template import (
  load_template,
  points_text,
  read_yes_no,
  with_hash,
)
from varl_jax.types import Criterion, Message

PROMPTS = load_prompts("story")
PROMPT = (
  Message(role="user", content="hello {name}"),
  Message(role="assistant", content="yes?"),
  Message(role="user", content="write"),
)
CRITERION = Criterion(text="Names the {rope}.", points=7.0)
# Synthetic, in the two shapes that published graders have.
JSON_FORM = (
  "# Conversation\n<<conversation>>\n# Item\n<<rubric_item>>\n"
  'Return {"explanation": "...", "criteria_met": false} in a fence.\n'
)
YES_NO = (
  "Text:\n\n{response}\n\nDoes it satisfy: {criterion_description}\n"
  "Say Yes or No.\n"
)
ANSWER = "An answer with {criterion_description}, {{x}} and <<rubric_item>>."
VOTE = '```json\n{"explanation": "it is", "criteria_met": true}\n```'


def write(tmp_path, text, name="grader.txt"):
  path = tmp_path / name
  path.write_text(text)
  return str(path), hashlib.sha256(text.encode()).hexdigest()


def judge(tmp_path, text, reply, *, faithful, answer=ANSWER, strict=False):
  path, digest = write(tmp_path, text)
  chat = FakeChat(lambda _: reply)
  role = make_judge(
    chat,
    PROMPTS,
    JudgeConfig(
      template_path=path, template_sha256=digest.upper(), faithful=faithful
    ),
  )
  verdict = asyncio.run(
    role.judge(
      prompt=PROMPT,
      answer=answer,
      criterion=CRITERION,
      strict=strict,
      op="op",
      seed=0,
    )
  )
  return role, chat.requests[0], verdict


def test_the_faithful_json_form_is_what_the_authors_send(tmp_path):
  role, request, verdict = judge(tmp_path, JSON_FORM, VOTE, faithful=True)
  (message,) = request.messages
  assert message.role == "user"
  assert message.content == (
    "# Conversation\nuser: hello {name}\n\nassistant: yes?\n\nuser: write\n\n"
    f"assistant: {ANSWER}\n# Item\n[7] Names the {{rope}}.\n"
    'Return {"explanation": "...", "criteria_met": false} in a fence.\n'
  )
  assert request.schema is None
  assert verdict.met is True
  digest = hashlib.sha256(JSON_FORM.encode()).hexdigest()[:12]
  assert verdict.judge == f"fake [grader.txt {digest}, faithful]"
  assert role.description == {
    "model": "fake",
    "template": f"grader.txt {digest}",
    "votes": 3,
    "strict": "probes and patch validation",
    "faithful": True,
  }
  json.dumps(role.description)


def test_otherwise_untrusted_text_stands_in_blocks(tmp_path):
  role, request, verdict = judge(tmp_path, JSON_FORM, VOTE, faithful=False)
  system, user = request.messages
  assert system.role == "system"
  assert "<<<NAME mark>>>" in system.content
  blocks = {k: restored(v) for k, v in read_blocks(user.content)}
  assert blocks == {
    "CONVERSATION": "user: hello {name}\n\nassistant: yes?\n\nuser: write",
    "ANSWER": ANSWER,
    "RUBRIC ITEM": "[7] Names the {rope}.",
  }
  assert user.content.startswith("# Conversation\n<<<CONVERSATION ")
  assert request.schema is not None
  assert verdict.met is True
  assert verdict.judge == f"fake [{role.template.label}]"
  assert not role.description["faithful"]


@pytest.mark.parametrize("faithful", [True, False])
def test_the_yes_or_no_form(tmp_path, faithful):
  _, request, verdict = judge(tmp_path, YES_NO, " **Yes.**", faithful=faithful)
  assert request.schema is None
  assert verdict.votes == (True, True, True)
  user = request.messages[-1].content
  if faithful:
    assert user == (
      f"Text:\n\n{ANSWER}\n\nDoes it satisfy: Names the {{rope}}.\n"
      "Say Yes or No.\n"
    )
  else:
    blocks = [(k, restored(v)) for k, v in read_blocks(user)]
    assert blocks == [("ANSWER", ANSWER), ("CRITERION", "Names the {rope}.")]
  _, _, verdict = judge(tmp_path, YES_NO, "Yes, but No", faithful=faithful)
  assert verdict.met is None
  assert verdict.failures == ("malformed",) * 3


def test_the_strict_note_is_appended_to_a_template(tmp_path):
  for strict in (True, False):
    _, request, _ = judge(
      tmp_path, JSON_FORM, VOTE, faithful=False, strict=strict
    )
    user = request.messages[-1].content
    assert user.endswith(PROMPTS.strict_note) == strict


def test_a_template_with_a_place_for_the_answer_shows_it_once(tmp_path):
  text = "{{question}}|{{completion}}|{{criterion}} criteria_met"
  path, _ = write(tmp_path, text)
  template = load_template(path, faithful=True)
  (message,) = template.messages(PROMPT[-1:], "A", CRITERION)
  assert message.content == "user: write|A|Names the {rope}. criteria_met"


@pytest.mark.parametrize(
  ("points", "text"),
  [(7, "7"), (7.0, "7"), (-5.0, "-5"), (2.5, "2.5"), (-0.1, "-0.1")],
)
def test_whole_points_stay_whole(points, text):
  assert points_text(points) == text


@pytest.mark.parametrize(
  ("text", "met"),
  [
    ("Yes", True),
    ("no", False),
    ("**No**", False),
    ('"Yes."\n', True),
    ("Yes and no", None),
    ("Yes\nNo", None),
    ("yesterday", None),
    ("Answer: Yes", None),
    ("", None),
    ("1", None),
    ("true", None),
  ],
)
def test_only_the_word_counts(text, met):
  assert read_yes_no(text) is met


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("<<conversation>> criteria_met", "no place for the criterion"),
    ("<<rubric_item>> criteria_met", "no place for the answer"),
    ("<<conversation>> <<rubric_item>>", "Yes or No"),
    ("<<conversation>> <<rubric_item>> <<date>> criteria_met", "<<date>>"),
    ("", "no place"),
  ],
)
def test_unusable_templates_are_refused_in_one_sentence(
  tmp_path, text, problem
):
  path, _ = write(tmp_path, text)
  with pytest.raises(ConfigError, match=problem) as caught:
    load_template(path)
  assert path in str(caught.value)
  assert "\n" not in str(caught.value)


def test_another_hash_and_missing_files_are_refused(tmp_path):
  path, digest = write(tmp_path, JSON_FORM)
  with pytest.raises(ConfigError, match=f"has the hash {digest}, not"):
    load_template(path, sha256="0" * 64)
  with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
    load_template(str(tmp_path / "none.txt"))
  (tmp_path / "bytes").write_bytes(b"\xff\xfe")
  with pytest.raises(ConfigError, match="no UTF-8"):
    load_template(str(tmp_path / "bytes"))


@pytest.mark.parametrize(
  "change", [{"faithful": True}, {"template_sha256": "ab"}]
)
def test_settings_of_no_template_are_refused(change):
  config = dataclasses.replace(JudgeConfig(), **change)
  with pytest.raises(ConfigError, match=r"judge\.template_path"):
    make_judge(FakeChat([]), PROMPTS, config)


def test_our_own_judge_is_the_default():
  role = make_judge(FakeChat([]), PROMPTS, JudgeConfig(one_request=True))
  assert role.template is None
  assert role.name == "fake"
  assert role.one_request


@pytest.mark.parametrize("faithful", [True, False])
def test_any_answer_can_be_sent(tmp_path, faithful):
  answer = "half \ud800 and <|im_end|>"
  _, request, _ = judge(
    tmp_path, JSON_FORM, VOTE, faithful=faithful, answer=answer
  )
  content = request.messages[-1].content
  content.encode()
  assert ("<|im_end|>" in content) == faithful


def test_the_hash_of_a_template_joins_the_settings(tmp_path):
  path, digest = write(tmp_path, YES_NO)
  found = with_hash(JudgeConfig(template_path=path))
  assert found == JudgeConfig(template_path=path, template_sha256=digest)
  (tmp_path / "grader.txt").write_text(YES_NO + "Be kind.\n")
  assert with_hash(JudgeConfig(template_path=path)) != found
  # What is given is kept: another machine may have no such file.
  given = JudgeConfig(
    template_path=str(tmp_path / "nowhere.txt"), template_sha256="AB"
  )
  assert with_hash(given).template_sha256 == "ab"
  with pytest.raises(ConfigError, match="set its hash as judge"):
    with_hash(dataclasses.replace(given, template_sha256=""))
  assert with_hash(JudgeConfig()) == JudgeConfig()
