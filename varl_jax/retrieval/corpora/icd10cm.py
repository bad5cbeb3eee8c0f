"""ICD-10-CM: the tabular list, one passage a code.

The title is the code with its description. The text says where the code
belongs, its inclusion terms, what is coded elsewhere and which seventh
characters it takes. Lexical search finds a code by its description and by each
of its inclusion terms, never by what it excludes.
"""

import dataclasses
import pathlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import CorpusError, open_bytes
from varl_jax.retrieval.corpora.markup import (
  child,
  children,
  events,
  local,
  text_of,
  tidy,
)
from varl_jax.retrieval.corpora.piece import Piece

SUFFIXES: Final = (".xml", ".xml.gz")
# What a code says beside its description, as the text names it.
NOTES: Final = {
  "inclusionTerm": "Also",
  "includes": "Includes",
  "excludes1": "Not coded here",
  "excludes2": "Not included here",
  "useAdditionalCode": "Use an additional code",
  "codeFirst": "Code first",
  "codeAlso": "Code also",
  "notes": "Note",
}
_ALSO: Final = ("inclusionTerm", "includes")
# Names that a code hands down.
_MOST_NAMES: Final = 12
_LAST_ABSENCE: Final = re.compile(r",? ?\bwithout [^,]*$", re.I)
# What goes without saying, in the order it is taken out.
_SILENT: Final = tuple(
  re.compile(pattern, re.I)
  for pattern in (
    r"\([^()]*\)|\[[^\[\]]*\]",
    r",? ?\b(?:NOS|NEC|not elsewhere classified|so stated)\b",
    r",? (?:site )?not specified(?: as [^,]*)?",
    r"\bwithout foreign body\b",
    r",? ?\bwithout (?:(?!\bwith\b)[^,])*",
    r",? (?:part|type) unspecified\b",
    r", unspecified(?: \w+)?(?=,|$)",
    r"\bunspecified\b",
  )
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Above:
  """What a code inherits.

  Attributes:
    path: headings above it.
    description: of the code right above it.
    names: the other names of that code.
    sevenths: seventh characters.
  """

  path: tuple[str, ...] = ()
  description: str = ""
  names: tuple[str, ...] = ()
  sevenths: tuple[str, ...] = ()


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of all codes, a code before those under it.

  Raises:
    CorpusError: truncated, no XML, or without a code.
  """
  stack: list[str] = []
  headings: dict[str, str] = {}
  count = 0
  with open_bytes(file) as stream:
    for event, element in events(stream, str(file)):
      name = local(element)
      if event == "start":
        stack.append(name)
        continue
      stack.pop()
      if name == "desc" and stack[-1:] in (["chapter"], ["section"]):
        headings[stack[-1]] = text_of(element)
      elif name == "chapter":
        headings.clear()
      elif name == "section":
        headings.pop("section", None)
      elif name == "diag" and "diag" not in stack:
        path = [headings[k] for k in ("chapter", "section") if k in headings]
        for piece in _codes(element, _Above(path=tuple(path))):
          count += 1
          yield piece
        element.clear()
  if not count:
    raise CorpusError(f"{file} holds no code; it is no tabular list.")


def _codes(element: ET.Element, above: _Above) -> Iterator[Piece]:
  code = text_of(child(element, "name"))
  description = text_of(child(element, "desc"))
  title = f"{code} {description}"
  defined = child(element, "sevenChrDef")
  if defined is not None:
    above = dataclasses.replace(above, sevenths=_sevenths(defined))
  also = [
    text_of(note)
    for name in _ALSO
    for group in children(element, name)
    for note in children(group, "note")
  ]
  names = _names(description, also, above)
  inside = children(element, "diag")
  yield Piece(
    name=code,
    title=title,
    text="\n".join([description, *_facts(element, above, leaf=not inside)]),
    url=f"https://icd10cmtool.cdc.gov/?query={code}",
    keys=tuple(dict.fromkeys(filter(None, [*names, *_plain(names), code]))),
  )
  below = dataclasses.replace(
    above,
    path=(*above.path, title),
    description=description,
    names=tuple(names[1 : 1 + _MOST_NAMES]),
  )
  for inner in inside:
    yield from _codes(inner, below)


def _names(description: str, also: list[str], above: _Above) -> list[str]:
  """The description, the inclusion terms, and names by those above.

  Where a code says no more than a detail on top of the code above it ("right
  ear"), each other name of that code is a name of this one with the detail.
  """
  own, upper = _words(description), set(_words(above.description))
  detail = " ".join(word for word in own if word not in upper)
  refines = bool(upper) and upper <= set(own)
  inherited = [f"{name} {detail}" for name in above.names] if refines else []
  return [description, *also, *inherited]


def _words(text: str) -> list[str]:
  """Words to compare a code with the one above it by."""
  return [
    word
    for word in re.findall(r"[\w'-]+", text)
    if word.lower() not in ("unspecified", "and", "of", "with", "the", "other")
  ]


def _plain(names: list[str]) -> list[str]:
  """Each name without its last absence, and without all that is silent."""
  return [
    short
    for name in names
    for short in (_LAST_ABSENCE.sub("", name), plainly(name))
  ]


def plainly(name: str) -> str:
  """A name without what the list only says to be complete.

  Words in round brackets may be there or not, by the list's own convention, and
  what is "unspecified" or "without" something is the code for those who do not
  mention it. So a query that says no more finds the default code.
  """
  for pattern in _SILENT:
    name = pattern.sub(" ", name)
  return tidy(name).strip(" ,;")


def _facts(element: ET.Element, above: _Above, *, leaf: bool) -> list[str]:
  lines = [f"Under: {' > '.join(above.path)}"] if above.path else []
  for name, label in NOTES.items():
    notes = [
      text_of(note)
      for group in children(element, name)
      for note in children(group, "note")
    ]
    if notes:
      lines.append(f"{label}: {'; '.join(notes)}")
  if leaf and above.sevenths:
    lines.append(f"Seventh character: {'; '.join(above.sevenths)}")
  return lines


def _sevenths(defined: ET.Element) -> tuple[str, ...]:
  return tuple(
    f"{extension.get('char', '')} {text_of(extension)}"
    for extension in children(defined, "extension")
  )
