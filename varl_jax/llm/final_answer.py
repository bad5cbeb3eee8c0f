"""What is left of a generated text once the reasoning channel is taken out."""

from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


def final_answer(
  text: str, *, finish: str, reasoning: bool = True
) -> str | None:
  """The part of `text` that is graded, or None when there is none.

  The chat template of a reasoning model opens the channel itself, so the
  generated text may hold only the closing tag. The last closing tag counts:
  what stands before it was reasoning, whatever else it says.

  Args:
    text: the generated text, without the prompt.
    finish: why generation ended, `stop` or `length`. A closed channel followed
      by an answer that ran into the limit is still an answer.
    reasoning: whether the model reasons first; then a text that never closes
      the channel is all reasoning.

  Returns:
    The answer with surrounding whitespace removed, "" when nothing follows the
    reasoning, None when the reasoning never closed.

  Raises:
    ValueError: `finish` is neither `stop` nor `length`.
  """
  if finish not in ("stop", "length"):
    raise ValueError(f"finish is 'stop' or 'length', got {finish!r}.")
  _, closed, after = text.rpartition(CLOSE)
  if OPEN in after or (reasoning and not closed):
    return None
  return after.strip()
