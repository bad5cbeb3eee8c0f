"""Texts as the words that lexical search compares.

A word is lower-cased, freed of accents and cut to its stem. Codes such as
E11.621 stay whole, Roman numbers after "type" or "stage" become digits, "isn't"
is "not", and scripts without blanks between words are taken character by
character.
"""

import functools
import re
import unicodedata
from typing import Final

from varl_jax.retrieval.passage import RetrievalError

# Raised whenever the same text would give other words.
VERSION: Final = 1
# Characters of a word; longer runs are no words.
_LONGEST: Final = 64
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff"
_WORD: Final = re.compile(
  rf"[a-z]\d[a-z0-9](?:\.[a-z0-9]{{1,4}})?(?![\w])|[{_UNSPACED}]|[^\W_{_UNSPACED}]+"
)
_POSSESSIVE: Final = re.compile(r"['’ʼ]s?\b")
_CANNOT: Final = re.compile(r"\bcan(?:['’ʼ]?t| not)\b")
_NEGATED: Final = re.compile(r"\b(?:\w+n['’ʼ]t)\b")
_ROMAN: Final = re.compile(
  r"\b(type|stage|grade|class|phase|degree)\s+(i{1,3}|iv|v)\b"
)
_DIGITS: Final = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}
STOP_WORDS: Final = frozenset(
  "a an and are as at be but by can do does for he her him his i in is it its"
  " my of on or our she so than that the their them there they this to was"
  " we were which who will with would you your over into after too".split()
)


def words(text: str) -> list[str]:
  """The stems of a text's words in order, stop words left out."""
  return [stem(word) for word in _split(text) if word not in STOP_WORDS]


def _split(text: str) -> list[str]:
  plain = unicodedata.normalize("NFKD", text).casefold()
  plain = "".join(c for c in plain if not unicodedata.combining(c))
  plain = unicodedata.normalize("NFC", plain)
  plain = _NEGATED.sub("not", _CANNOT.sub("cannot", plain))
  plain = _POSSESSIVE.sub("", plain)
  plain = _ROMAN.sub(lambda m: f"{m[1]} {_DIGITS[m[2]]}", plain)
  return [w for w in _WORD.findall(plain) if len(w) <= _LONGEST]


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
