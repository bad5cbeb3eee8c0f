import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.rubrics.checks import CheckError, CheckRegistry, parse_check


def _uses(answer: str, character: str, item: str) -> bool:
  """The character does something with the object.

  More that no prompt needs.
  """
  if item not in ("rope", "lamp"):
    raise CheckError(f"Unknown object {item!r}.")
  return f"{character} takes the {item}" in answer


def _ends(answer: str) -> bool:
  """The story has an end."""
  return answer.endswith("end.")


REGISTRY = CheckRegistry(checks={"uses": _uses, "ends": _ends})


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("uses(mia, rope)", ("uses", ("mia", "rope"))),
    (" uses ( mia ,rope ) ", ("uses", ("mia", "rope"))),
    ("says(old man)", ("says", ("old man",))),
    ('says("a, (b)", c)', ("says", ("a, (b)", "c"))),
    ('says("")', ("says", ("",))),
    ("ends()", ("ends", ())),
    ("ends( )", ("ends", ())),
  ],
)
def test_readable_checks(text, expected):
  assert parse_check(text) == expected


@pytest.mark.parametrize(
  "text",
  [
    "",
    "uses",
    "uses(mia",
    "uses mia)",
    "Uses(mia)",
    "uses(mia,)",
    "uses(,mia)",
    "uses(a,,b)",
    "uses(a) and ends()",
    'uses("a)',
    "__import__(os).x()",
    "uses(" + "a" * 300 + ")",
  ],
)
def test_anything_else_is_refused(text):
  with pytest.raises(CheckError):
    parse_check(text)


def test_run():
  assert REGISTRY.run("uses(mia, rope)", "so mia takes the rope") is True
  assert REGISTRY.run("uses(mia, lamp)", "so mia takes the rope") is False
  assert REGISTRY.run("ends()", "the end.") is True


@pytest.mark.parametrize(
  ("text", "reason"),
  [
    ("flies(mia)", "Unknown check 'flies'; there are: ends, uses"),
    ("uses(mia)", "missing a required argument"),
    ("ends(now)", "too many positional"),
    ("uses(mia, sword)", "Unknown object 'sword'"),
    ("uses mia", "Not a check"),
  ],
)
def test_problems(text, reason):
  (problem,) = REGISTRY.problems(text)
  assert reason in problem
  with pytest.raises(CheckError):
    REGISTRY.run(text, "an answer")


def test_usable_checks_have_no_problems():
  assert REGISTRY.problems("uses(mia, rope)") == []
  assert CheckRegistry().problems("ends()") == [
    "Unknown check 'ends'; there are: none."
  ]


def test_description_for_a_prompt():
  assert REGISTRY.describe() == (
    "ends(): The story has an end.\n"
    "uses(character, item): The character does something with the object."
  )


@given(st.text(max_size=80))
def test_parsing_returns_or_refuses(text):
  try:
    name, _ = parse_check(text)
  except CheckError:
    return
  assert name.isidentifier()


@given(st.lists(st.text(st.characters(exclude_characters='"'), max_size=8)))
def test_quoted_arguments_come_back(arguments):
  text = "f(" + ", ".join(f'"{a}"' for a in arguments) + ")"
  if len(text) <= 200:
    assert parse_check(text) == ("f", tuple(arguments))
