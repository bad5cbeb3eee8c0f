"""Sources of passages: what reads them, under which terms they may be used.

StatPearls and parts of CLIMB may be read but not passed on: build an index of
them for yourself and commit none of it.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Final

from varl_jax.retrieval.corpora import (
  climb,
  dailymed,
  folder,
  icd10cm,
  medlineplus,
  medrag,
  pmc_vqa,
  pubmed,
  pubmedqa,
  statpearls,
)
from varl_jax.retrieval.corpora.piece import Piece
from varl_jax.retrieval.passage import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A corpus.

  Attributes:
    name: of the source, also the first part of its passages' ids.
    parse: a file's pieces, always the same and in the same order.
    suffixes: endings of its files.
    licence: terms of use, kept with every passage.
    attribution: whom to name.
  """

  name: str
  parse: Callable[[pathlib.Path], Iterator[Piece]]
  suffixes: tuple[str, ...]
  licence: str
  attribution: str

  def passages(self, file: pathlib.Path) -> Iterator[Passage]:
    """The passages of one of its files.

    Raises:
      CorpusError: the file cannot be read as this source.
    """
    for piece in self.parse(file):
      yield Passage(
        passage_id=f"{self.name}:{piece.name}",
        source=self.name,
        title=piece.title,
        text=piece.text,
        licence=self.licence,
        attribution=self.attribution,
        url=piece.url,
        keys=piece.keys,
      )


_NLM: Final = "Terms and conditions of the US National Library of Medicine"


def _source(
  name: str, module: object, licence: str, attribution: str
) -> Source:
  return Source(
    name=name,
    parse=getattr(module, "parse"),  # noqa: B009 (modules share the shape)
    suffixes=getattr(module, "SUFFIXES"),  # noqa: B009
    licence=licence,
    attribution=attribution,
  )


SOURCES: Final = {
  source.name: source
  for source in (
    _source(
      "statpearls", statpearls, "CC BY-NC-ND 4.0", "StatPearls Publishing"
    ),
    _source("dailymed", dailymed, "US government work", "DailyMed, NLM"),
    _source(
      "medlineplus", medlineplus, "US government work", "MedlinePlus.gov, NLM"
    ),
    _source("icd10cm", icd10cm, "US government work", "ICD-10-CM, NCHS/CDC"),
    _source("pubmed", pubmed, _NLM, "PubMed, NLM; the abstract's authors"),
    _source(
      "medrag_textbooks", medrag, "as its textbooks", "MedRAG, textbooks"
    ),
    _source("medrag_pubmed", medrag, _NLM, "MedRAG; PubMed, NLM"),
    _source("medrag_wikipedia", medrag, "CC BY-SA 4.0", "Wikipedia, MedRAG"),
    _source(
      "medrag_statpearls", medrag, "CC BY-NC-ND 4.0", "StatPearls Publishing"
    ),
    _source("pubmedqa", pubmedqa, "MIT", "PubMedQA"),
    _source("pmc_vqa", pmc_vqa, "CC BY-SA", "PMC-VQA; PubMed Central"),
    _source("climb", climb, "as its parts", "CLIMB"),
    _source("folder", folder, "", ""),
  )
}
