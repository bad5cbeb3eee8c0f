"""The key of an endpoint: read from the environment, shown nowhere.

The key is kept where neither `repr`, pickling nor `dataclasses.asdict` finds
it, and every text that may have passed through a server is scrubbed of it, and
of anything that looks like a key, before it is raised, logged or stored.
"""

import os
import re
from collections.abc import Callable
from typing import Final, NoReturn

from varl_jax.config import ConfigError

HIDDEN: Final = "***"
# A server may echo a key in part, or with its middle starred out.
_LOOKS_SECRET: Final = re.compile(
  r"(?i:\b(bearer|basic)\s+)[^\s\"',;}\]]+|\bsk-[\w*.\-]{4,}"
  r"|(?i:\b(api[-_]?key)\b[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}\]&]+"
)
# Shorter values would take ordinary words out of texts.
_MIN_LENGTH: Final = 8
# So many characters of a key in a row are a part of it and no accident. A run
# of that length holds at least one whole piece of the key.
_RUN: Final = 12
_PIECE: Final = 6


def scrub_patterns(text: str) -> str:
  """Hides whatever looks like a key."""

  def hide(match: re.Match[str]) -> str:
    word = match[1] or match[2]
    return f"{word} {HIDDEN}" if word else HIDDEN

  return _LOOKS_SECRET.sub(hide, text)


class ApiKey:
  """A key by the name of its environment variable.

  Attributes:
    variable: the variable's name, "" for a server without a key.
  """

  __slots__ = ("_reveal", "variable")

  def __init__(self, variable: str):
    """Reads the key.

    Raises:
      ConfigError: the variable is unset, or its value cannot be a header.
    """
    self.variable = variable
    value = os.environ.get(variable, "").strip() if variable else ""
    if variable and not value:
      raise ConfigError(
        f"The environment variable {variable} is not set; put the endpoint's"
        " key into it, or set api_key_env to '' for a server without keys."
      )
    if value and not (value.isascii() and value.isprintable()):
      raise ConfigError(
        f"The environment variable {variable} holds characters that no key"
        " has; set it again."
      )
    self._reveal: Callable[[], str] = lambda: value

  def reveal(self) -> str:
    """The key itself, for the one place that sends it; "" without."""
    return self._reveal()

  def scrub(self, text: str) -> str:
    """`text` without the key and without what looks like one."""
    return scrub_patterns(self.hide(text))

  def quote(self, text: str, *, most: int) -> str:
    """What a server said as part of one line for people.

    Scrubbed, on one line, without what a terminal would take for a command, and
    cut to `most` characters.
    """
    spaced = " ".join(text.split())
    plain = "".join(sign for sign in spaced if sign.isprintable())
    return self.scrub(plain)[:most]

  def hide(self, text: str) -> str:
    """`text` without the key and long parts of it, otherwise unchanged."""
    value = self._reveal()
    if len(value) < _MIN_LENGTH:
      return text
    text = text.replace(value, HIDDEN)
    starts = range(0, len(value) - _PIECE + 1, _PIECE)
    if len(value) < _RUN or not any(
      value[at : at + _PIECE] in text for at in starts
    ):
      return text
    return _without_runs(text, value)

  def __repr__(self) -> str:
    return f"ApiKey({self.variable!r})"

  def __reduce__(self) -> NoReturn:
    raise TypeError("An ApiKey is never pickled; read it where it is used.")


def _without_runs(text: str, value: str) -> str:
  """`text` with each run of `_RUN` or more characters of `value` hidden."""
  grams = {value[at : at + _RUN] for at in range(len(value) - _RUN + 1)}
  parts, kept, at = [], 0, 0
  while at + _RUN <= len(text):
    if text[at : at + _RUN] not in grams:
      at += 1
      continue
    parts += [text[kept:at], HIDDEN]
    while text[at : at + _RUN] in grams:
      at += 1
    at = kept = at + _RUN - 1
  return "".join([*parts, text[kept:]])
