"""Texts as the words that lexical search compares.

A word is lower-cased, freed of accents and cut to its stem. Codes such as
E11.621 stay whole, Roman numbers after "type" or "stage" become digits, and
scripts without blanks between words are taken character by character. Negated
words are told from others.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.passage import RetrievalError

# Raised whenever the same text would give other words.
VERSION: Final = 1
# Characters of a word; longer runs are no words.
_LONGEST: Final = 64
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff"
_TOKEN: Final = re.compile(
  r"[a-z]\d[a-z0-9](?:\.[a-z0-9]{1,4})?(?!\w)"
  rf"|[{_UNSPACED}]|[^\W_{_UNSPACED}]+|[^\w\s]"
)
_POSSESSIVE: Final = re.compile(r"['’ʼ]s?\b")
_CANNOT: Final = re.compile(r"\bcan(?:['’ʼ]?t| not)\b")
_NEGATED: Final = re.compile(r"\b(?:\w+n['’ʼ]t)\b")
_ROMAN: Final = re.compile(
  r"\b(type|stage|grade|class|phase|degree)\s+(i{1,3}|iv|v)\b"
)
# An "a" that is a name and no article.
_LETTER: Final = re.compile(
  r"\b(antigen|factor|group|hep|hepatitis|influenza|type|virus|vitamin) a\b"
)
# British spellings, by the American ones that the classification uses.
_BRITISH: Final = (
  (re.compile(r"aem(?=i|o|a)"), "em"),
  (re.compile(r"\boe(?=[ds])"), "e"),
  (re.compile(r"rrhoe(?=a|i)"), "rrhe"),
  (re.compile(r"(?<=p)ae(?=di|do)|(?<=n)ae(?=c)|(?<=c)ae(?=sar)"), "e"),
  (re.compile(r"\bfoet"), "fet"),
  (re.compile(r"\bprae"), "pre"),
  (re.compile(r"(?<=tum|col|lab)our"), "or"),
)
_DIGITS: Final = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}
STOP_WORDS: Final = frozenset(
  "a an and are as at be but by can do does for he her him his i in is it its"
  " my of on or our she so than that the their them there they this to was"
  " we were which who will with would you your over into after too".split()
)

NO: Final = "no:"
_NEGATORS: Final = frozenset("denies never no nor not without".split())
# Words that a negation reaches, unless one of these stands before.
_SCOPE: Final = 4
_SCOPE_ENDS: Final = (
  STOP_WORDS - frozenset("a an any or the".split())
) | frozenset("because but causing due except from with".split())


def words(text: str) -> list[str]:
  """The stems of a query's words in order, stop words left out.

  What is negated ("without loss of appetite") reads as `no:loss`.
  """
  return [NO + word if negated else word for word, negated in _read(text)]


def document_words(text: str) -> list[str]:
  """Likewise of a document, whose negated words are also found as they are.

  A query about an obstruction may be answered by a page on its absence; one
  about its absence is not answered by a page on obstructions.
  """
  made = []
  for word, negated in _read(text):
    made += [word, NO + word] if negated else [word]
  return made


def _read(text: str) -> Iterator[tuple[str, bool]]:
  """Stems, each with whether it is negated."""
  left = 0
  for token in _split(text):
    if token in _NEGATORS:
      left = _SCOPE
      continue
    if token in _SCOPE_ENDS or not token[0].isalnum():
      left = 0
    if token not in STOP_WORDS and token[0].isalnum():
      yield stem(token), left > 0
      left -= 1


def _split(text: str) -> list[str]:
  """Words and, one by one, the signs between them."""
  plain = text.casefold()
  if not text.isascii():
    plain = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = unicodedata.normalize("NFC", plain)
  if "ae" in plain or "oe" in plain or "our" in plain:
    for pattern, american in _BRITISH:
      plain = pattern.sub(american, plain)
  plain = _NEGATED.sub("not", _CANNOT.sub("cannot", plain))
  plain = _POSSESSIVE.sub("", plain)
  plain = _ROMAN.sub(lambda m: f"{m[1]} {_DIGITS[m[2]]}", plain)
  plain = _LETTER.sub(r"\1 lettera", plain)
  plain = plain.replace("w/o", "without")
  return [w for w in _TOKEN.findall(plain) if len(w) <= _LONGEST]


@functools.lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
  """A word's stem by the English rules of Porter's second algorithm.

  Raises:
    RetrievalError: the package with the rules is not installed.
  """
  return _stemmer().stemWord(word) if word.isascii() else word


@functools.lru_cache(maxsize=1)
def _stemmer():
  try:
    import snowballstemmer
  except ModuleNotFoundError as error:
    raise RetrievalError(
      "Lexical search needs snowballstemmer; pip install -e '.[retrieval]'."
    ) from error
  return snowballstemmer.stemmer("english")
