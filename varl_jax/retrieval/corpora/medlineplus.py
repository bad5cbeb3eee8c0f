"""MedlinePlus: health topics in one XML file, English ones kept."""

import pathlib
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import open_bytes
from varl_jax.retrieval.corpora.markup import (
  child,
  children,
  html_lines,
  records,
  text_of,
)
from varl_jax.retrieval.corpora.piece import MOST, Piece, cut

SUFFIXES: Final = (".xml", ".xml.gz")
LANGUAGE: Final = "English"


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of the file's topics; a topic's other names are keys.

  Raises:
    CorpusError: truncated or no XML.
  """
  with open_bytes(file) as stream:
    for topic in records(stream, str(file), "health-topic"):
      if topic.get("language", LANGUAGE) != LANGUAGE:
        continue
      summary = child(topic, "full-summary")
      lines = html_lines(
        "".join(summary.itertext()) if summary is not None else ""
      )
      title = topic.get("title", "").strip()
      headings = [
        text_of(child(heading, "descriptor"))
        for heading in children(topic, "mesh-heading")
      ]
      names = [
        text_of(e) for e in children(topic, "also-called", "see-reference")
      ]
      names = [
        n for n in dict.fromkeys([*names, *headings]) if n and n != title
      ]
      for number, text in enumerate(cut(lines, short=MOST)):
        yield Piece(
          name=f"{topic.get('id', title)}_{number}",
          title=title,
          text=text,
          url=topic.get("url", ""),
          keys=(f"{title}\n{text}", *(names if number == 0 else ())),
        )
