"""What is left of a generated text once reasoning and tool spans are out.

The text is read once, from left to right, and is at any moment in one of three
places: the answer, the reasoning channel, a tool span. Each place is left only
by its own closing tag, so a tag that stands inside another place means nothing
there: a `</think>` inside a tool's result revives nothing, a `<tool_call>` that
is only thought of hides no answer. What the removed parts leave is joined by a
line break, so no tag can be put together from pieces.

A tool's result comes from outside and may hold the closing tag of its own span;
whoever pastes it into a rollout neutralises it first (`llm.untrusted`).
"""

import dataclasses
import re
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
# Tool spans of chat templates; the first is written by the model.
TOOL_TAGS: Final = ("tool_call", "tool_response")

_TAG = re.compile(rf"<(/?)(think|{'|'.join(TOOL_TAGS)})>")
_THINK: Final = "think"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
  """A stretch of a generated text in one place.

  Attributes:
    place: "" for the answer, `think`, or the tag of a tool span.
    text: without the tags.
    closed: whether it ended by its own tag; True for the answer.
  """

  place: str
  text: str
  closed: bool


def spans(text: str, *, reasoning: bool = True) -> list[Span]:
  """The stretches of a text, in order; see `final_answer`.

  All before the last closing tag of the reasoning channel is one of reasoning.
  """
  found: list[Span] = []
  place, start = _THINK if reasoning else "", 0

  def end(position: int, *, closed: bool) -> None:
    stretch = text[start:position]
    found.append(Span(place=place, text=stretch, closed=closed))

  for tag in _TAG.finditer(text):
    closing, name = tag.groups()
    if closing and name == _THINK and place in ("", _THINK):
      found, place, start = [], _THINK, 0
      end(tag.start(), closed=True)
      place = ""
    elif closing and name == place:
      end(tag.start(), closed=True)
      place = ""
    elif not closing and not place:
      end(tag.start(), closed=True)
      place = name
    else:
      continue
    start = tag.end()
  end(len(text), closed=not place)
  return found


def final_answer(
  text: str, *, finish: str, reasoning: bool = True
) -> str | None:
  """The part of `text` that is graded, or None when there is none.

  The chat template of a reasoning model opens the channel itself, so the
  generated text may hold only the closing tag. Whatever stands before a closing
  tag of the channel was reasoning or an earlier turn and is not graded. A tool
  span that never closes reaches to the end.

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
  parts: list[str] = []
  for span in spans(text, reasoning=reasoning):
    if span.place == _THINK:
      if not span.closed:
        return None
      parts = []
    elif not span.place:
      parts.append(span.text)
  return "\n".join(part.strip() for part in parts if part.strip())
