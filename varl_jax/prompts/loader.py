"""Loads prompt texts and fills their placeholders, strictly.

`shared/` holds one text a role, the same for all domains. A placeholder
`{{name}}` in it is filled from the domain's `slots.json`, or from
`shared/untrusted.txt` for the rule on delimited blocks. The texts are read from
the installed package at every start, so a resumed run uses the code's current
wording; what evolves (guidance, memo) is never stored in them but arrives in
blocks of the user message.
"""

import dataclasses
import importlib.resources
import json
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Final

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
  "auditor",
)
STRICT_NOTE: Final = "strict_note"
_UNTRUSTED: Final = "untrusted"

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


def _folder() -> Traversable:
  return importlib.resources.files("varl_jax.prompts")


def _read_text(path: Traversable, what: str) -> str:
  try:
    return path.read_text(encoding="utf-8").strip()
  except FileNotFoundError as error:
    raise PromptError(f"There is no {what}.") from error


def _read_prompt(role: str, slots: Mapping[str, str], domain: str) -> Prompt:
  path = _folder() / "shared" / f"{role}.txt"
  prompt = Prompt(name=role, text=_read_text(path, f"prompt {role!r}"))
  missing = prompt.slots - set(slots)
  if missing:
    raise PromptError(
      f"Prompt {role!r} needs slot {sorted(missing)[0]!r}, which domain"
      f" {domain!r} lacks."
    )
  return prompt


def _read_slots(domain: str) -> dict[str, str]:
  path = _folder() / domain / "slots.json"
  slots = _check_slots(_read_text(path, f"domain {domain!r}"), domain)
  rule = _folder() / "shared" / f"{_UNTRUSTED}.txt"
  return {**slots, _UNTRUSTED: _read_text(rule, f"text {_UNTRUSTED!r}")}


def _check_slots(text: str, domain: str) -> dict[str, str]:
  try:
    slots = json.loads(text)
  except json.JSONDecodeError as error:
    raise PromptError(
      f"The slots of {domain!r} are no JSON: {error}."
    ) from error
  if not isinstance(slots, dict):
    raise PromptError(f"The slots of {domain!r} are no JSON object.")
  for name, value in slots.items():
    if not isinstance(value, str) or not value.strip():
      raise PromptError(f"Slot {name!r} of {domain!r} is no text.")
    if name == _UNTRUSTED or not re.fullmatch("[a-z][a-z_]*", name):
      raise PromptError(f"Slot {name!r} of {domain!r} has a bad name.")
    if "{{" in value or "}}" in value:
      raise PromptError(f"Slot {name!r} of {domain!r} nests a placeholder.")
  return slots
