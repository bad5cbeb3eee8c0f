"""A user's own texts: JSON lines, Markdown, plain text and PDF in a folder."""

import pathlib
import re
from collections.abc import Iterator
from typing import Any, Final

from varl_jax.retrieval.corpora.files import CorpusError, open_bytes
from varl_jax.retrieval.corpora.markup import tidy
from varl_jax.retrieval.corpora.piece import MOST, Piece, cut
from varl_jax.retrieval.corpora.rows import json_lines

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".md", ".markdown", ".txt", ".pdf")
_HEADING: Final = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_TEXTS: Final = ("text", "content", "contents")


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of one file, by its ending.

  Raises:
    CorpusError: damaged, without text, or an encrypted PDF.
  """
  name = file.name.lower().removesuffix(".gz")
  if name.endswith(".jsonl"):
    return _lines(file)
  if name.endswith(".pdf"):
    return _pdf(file)
  return _markdown(file, headings=not name.endswith(".txt"))


def _lines(file: pathlib.Path) -> Iterator[Piece]:
  for number, row in json_lines(file):
    text = next((row[key] for key in _TEXTS if row.get(key)), None)
    if not isinstance(text, str):
      raise CorpusError(
        f"{file}:{number} has no text; give each line text, and if you have"
        " them id, title and url."
      )
    name = str(row.get("id") or f"{file.stem}_{number}")
    parts = cut(map(tidy, text.splitlines()), short=MOST)
    for part, piece in enumerate(parts):
      yield Piece(
        name=name if len(parts) == 1 else f"{name}_{part}",
        title=tidy(str(row.get("title", ""))),
        text=piece,
        url=str(row.get("url", "")),
      )


def _markdown(file: pathlib.Path, *, headings: bool) -> Iterator[Piece]:
  """Sections under the path of their headings."""
  with open_bytes(file) as stream:
    try:
      lines = stream.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
      raise CorpusError(
        f"{file} is not UTF-8 ({error}); convert it first."
      ) from error
  path: dict[int, str] = {}
  held: list[str] = []
  number = 0
  fenced = False
  for line in [*lines, None]:
    fenced ^= bool(line is not None and headings and _FENCE.match(line))
    heading = _HEADING.match(line) if line and headings and not fenced else None
    if line is not None and heading is None:
      held.append(line)
      continue
    title = " -- ".join(path[level] for level in sorted(path)) or file.stem
    for text in cut(_paragraphs(held), short=MOST):
      yield Piece(name=f"{file.name}_{number}", title=title, text=text)
      number += 1
    held = []
    if heading is not None:
      level = len(heading[1])
      path = {k: v for k, v in path.items() if k < level}
      path[level] = tidy(heading[2])


def _paragraphs(lines: list[str]) -> list[str]:
  """Runs of lines between empty ones, a list's items on lines of their own."""
  made = [""]
  for line in lines:
    if not line.strip():
      made.append("")
    elif made[-1] and line.lstrip()[:2] not in ("- ", "* ", "+ ", "| "):
      made[-1] += f" {tidy(line)}"
    else:
      made[-1] += f"\n{tidy(line)}" if made[-1] else tidy(line)
  return [text for text in made if text]


def _pdf(file: pathlib.Path) -> Iterator[Piece]:
  try:
    import pypdf
    import pypdf.errors
  except ModuleNotFoundError as error:
    raise CorpusError(
      f"{file} needs pypdf; pip install -e '.[retrieval]'."
    ) from error
  with open_bytes(file) as stream:
    found = False
    try:
      reader = pypdf.PdfReader(stream)
      if reader.is_encrypted and not reader.decrypt(""):
        raise CorpusError(f"{file} is encrypted; decrypt it first.")
      title = _pdf_title(reader.metadata) or file.stem
      for number, page in enumerate(reader.pages, 1):
        lines = _unbroken(page.extract_text())
        for part, text in enumerate(cut(lines, short=MOST)):
          found = True
          yield Piece(
            name=f"{file.name}_{number}_{part}",
            title=f"{title} -- page {number}",
            text=text,
          )
    except pypdf.errors.PyPdfError as error:
      raise CorpusError(
        f"{file} is truncated or no PDF ({error}); fetch it again."
      ) from error
  if not found:
    raise CorpusError(
      f"{file} holds no text, only pictures of it; run it through OCR first."
    )


def _pdf_title(metadata: Any) -> str:
  """As its author set it, which few do."""
  return tidy(str(metadata.title or "")) if metadata is not None else ""


def _unbroken(text: str) -> list[str]:
  """Paragraphs of a page: line ends inside sentences are undone."""
  joined = re.sub(r"(\w)-\n(?=[a-z])", r"\1", text)
  return [tidy(part) for part in re.split(r"\n\s*\n", joined) if part.strip()]
