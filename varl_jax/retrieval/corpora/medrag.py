"""MedRAG's corpora: JSON lines of chunks that are already cut."""

import pathlib
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import CorpusError
from varl_jax.retrieval.corpora.markup import tidy
from varl_jax.retrieval.corpora.piece import Piece
from varl_jax.retrieval.corpora.rows import json_lines

SUFFIXES: Final = (".jsonl", ".jsonl.gz")


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """One passage a line, under the line's own id.

  Raises:
    CorpusError: a line is damaged or lacks id or content.
  """
  for number, row in json_lines(file):
    name, text = row.get("id"), row.get("content") or row.get("contents")
    if not name or not isinstance(text, str):
      raise CorpusError(
        f"{file}:{number} has no id and content; it is no chunk of MedRAG."
      )
    if text.strip():
      yield Piece(
        name=str(name), title=tidy(str(row.get("title", ""))), text=text.strip()
      )
