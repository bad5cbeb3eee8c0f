"""Loads prompt texts and fills their placeholders, strictly.

`shared/` holds one text a role, the same for all domains. A placeholder
`{{name}}` in it is filled from the domain's `slots.json`, or from
`shared/untrusted.txt` for the rule on delimited blocks. The texts are read from
the installed package at every start, so a resumed run uses the code's current
wording; what evolves (guidance, memo) is never stored in them but arrives in
blocks of the user message.

A domain is one of this package or a folder of the user's, named by a path such
as `./mine` (`docs/own_domain.md`). It holds

    slots.json       the value of every placeholder
    description.txt  the target in general terms, for the proposer
    reference.json   known statistics of the target; may be missing
    ROLE.txt         a text that takes the place of the shared one; rarely
"""

import dataclasses
import importlib.resources
import json
import os
import pathlib
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any, Final

from varl_jax.types import Message

# Every role with a system prompt of its own; `solver` is also the honest
# answerer's.
ROLES: Final = (
  "proposer",
  "generator",
  "adversary",
  "solver",
  "judge",
  "referee",
  "repairer",
  "patcher",
  "analyst",
  "meta_optimizer",
  "memo_optimizer",
  "summarizer",
  "planner",
  "auditor",
  "pair_checker",
  "decomposer",
  "checklist",
  "rater",
  "item_writer",
  "rubric_author",
  "reviser",
)
STRICT_NOTE: Final = "strict_note"
_UNTRUSTED: Final = "untrusted"
_SHARED: Final = "shared"
_SLOTS: Final = "slots.json"
_DESCRIPTION: Final = "description"
_REFERENCE: Final = "reference.json"

_PLACEHOLDER = re.compile(r"\{\{([a-z][a-z_]*)\}\}")


class PromptError(ValueError):
  """A prompt text or its slots cannot be used; the message names them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
  """A text with placeholders `{{name}}`.

  Raises:
    PromptError: the text is empty or holds doubled braces that are no
      placeholder.
  """

  name: str
  text: str

  def __post_init__(self):
    rest = _PLACEHOLDER.sub("", self.text)
    if not rest.strip():
      raise PromptError(f"Prompt {self.name!r} is empty.")
    if "{{" in rest or "}}" in rest:
      raise PromptError(f"Prompt {self.name!r} has a broken placeholder.")

  @property
  def slots(self) -> frozenset[str]:
    """Names of the placeholders."""
    return frozenset(_PLACEHOLDER.findall(self.text))

  def render(self, **values: str) -> str:
    """Puts each value in literally; braces inside values mean nothing.

    Raises:
      PromptError: a placeholder has no value, or a value no placeholder.
    """
    missing, extra = self.slots - set(values), set(values) - self.slots
    if missing or extra:
      wrong = (
        f"lacks {sorted(missing)}" if missing else f"has no {sorted(extra)}"
      )
      raise PromptError(f"Prompt {self.name!r} {wrong}.")
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], self.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
  """The finished texts of one domain.

  Attributes:
    domain: whose slots were filled in.
    texts: finished text by role name, and `strict_note`.
  """

  domain: str
  texts: Mapping[str, str]

  @property
  def strict_note(self) -> str:
    """What probes and patch validation append to a judge's user message."""
    return self.texts[STRICT_NOTE]

  def system(self, role: str) -> Message:
    """The role's system message."""
    return Message(role="system", content=self.texts[role])


def load_prompt(domain: str, role: str) -> Prompt:
  """Reads a role's shared text with its placeholders still open.

  Raises:
    PromptError: no such domain or role, or a placeholder the domain lacks.
  """
  return _read_prompt(role, _read_slots(domain), domain)


def load_prompts(domain: str) -> PromptSet:
  """Reads and fills every text of a domain.

  Args:
    domain: a name of `domain_names()`, or the path of a folder.

  Raises:
    PromptError: a text is missing, a placeholder has no slot, or a slot of the
      domain is used by no text.
  """
  slots = _read_slots(domain)
  texts, used = {}, set()
  for name in (*ROLES, STRICT_NOTE):
    prompt = _read_prompt(name, slots, domain)
    used |= prompt.slots
    chosen = {slot: slots[slot] for slot in prompt.slots}
    texts[name] = prompt.render(**chosen)
  unused = set(slots) - used
  if unused:
    raise PromptError(f"No prompt uses {domain!r} slot {sorted(unused)[0]!r}.")
  return PromptSet(domain=domain, texts=texts)


