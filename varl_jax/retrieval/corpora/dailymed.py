"""DailyMed: labels of medicines (SPL), one XML each, alone or in zips.

Every section with text of its own becomes a passage, or several, under
"product (substance) -- section -- section". Excerpts repeat the text and are
left out, product data and the pictured package too (NOT_READ, LOINC).
"""

import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import IO, Final

from varl_jax.retrieval.corpora.files import (
  CorpusError,
  open_bytes,
  zip_members,
)
from varl_jax.retrieval.corpora.markup import (
  child,
  children,
  events,
  local,
  text_of,
)
from varl_jax.retrieval.corpora.piece import Piece, cut

NOT_READ: Final = ("48780-1", "51945-4")
# Headings of sections that carry none of their own, by LOINC code.
SECTIONS: Final = {
  "34067-9": "Indications and usage",
  "34068-7": "Dosage and administration",
  "34071-1": "Warnings",
  "43685-7": "Warnings and precautions",
  "34070-3": "Contraindications",
  "34073-7": "Drug interactions",
  "34084-4": "Adverse reactions",
  "34066-1": "Boxed warning",
  "34089-3": "Description",
  "34090-1": "Clinical pharmacology",
}
SUFFIXES: Final = (".xml", ".zip")
# Shorter texts are headings set as paragraphs, such as "Drug Facts".
_FEWEST_WORDS: Final = 3


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of one label, or of all labels in a zip.

  Raises:
    CorpusError: truncated, damaged, or no label.
  """
  if file.name.lower().endswith(".zip"):
    for name, stream in zip_members(file, ".xml"):
      yield from _label(stream, name)
  else:
    with open_bytes(file) as stream:
      yield from _label(stream, str(file))


def _label(stream: IO[bytes], name: str) -> Iterator[Piece]:
  root = None
  for _, element in events(stream, name):
    root = element if root is None else root
  assert root is not None
  set_id = child(root, "setId")
  if local(root) != "document" or set_id is None:
    raise CorpusError(f"{name} has no setId; it is no label.")
  key = set_id.get("root", "")
  body = child(root, "component", "structuredBody")
  found = [] if body is None else list(_sections(body, [_product(root)]))
  for number, (heading, text) in enumerate(found):
    yield Piece(
      name=f"{key}_{number}",
      title=heading,
      text=text,
      url=f"https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid={key}",
    )


def _product(root: ET.Element) -> str:
  """The label's title, with the substance where the title lacks it."""
  title = text_of(child(root, "title"))
  names = [
    text_of(child(element, "name"))
    for element in root.iter()
    if local(element) == "genericMedicine"
  ]
  if not title:
    products = [e for e in root.iter() if local(e) == "manufacturedProduct"]
    held = [text_of(child(e, "name")) for e in products]
    title = next(filter(None, held), "Label")
  absent = [n for n in dict.fromkeys(names) if n.lower() not in title.lower()]
  return f"{title} ({', '.join(absent)})" if absent else title


def _sections(
  parent: ET.Element, headings: list[str]
) -> Iterator[tuple[str, str]]:
  for component in children(parent, "component"):
    section = child(component, "section")
    if section is None:
      continue
    code = child(section, "code")
    number = "" if code is None else code.get("code", "")
    if number in NOT_READ:
      continue
    heading = text_of(child(section, "title")) or _heading(code, number)
    path = [*headings, heading] if heading else headings
    for text in cut(_lines(child(section, "text"))):
      if len(text.split()) >= _FEWEST_WORDS:
        yield " -- ".join(path), text
    yield from _sections(section, path)


def _heading(code: ET.Element | None, number: str) -> str:
  """A heading from the section's code; "" for unclassified sections."""
  if number in SECTIONS or code is None:
    return SECTIONS.get(number, "")
  shown = code.get("displayName", "").removeprefix("OTC - ")
  shown = shown.removesuffix(" SECTION")
  return "" if "UNCLASSIFIED" in shown else shown.capitalize()


def _lines(text: ET.Element | None) -> list[str]:
  """Paragraphs, list items and table rows, one line each."""
  if text is None:
    return []
  made: list[str] = []
  loose = text_of(text, without=("paragraph", "list", "table"))
  if loose:
    made.append(loose)
  for part in text:
    made += _block(part, "- ")
  return made


def _block(part: ET.Element, bullet: str) -> list[str]:
  name = local(part)
  if name == "paragraph":
    line = text_of(part)
    return [line] if line else []
  if name == "list":
    made = [text_of(c) for c in children(part, "caption")]
    for item in children(part, "item"):
      line = text_of(item, without=("list", "table"))
      made += [f"{bullet}{line}"] if line else []
      for inner in item:
        if local(inner) in ("list", "table"):
          made += _block(inner, f"  {bullet}")
    return made
  if name == "table":
    rows = [
      " | ".join(text_of(cell) for cell in children(row, "td", "th"))
      for row in part.iter()
      if local(row) == "tr"
    ]
    caption = [text_of(c) for c in children(part, "caption")]
    return ["\n".join(filter(None, [*caption, *rows]))]
  return [line for inner in part for line in _block(inner, bullet)]
