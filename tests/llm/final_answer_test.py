"""Which part of a generated text is graded."""

import pytest

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
