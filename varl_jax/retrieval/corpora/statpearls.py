"""StatPearls: one chapter a `.nxml` file of the Bookshelf (BITS/JATS).

Cut as MedRAG cuts it: one paragraph a passage under "chapter -- section", a
paragraph in bold alone is a sub-heading, short paragraphs join the one before,
a list is one passage as long as it fits. On top, nested sections and lists and
tables are read, and sections that teach nothing (NOT_READ) are left out.
"""

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
from varl_jax.retrieval.corpora.piece import MOST, Piece, cut

NOT_READ: Final = (
  "continuing education activity",
  "review questions",
  "references",
)
# Marks of references, figures and formulas inside sentences.
_MARKS: Final = ("xref", "fn", "graphic")
_EMPTY_BRACKETS: Final = re.compile(r"\s?[\[(][\s,;–-]*[\])]")
SUFFIXES: Final = (".nxml", ".xml")


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of one chapter.

  Raises:
    CorpusError: truncated, no XML, or no chapter.
  """
  with open_bytes(file) as stream:
    root = None
    for _, element in events(stream, str(file)):
      root = element if root is None else root
  assert root is not None
  title = _chapter_title(root)
  body = next((e for e in root.iter() if local(e) == "body"), None)
  if not title or body is None:
    raise CorpusError(f"{file} has no title and body; it is no chapter.")
  url = _url(root)
  number = 0
  for heading, lines in _sections(body, title):
    for text in lines:
      yield Piece(
        name=f"{file.stem}_{number}", title=heading, text=text, url=url
      )
      number += 1


def _chapter_title(root: ET.Element) -> str:
  """Of the chapter, which stands after the book's own where that is given."""
  meta = next((e for e in root.iter() if local(e) == "book-part-meta"), root)
  named = [e for e in meta.iter() if local(e) == "title"]
  named = named or [e for e in meta.iter() if local(e) == "article-title"]
  return text_of(named[0], without=_MARKS) if named else ""


def _url(root: ET.Element) -> str:
  for element in root.iter():
    if local(element) == "book-part-id":
      found = text_of(element)
      if found.startswith("NBK"):
        return f"https://www.ncbi.nlm.nih.gov/books/{found}/"
  return ""


def _sections(
  section: ET.Element, heading: str
) -> Iterator[tuple[str, list[str]]]:
  """Headings with the texts under them, in the order of the page."""
  own, lines = heading, []
  for part in section:
    name = local(part)
    if name == "sec":
      yield own, cut(lines)
      lines = []
      title = text_of(child(part, "title"), without=_MARKS)
      if title.lower().strip(" :.") not in NOT_READ:
        yield from _sections(part, f"{heading} -- {title}" if title else own)
    elif name == "p" and (bold := _bold_alone(part)):
      yield own, cut(lines)
      lines = []
      own = f"{heading} -- {bold}"
    else:
      lines += _lines(part)
  yield own, cut(lines)


def _bold_alone(paragraph: ET.Element) -> str:
  """The words of a paragraph that is nothing but bold, else ""."""
  bold = children(paragraph, "b", "bold")
  if len(bold) != 1 or len(paragraph) != 1 or tidy(paragraph.text or ""):
    return ""
  return (
    "" if tidy(bold[0].tail or "").strip(":") else _text(bold[0]).strip(":")
  )


def _lines(part: ET.Element) -> list[str]:
  """Lines of text in a paragraph, list, table or box."""
  name = local(part)
  if name == "p":
    inner = [*_nearest(part, "list"), *_nearest(part, "table-wrap")]
    if not inner:
      return [text] if (text := _text(part)) else []
    head = _text(part, without=("list", "table-wrap"))
    return [*([head] if head else []), *(t for e in inner for t in _lines(e))]
  if name == "list":
    items = _items(part, "")
    whole = "\n".join(items)
    return [whole] if len(whole) <= MOST else items
  if name in ("table-wrap", "table"):
    return _table(part)
  if name in ("title", "label", "fig", ""):
    return []
  return [line for inner in part for line in _lines(inner)]


def _items(listed: ET.Element, indent: str) -> list[str]:
  """One line an item, those of lists within it further in."""
  made = []
  for item in children(listed, "list-item"):
    text = _text(item, without=("list",))
    made += [f"{indent}- {text}"] if text else []
    for inner in _nearest(item, "list"):
      made += _items(inner, f"{indent}  ")
  return made


def _nearest(element: ET.Element, name: str) -> Iterator[ET.Element]:
  """Elements of a name inside another, none inside one of these."""
  for inner in element:
    if local(inner) == name:
      yield inner
    else:
      yield from _nearest(inner, name)


def _table(part: ET.Element) -> list[str]:
  caption = next((e for e in part.iter() if local(e) == "caption"), None)
  rows = [text_of(caption, without=_MARKS)] if caption is not None else []
  for row in part.iter():
    if local(row) == "tr":
      cells = [_text(cell) for cell in children(row, "td", "th")]
      rows.append(" | ".join(cells))
  return ["\n".join(filter(None, rows))] if any(rows) else []


def _text(element: ET.Element, *, without: tuple[str, ...] = ()) -> str:
  text = text_of(element, without=(*_MARKS, *without))
  return _EMPTY_BRACKETS.sub("", text)
