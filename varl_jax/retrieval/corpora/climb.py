"""CLIMB, where it holds text: reports and captions in JSON lines or CSV.

Most of that collection is images and signals, parts of it under a data use
agreement. What is read here are tables with a column of text (COLUMNS).
"""

import pathlib
from collections.abc import Iterator
from typing import Any, Final

from varl_jax.retrieval.corpora.files import CorpusError
from varl_jax.retrieval.corpora.markup import tidy
from varl_jax.retrieval.corpora.piece import Piece, cut
from varl_jax.retrieval.corpora.rows import csv_rows, json_lines

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
COLUMNS: Final = (
  "report",
  "findings",
  "impression",
  "text",
  "caption",
  "description",
)
_NAMES: Final = ("id", "study_id", "image_id", "path")


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """Passages of the rows that have text.

  Raises:
    CorpusError: a row is damaged, or no column holds text.
  """
  wordy = file.name.lower().removesuffix(".gz").endswith(".jsonl")
  rows: Iterator[tuple[int, Any]] = (
    json_lines(file) if wordy else csv_rows(file)
  )
  columns: set[str] = set()
  found = False
  for number, row in rows:
    lowered = {str(key).lower(): value for key, value in row.items()}
    columns |= set(lowered)
    name = next((str(lowered[n]) for n in _NAMES if lowered.get(n)), "")
    lines = [
      f"{column.capitalize()}: {tidy(value)}"
      for column in COLUMNS
      if isinstance(value := lowered.get(column), str) and value.strip()
    ]
    for part, text in enumerate(cut(lines)):
      found = True
      yield Piece(
        name=f"{file.stem}_{name or number}_{part}", title=name, text=text
      )
  if not found:
    raise CorpusError(
      f"{file} has no text in {', '.join(COLUMNS)}; its columns are"
      f" {', '.join(sorted(columns)) or 'none'}."
    )
