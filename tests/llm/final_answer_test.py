"""Which part of a generated text is graded."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.llm.final_answer import final_answer


@pytest.mark.parametrize(
  ("text", "finish", "reasoning", "answer"),
  [
    ("<think>half a thought", "stop", True, None),
    ("<think>half a thought", "stop", False, None),
    ("plain answer", "stop", False, "plain answer"),
    ("r</think>A", "stop", True, "A"),
    ("<think>r</think>A", "stop", True, "A"),
    ("<think>r</think>A", "stop", False, "A"),
    ("r", "length", True, None),
    # Opened by the prompt and never closed, although the model stopped.
    ("all of it was thought", "stop", True, None),
    # Closed, then cut: an answer.
    ("r</think> A and mo", "length", True, "A and mo"),
    ("plain, cut", "length", False, "plain, cut"),
    # Reopened and not closed again: nothing to grade.
    ("r</think>A<think>more", "length", True, None),
    ("a</think>b</think>c", "stop", True, "c"),
    ("r</think>\n\n", "stop", True, ""),
    ("", "stop", True, None),
    ("", "stop", False, ""),
  ],
)
def test_final_answer(text, finish, reasoning, answer):
  assert final_answer(text, finish=finish, reasoning=reasoning) == answer


def test_unknown_finish_is_an_error():
  with pytest.raises(ValueError, match="finish is"):
    final_answer("a", finish="error")


CALL = '<tool_call>{"name": "search"}</tool_call>'
RESULT = "<tool_response>a hit</tool_response>"


@pytest.mark.parametrize(
  ("text", "answer"),
  [
    (f"r</think>A {CALL} B", "A\nB"),
    (f"r</think>Let me look. {CALL}{RESULT}<think>r2</think>A", "A"),
    (f"r</think>{CALL}\n{RESULT}\nA", "A"),
    # Cut in the middle of a call or of what it brought.
    ('r</think>A <tool_call>{"name"', "A"),
    ("r</think>A <tool_response>half a hit", "A"),
    (f"r</think>{CALL}", ""),
    # What is thought of calls no tool.
    ("I could <tool_call> here</think>A", "A"),
    # A tool's result revives nothing and hides nothing.
    (f"r</think>A {CALL}<tool_response></think>x</tool_response> B", "A\nB"),
    (f"r</think>A {CALL}<tool_response><think>x</tool_response> B", "A\nB"),
    (f"r</think>A<tool_call></tool_response>x</tool_call>{RESULT}B", "A\nB"),
    # Pieces do not make a tag.
    ("r</think>a<tool_<tool_call>x</tool_call>call>b", "a<tool_\ncall>b"),
    # Closing tags of nothing are text.
    ("r</think>a</tool_call>b", "a</tool_call>b"),
    ("r</think>the <TOOL_CALL> tag", "the <TOOL_CALL> tag"),
  ],
)
def test_tool_spans_are_taken_out(text, answer):
  assert final_answer(text, finish="stop") == answer


TAGS = [
  f"<{slash}{name}>"
  for slash in ("", "/")
  for name in ("think", "tool_call", "tool_response")
]
PIECES = st.lists(st.sampled_from([*TAGS, "a", "b ", "\n", "<", "think>"]))


@given(PIECES, st.booleans())
def test_what_is_left_stood_there_and_holds_no_open_tag(pieces, reasoning):
  text = "".join(pieces)
  answer = final_answer(text, finish="stop", reasoning=reasoning)
  if answer is None:
    return
  position = 0
  for character in "".join(answer.split()):
    position = text.index(character, position) + 1
  assert not any(tag in answer for tag in TAGS if "/" not in tag)
  assert "</think>" not in answer
  # Grading what was graded finds the same text.
  assert final_answer(answer, finish="stop", reasoning=False) == answer


@given(st.text(), PIECES)
def test_reasoning_is_never_graded(answer, planted):
  """Whatever is planted in the reasoning, only what follows counts."""
  thought = "".join(planted).replace("</think>", "")
  plain = answer.replace("<", "")
  graded = final_answer(f"{thought}</think>{plain}", finish="stop")
  assert graded == plain.strip()


@given(st.text(), PIECES, st.sampled_from(["tool_call", "tool_response"]))
def test_a_tool_span_is_never_graded(answer, planted, name):
  inside = "".join(planted).replace(f"</{name}>", "")
  plain = answer.replace("<", "").strip()
  text = f"r</think>{plain}<{name}>{inside}</{name}>"
  assert final_answer(text, finish="stop") == plain


def test_no_planted_tag_pays():
  """A tag in an answer at most takes text away from what can earn points.

  Points are for content and length costs, so a tag would pay if it brought
  back removed text or kept graded text from being counted.
  """
  for before, tag, after in itertools.product(("", "x "), TAGS, ("", " y")):
    answer = final_answer(f"r</think>{before}{tag}{after}", finish="stop")
    if answer is not None:
      assert "r" not in answer.replace(tag, "")
      assert len(answer) <= len(f"{before}{tag}{after}")
