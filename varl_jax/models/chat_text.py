"""Texts of other people inside a chat template, kept from steering it.

A template puts control tokens (`<|im_end|>`, `</think>`, ...) around contents.
A content that spells one out must not become one. Every control text begins and
ends with certain characters; in contents these are replaced, one for one, by
characters that no text uses. The template runs, and what it wrote itself is
then told from what it was given; the characters are put back before text
becomes ids. Neither the template's conditions nor its trimming see
another difference.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

# Private use: basic plane, then the two supplementary planes.
_PRIVATE: Final = (
  range(0xE000, 0xF900),
  range(0xF0000, 0xFFFFE),
  range(0x100000, 0x10FFFE),
)


class Marks:
  """A replacement for each first and last character of control texts."""

  def __init__(self, controls: Iterable[str], texts: Sequence[str]):
    """Chooses characters that stand in none of the texts.

    Args:
      controls: texts of the control tokens.
      texts: all that goes into the template.
    """
    edges = sorted({c for text in controls for c in (text[0], text[-1])})
    used = set().union(*texts, edges)
    free = (
      chr(code) for codes in _PRIVATE for code in codes if chr(code) not in used
    )
    pairs = dict(zip(edges, free, strict=False))
    self._to = str.maketrans(pairs)
    self._back = str.maketrans({mark: edge for edge, mark in pairs.items()})

  def hide(self, content: str) -> str:
    """The content in which no control text can be found."""
    return content.translate(self._to)

  def show(self, text: str) -> str:
    """The text with the replaced characters put back."""
    return text.translate(self._back)


class Splitter:
  """Finds control texts, the longest at each place."""

  def __init__(self, controls: Iterable[str]):
    ordered = sorted(controls, key=len, reverse=True)
    self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

  def split(self, text: str) -> list[tuple[str, bool]]:
    """Pieces in order; True marks a control text. Empty ones are left out."""
    pieces, end = [], 0
    for match in self._pattern.finditer(text):
      pieces.append((text[end : match.start()], False))
      pieces.append((match.group(), True))
      end = match.end()
    pieces.append((text[end:], False))
    return [piece for piece in pieces if piece[0]]
