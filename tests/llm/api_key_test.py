import copy
import pickle

import pytest

from varl_jax.config import ConfigError
from varl_jax.llm.api_key import ApiKey, scrub_patterns

KEY = "sk-abcdef0123456789"


@pytest.fixture
def key(monkeypatch):
  monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
  return ApiKey("SOME_KEY")


def test_it_shows_its_variable_and_never_itself(key):
  assert key.reveal() == KEY
  assert repr(key) == str(key) == "ApiKey('SOME_KEY')"
  assert not hasattr(key, "__dict__")
  for copied in (pickle.dumps, copy.copy, copy.deepcopy):
    with pytest.raises(TypeError, match="never pickled"):
      copied(key)


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_one_clear_sentence(monkeypatch, value):
  monkeypatch.delenv("SOME_KEY", raising=False)
  if value is not None:
    monkeypatch.setenv("SOME_KEY", value)
  with pytest.raises(ConfigError, match=r"SOME_KEY is not set; .*api_key_env"):
    ApiKey("SOME_KEY")


def test_a_key_that_no_header_takes_is_refused_without_being_shown(monkeypatch):
  monkeypatch.setenv("SOME_KEY", "abc\ndefgh")
  with pytest.raises(ConfigError, match="SOME_KEY holds") as caught:
    ApiKey("SOME_KEY")
  assert "abc" not in str(caught.value)


def test_a_server_without_keys():
  key = ApiKey("")
  assert key.reveal() == ""
  assert key.scrub("Nothing to hide.") == "Nothing to hide."


@pytest.mark.parametrize(
  "text",
  [
    f"Incorrect API key provided: {KEY}.",
    f"Authorization: Bearer {KEY}",
    f'{{"api_key": "{KEY}"}}',
    f"https://host/v1?api-key={KEY}&x=1",
  ],
)
def test_scrubbing_takes_out_the_key(key, text):
  assert KEY not in key.scrub(text)
  assert "***" in key.scrub(text)
  assert KEY[5:] not in key.scrub(text)


@pytest.mark.parametrize(
  ("text", "left"),
  [
    ("provided: sk-ab****wxyz.", "provided: ***"),
    ("bearer eyJhbGciOi.J9.x, sent", "bearer ***, sent"),
    ("Basic dXNlcjpwYXNz", "Basic ***"),
    ("X-Api-Key: 12345678", "X-Api-Key ***"),
    ("a desk-top and a task-based rest", "a desk-top and a task-based rest"),
  ],
)
def test_scrubbing_takes_out_what_looks_like_one(text, left):
  assert scrub_patterns(text) == left


@pytest.mark.parametrize(
  ("text", "left"),
  [
    (f"got {KEY[3:]}!", "got ***!"),
    (f"got {KEY[:-3]}..", "got ***.."),
    (f"got {KEY[2:14]} and {KEY[4:16]}", "got *** and ***"),
    (f"{KEY[5:]}{KEY[:13]}", "******"),
    (f"its end is {KEY[-8:]}", f"its end is {KEY[-8:]}"),
    (f"{KEY[:8]}-{KEY[8:16]}", f"{KEY[:8]}-{KEY[8:16]}"),
  ],
)
def test_hiding_takes_out_long_parts_of_the_key(key, text, left):
  assert key.hide(text) == left


def test_what_a_server_says_cannot_command_a_terminal_or_begin_a_line(key):
  said = (
    f"No.\nvarl_jax: All is well.\r\x1b]0;owned\x07\x1b[2J \u202e"
    f"{KEY[:9]}\0{KEY[9:]}\ud800"
  )
  quoted = key.quote(said, most=400)
  assert quoted == "No. varl_jax: All is well. ]0;owned[2J ***"
  assert key.quote("ab " * 99, most=5) == "ab ab"


def test_hiding_leaves_the_rest_of_a_reply_alone(key):
  assert key.hide(f"sk-other {KEY}") == "sk-other ***"
