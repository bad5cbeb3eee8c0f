"""PMC-VQA: captions of figures; the questions about them are left out."""

import pathlib
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import CorpusError
from varl_jax.retrieval.corpora.markup import tidy
from varl_jax.retrieval.corpora.piece import Piece
from varl_jax.retrieval.corpora.rows import csv_rows

SUFFIXES: Final = (".csv", ".csv.gz")


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """One passage a figure, however many questions it has.

  Raises:
    CorpusError: a row is damaged, or the columns are others.
  """
  seen: set[str] = set()
  for number, row in csv_rows(file):
    figure, caption = row.get("Figure_path"), row.get("Caption")
    if figure is None or caption is None:
      raise CorpusError(
        f"{file}:{number} has no Figure_path and Caption; it is no PMC-VQA."
      )
    text = tidy(caption)
    if text and figure not in seen:
      seen.add(figure)
      yield Piece(name=figure, title="Figure caption", text=text)
