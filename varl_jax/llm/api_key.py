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

  def hide(self, text: str) -> str:
    """`text` without the key itself, otherwise unchanged."""
    value = self._reveal()
    if len(value) < _MIN_LENGTH or value not in text:
      return text
    return text.replace(value, HIDDEN)

  def __repr__(self) -> str:
    return f"ApiKey({self.variable!r})"

  def __reduce__(self) -> NoReturn:
    raise TypeError("An ApiKey is never pickled; read it where it is used.")
