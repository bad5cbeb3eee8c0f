"""XML read as a stream, namespaces aside, and text taken out of markup."""

import html.entities
import html.parser
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator
from typing import IO, Final

from varl_jax.retrieval.corpora.files import CorpusError

_SPACE: Final = re.compile(r"\s+")
_BEFORE_POINT: Final = re.compile(r"\s+([,.;:!?)\]])")
# Elements of HTML that end a line of text.
_BLOCKS: Final = frozenset(
  "p div li ul ol h1 h2 h3 h4 h5 h6 br tr table section blockquote".split()
)
# Elements of other formats that do not run on into the words beside them.
_APART: Final = frozenset(
  "br break caption p paragraph item list list-item td th title".split()
)
# Elements whose content is no text.
_UNREAD: Final = frozenset(("script", "style"))


def tidy(text: str) -> str:
  """One line: white space runs become one blank."""
  return _SPACE.sub(" ", text).strip()


def local(element: ET.Element) -> str:
  """An element's tag without its namespace; "" for comments."""
  tag = element.tag
  return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def children(element: ET.Element, *names: str) -> list[ET.Element]:
  """Children of these names, in order, whatever their namespace."""
  return [child for child in element if local(child) in names]


def child(element: ET.Element | None, *path: str) -> ET.Element | None:
  """The first element down a path of names, None when there is none."""
  for name in path:
    if element is None:
      return None
    element = next((e for e in element if local(e) == name), None)
  return element


def text_of(
  element: ET.Element | None, *, without: Collection[str] = ()
) -> str:
  """All text inside an element in order, on one line.

  Args:
    element: None gives "".
    without: names of elements whose text is left out; what follows them stays.
  """
  if element is None:
    return ""
  pieces: list[str] = []
  _gather(element, without, pieces)
  return _BEFORE_POINT.sub(r"\1", tidy("".join(pieces)))


def _gather(
  element: ET.Element, without: Collection[str], pieces: list[str]
) -> None:
  pieces.append(element.text or "")
  for inner in element:
    name = local(inner)
    if name and name not in without:
      gap = " " if name in _APART else ""
      pieces.append(gap)
      _gather(inner, without, pieces)
      pieces.append(gap)
    pieces.append(inner.tail or "")


def events(stream: IO[bytes], name: str) -> Iterator[tuple[str, ET.Element]]:
  """Start and end events of a document; clear elements to keep memory flat.

  Entities of HTML are known; nothing outside the document is ever read.

  Raises:
    CorpusError: truncated or malformed, with the line.
  """
  parser = ET.XMLParser()
  parser.entity.update(html.entities.entitydefs)
  try:
    yield from ET.iterparse(stream, ("start", "end"), parser)
  except ET.ParseError as error:
    raise CorpusError(
      f"{name} is truncated or no XML ({error}); fetch it again."
    ) from error


def records(stream: IO[bytes], name: str, tag: str) -> Iterator[ET.Element]:
  """Elements of a tag, whole, one after the other; none inside another.

  Raises:
    CorpusError: see `events`.
  """
  depth = 0
  root = None
  for event, element in events(stream, name):
    if root is None:
      root = element
    if local(element) != tag:
      continue
    depth += 1 if event == "start" else -1
    if event == "end" and depth == 0:
      yield element
      root.clear()


class _Reader(html.parser.HTMLParser):
  """Collects the lines of an HTML text."""

  def __init__(self) -> None:
    super().__init__(convert_charrefs=True)
    self.lines: list[str] = [""]
    self._unread = 0

  def handle_starttag(self, tag: str, attrs: object) -> None:
    if tag in _UNREAD:
      self._unread += 1
    if tag in _BLOCKS:
      self.lines.append("")

  def handle_endtag(self, tag: str) -> None:
    if tag in _UNREAD:
      self._unread = max(0, self._unread - 1)
    if tag in _BLOCKS:
      self.lines.append("")

  def handle_data(self, data: str) -> None:
    if not self._unread:
      self.lines[-1] += data


def html_lines(text: str) -> list[str]:
  """The lines of text in a piece of HTML, markup and entities resolved."""
  reader = _Reader()
  reader.feed(text)
  reader.close()
  return [line for raw in reader.lines if (line := tidy(raw))]