def domain_names() -> list[str]:
  """The domains of this package."""
  return sorted(
    path.name for path in _folder().iterdir() if (path / _SLOTS).is_file()
  )


def load_description(domain: str) -> str:
  """What the proposer is told of a domain's target.

  Raises:
    PromptError: no such domain, or it has no description.
  """
  path = _domain_folder(domain) / f"{_DESCRIPTION}.txt"
  text = _read_text(path, f"{path.name} of domain {domain!r}")
  if not text:
    raise PromptError(f"The description of domain {domain!r} is empty.")
  return text


def load_reference(domain: str) -> dict[str, Any]:
  """Known statistics of a domain's target by name, {} where none are known.

  Raises:
    PromptError: no such domain, or the file is no JSON object.
  """
  path = _domain_folder(domain) / _REFERENCE
  if not (path.is_file() or path.is_dir()):
    return {}
  text = _read_text(path, f"{_REFERENCE} of domain {domain!r}")
  return _json_object(text, f"statistics of {domain!r}")


def _folder() -> Traversable:
  return importlib.resources.files("varl_jax.prompts")


def _domain_folder(domain: str) -> Traversable:
  """The folder of a domain: of this package, or the path that is given.

  Raises:
    PromptError: there is no such folder, or a text in it belongs to no role.
  """
  names = domain_names()
  if domain in names:
    folder = _folder() / domain
  elif os.sep in domain or domain.startswith((".", "~")):
    folder = pathlib.Path(domain).expanduser()
    if not folder.is_dir():
      raise PromptError(f"There is no folder {domain!r} for a domain.")
  else:
    raise PromptError(
      f"There is no domain {domain!r}; choose {', '.join(names)}, or give the"
      f" path of a folder with {_SLOTS}, such as './{domain}'."
    )
  known = {*ROLES, STRICT_NOTE, _DESCRIPTION}
  for path in folder.iterdir():
    name, dot, ending = path.name.rpartition(".")
    if dot and ending == "txt" and name not in known:
      raise PromptError(
        f"Domain {domain!r} has a text {path.name!r}, which belongs to no role."
      )
  return folder


def _read_text(path: Traversable, what: str) -> str:
  try:
    return path.read_text(encoding="utf-8").strip()
  except FileNotFoundError as error:
    raise PromptError(f"There is no {what}.") from error
  except UnicodeDecodeError as error:
    raise PromptError(f"The {what} is not UTF-8 text: {error}.") from error
  except OSError as error:
    raise PromptError(
      f"The {what} cannot be read ({error.strerror or error}); mend that or"
      " name another folder."
    ) from error


def _read_prompt(role: str, slots: Mapping[str, str], domain: str) -> Prompt:
  path = _domain_folder(domain) / f"{role}.txt"
  if role not in (*ROLES, STRICT_NOTE) or not path.is_file():
    path = _folder() / _SHARED / f"{role}.txt"
  prompt = Prompt(name=role, text=_read_text(path, f"prompt {role!r}"))
  missing = prompt.slots - set(slots)
  if missing:
    raise PromptError(
      f"Prompt {role!r} needs slot {sorted(missing)[0]!r}, which domain"
      f" {domain!r} lacks."
    )
  return prompt


def _read_slots(domain: str) -> dict[str, str]:
  path = _domain_folder(domain) / _SLOTS
  text = _read_text(path, f"{_SLOTS} of domain {domain!r}")
  rule = _folder() / _SHARED / f"{_UNTRUSTED}.txt"
  return {
    **_check_slots(text, domain),
    _UNTRUSTED: _read_text(rule, f"text {_UNTRUSTED!r}"),
  }


def _json_object(text: str, what: str) -> dict[str, Any]:
  try:
    found = json.loads(text)
  except json.JSONDecodeError as error:
    raise PromptError(f"The {what} are no JSON: {error}.") from error
  if not isinstance(found, dict):
    raise PromptError(f"The {what} are no JSON object.")
  return found


def _check_slots(text: str, domain: str) -> dict[str, str]:
  slots = _json_object(text, f"slots of {domain!r}")
  for name, value in slots.items():
    if not isinstance(value, str) or not value.strip():
      raise PromptError(f"Slot {name!r} of {domain!r} is no text.")
    if name == _UNTRUSTED or not re.fullmatch("[a-z][a-z_]*", name):
      raise PromptError(f"Slot {name!r} of {domain!r} has a bad name.")
    if "{{" in value or "}}" in value:
      raise PromptError(f"Slot {name!r} of {domain!r} nests a placeholder.")
  return slots
