"""How alike two criteria are (paper appendix C).

The paper names a trigram overlap without a formula. Reconstructed: the Jaccard
index of the sets of character trigrams. Characters rather than words, because
criteria are one short sentence, and a copy with one word changed would share
less than half of its word trigrams.
"""

import re
import unicodedata
from typing import Final

TRIGRAM: Final = 3

_WORD = re.compile(r"\w+")


def trigrams(text: str) -> frozenset[str]:
  """Character trigrams of the words of `text`, without case or punctuation."""
  folded = unicodedata.normalize("NFKC", text).casefold()
  words = _WORD.findall(folded)
  if not words:
    return frozenset()
  padded = f" {' '.join(words)} "
  return frozenset(
    padded[i : i + TRIGRAM] for i in range(len(padded) - TRIGRAM + 1)
  )


def trigram_overlap(a: str, b: str) -> float:
  """Shared trigrams over all trigrams of both texts.

  Returns:
    A value in [0, 1]; 1 for the same words, 0 when either text has none.
  """
  first, second = trigrams(a), trigrams(b)
  if not first or not second:
    return 0.0
  return len(first & second) / len(first | second)
