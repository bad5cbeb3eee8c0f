"""PubMedQA: abstracts with the question their authors answered."""

import pathlib
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import CorpusError
from varl_jax.retrieval.corpora.markup import tidy
from varl_jax.retrieval.corpora.piece import Piece
from varl_jax.retrieval.corpora.rows import json_members

SUFFIXES: Final = (".json",)


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """One passage a question: its abstract by parts, then the conclusion.

  Raises:
    CorpusError: truncated, no JSON, or of another shape.
  """
  for pmid, entry in json_members(file):
    try:
      parts = zip(entry["LABELS"], entry["CONTEXTS"], strict=True)
      lines = [f"{label}: {tidy(text)}" for label, text in parts]
      question = tidy(entry["QUESTION"])
      answer = tidy(entry["LONG_ANSWER"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      raise CorpusError(
        f"{file}: entry {pmid} lacks what PubMedQA has ({error!r})."
      ) from error
    yield Piece(
      name=pmid,
      title=question,
      text="\n".join([*lines, f"CONCLUSION: {answer}"]),
      url=f"https://pubmed.ncbi.nlm.nih.gov/{pmid}/",
    )
