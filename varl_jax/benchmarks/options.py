r"""The one option that an answer to a multiple-choice question chose.

An answer chooses by its strongest kind of statement, in this order:

    final answer: C     also "the final answer is (C)", in bold or boxed
    \boxed{C}
    answer: C           also "the correct answer is C", "the answer is C"
    C                   the whole reply, perhaps followed by the option's text

If statements of that kind name several letters, the answer chose none: whoever
lists every option is not credited for the right one. A letter counts only as a
word of its own, so that neither "a" nor "I" of a sentence is an option. Reading
takes time proportional to the answer's length, whatever stands in it.
"""

import re
import unicodedata
from collections.abc import Collection
from typing import Final

# Characters after a statement's opening words in which its letters must stand.
_WINDOW: Final = 120
_VERB: Final = r"[\s*_]{0,8}(?:is\b\s{0,4}:?|would be\b|=|:)"
_FINAL = re.compile(
  rf"final\s{{1,4}}answer(?:{_VERB}|[*_]{{0,4}}[^\S\n]{{0,8}}\n)", re.I
)
_BOXED = re.compile(r"\\boxed\s{0,4}\{")
_ANSWER = re.compile(rf"(?:answer|option|choice){_VERB}", re.I)
_COMMAND = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf)")
_OPENING = str.maketrans(dict.fromkeys('*_`"“”‘#>$({[\\', " "))
_CLOSING = str.maketrans(dict.fromkeys("]}", ")"))

_LETTER: Final = r"([A-Z])(?![A-Za-z0-9]|['’][a-z])"
_NOUN: Final = r"(?i:(?:the\s{1,4})?(?:option|choice|letter)\s{0,4}[:=]?)?"
_FIRST = re.compile(rf"[\s']*+{_NOUN}[\s']*+{_LETTER}")
_JOIN: Final = r"(?:,|/|&|\+|;|-|–|—|or\b|and\b|to\b|through\b)"
_JOINED = re.compile(
  rf"[\s).']*+(?:{_JOIN}\s*+)++{_NOUN}[\s']*+{_LETTER}"
  rf"|[\s).']*+{_LETTER}(?!\s+[a-z])"
)
# "A patient ..." and "I think ..." are sentences, not options.
_WORDS: Final = frozenset("AI")
_SENTENCE = re.compile(r"\s+[a-z]")
_TAIL = re.compile(r"\s*\Z|[.):\s]")


def chosen_option(text: str, letters: Collection[str]) -> str | None:
  """The letter that an answer chose.

  Args:
    text: the answer.
    letters: the options there are, such as "ABCDE".

  Returns:
    The letter, None for none, several, or one that is no option.
  """
  text = unicodedata.normalize("NFKC", text)
  for form in (_FINAL, _BOXED, _ANSWER):
    found: set[str] = set()
    for match in form.finditer(text):
      found |= _named(text[match.end() : match.end() + _WINDOW])[0]
    if found:
      return _single(found, letters)
  whole = text.strip()
  if "\n" in whole:
    return None
  found, rest = _named(whole[:_WINDOW])
  return _single(found, letters) if _TAIL.match(rest) else None


def _named(text: str) -> tuple[set[str], str]:
  """The letters that a text begins with, and what follows them."""
  text = _COMMAND.sub(" ", text).translate(_OPENING).translate(_CLOSING)
  match = _FIRST.match(text)
  if match is None:
    return set(), text
  first, position = match[1], match.end()
  found = {first}
  while more := _JOINED.match(text, position):
    found.add(more[1] or more[2])
    position = more.end()
  alone = position == match.end()
  if alone and first in _WORDS and _SENTENCE.match(text, position):
    return set(), text
  return found, text[position:]


def _single(found: Collection[str], letters: Collection[str]) -> str | None:
  if len(found) != 1:
    return None
  [letter] = found
  return letter if letter in letters else None
