"""Criteria that code decides instead of a judge.

A criterion may carry a check such as `uses(mia, rope)`: the name of a function
its domain registered, with literal arguments. Check texts are written by
models, so they are parsed strictly and never evaluated.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Final

Check = Callable[..., bool]

MAX_CHECK_CHARS: Final = 200

_CALL = re.compile(r"\s*([a-z_][a-z0-9_]*)\s*\((.*)\)\s*", re.S)
_ARGUMENT = re.compile(r'\s*(?:"([^"]*)"|([^\s(),"][^(),"]*?))\s*(?:,|\Z)')


class CheckError(ValueError):
  """A check that cannot be run; also raised by checks for bad arguments."""


def parse_check(text: str) -> tuple[str, tuple[str, ...]]:
  """Reads `name(a, b)`.

  Args:
    text: a lower-case name and arguments; one that is empty or holds commas or
      brackets stands in double quotes. At most `MAX_CHECK_CHARS`.

  Returns:
    The name and the arguments without surrounding space.

  Raises:
    CheckError: `text` is not a check.
  """
  match = _CALL.fullmatch(text) if len(text) <= MAX_CHECK_CHARS else None
  if not match:
    raise CheckError(f"Not a check like name(argument, ...): {text[:60]!r}.")
  name, inside = match.groups()
  arguments = []
  position = 0
  while inside[position:].strip() or (position and inside[position - 1] == ","):
    found = _ARGUMENT.match(inside, position)
    if not found:
      raise CheckError(f"Unreadable arguments in check {text[:60]!r}.")
    quoted, bare = found.groups()
    arguments.append(bare if quoted is None else quoted)
    position = found.end()
  return name, tuple(arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckRegistry:
  """The checks of a domain.

  Attributes:
    checks: functions by name, each of `(answer, *arguments) -> bool`, all
      strings. A check raises `CheckError` for arguments it does not know, and
      does so for any answer, the empty one too.
  """

  checks: Mapping[str, Check] = dataclasses.field(default_factory=dict)

  def problems(self, text: str) -> list[str]:
    """Lists why `text` cannot be run; empty when it can."""
    try:
      self.run(text, "")
    except CheckError as error:
      return [str(error)]
    return []

  def run(self, text: str, answer: str) -> bool:
    """Decides the check `text` on `answer`.

    Raises:
      CheckError: not a check, unknown name, wrong number of arguments, or
        arguments the check does not know.
    """
    name, arguments = parse_check(text)
    if name not in self.checks:
      known = ", ".join(sorted(self.checks)) or "none"
      raise CheckError(f"Unknown check {name!r}; there are: {known}.")
    check = self.checks[name]
    try:
      inspect.signature(check).bind(answer, *arguments)
    except TypeError as error:
      raise CheckError(f"Check {text[:60]!r}: {error}.") from error
    return bool(check(answer, *arguments))

  def describe(self) -> str:
    """One line a check, `name(a, b): what it decides`, for a prompt."""
    return "\n".join(
      _describe(name, check) for name, check in sorted(self.checks.items())
    )


def _describe(name: str, check: Check) -> str:
  _, *parameters = inspect.signature(check).parameters
  summary = (inspect.getdoc(check) or "").partition("\n")[0]
  return f"{name}({', '.join(parameters)}): {summary}"
