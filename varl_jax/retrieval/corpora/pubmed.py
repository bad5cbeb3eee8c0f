"""PubMed's baseline and update files: abstracts with their titles.

Records without an abstract, about half of the older ones, give no passage.
"""

import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final

from varl_jax.retrieval.corpora.files import open_bytes
from varl_jax.retrieval.corpora.markup import child, children, records, text_of
from varl_jax.retrieval.corpora.piece import Piece

SUFFIXES: Final = (".xml", ".xml.gz")
# A label that says there is none.
_UNLABELLED: Final = "UNLABELLED"


def parse(file: pathlib.Path) -> Iterator[Piece]:
  """One passage an abstract, whole, its labelled parts on lines.

  Raises:
    CorpusError: truncated or no XML.
  """
  with open_bytes(file) as stream:
    for record in records(stream, str(file), "PubmedArticle"):
      citation = child(record, "MedlineCitation")
      article = child(citation, "Article")
      text = "\n".join(_abstract(child(article, "Abstract")))
      if not text:
        continue
      pmid = text_of(child(citation, "PMID"))
      title = text_of(child(article, "ArticleTitle")) or text_of(
        child(article, "VernacularTitle")
      )
      yield Piece(
        name=pmid,
        title=title,
        text="\n".join(filter(None, [text, _published(article)])),
        url=f"https://pubmed.ncbi.nlm.nih.gov/{pmid}/",
        keys=(f"{title}\n{text}\n{'; '.join(_headings(citation))}",),
      )


def _abstract(abstract: ET.Element | None) -> list[str]:
  lines = []
  for part in (
    children(abstract, "AbstractText") if abstract is not None else ()
  ):
    text = text_of(part)
    label = part.get("Label", "")
    named = label and label.upper() != _UNLABELLED
    lines += [f"{label}: {text}" if named else text] if text else []
  return lines


def _published(article: ET.Element | None) -> str:
  """Journal and year."""
  journal = child(article, "Journal")
  date = child(journal, "JournalIssue", "PubDate")
  year = text_of(child(date, "Year")) or text_of(child(date, "MedlineDate"))
  name = text_of(child(journal, "Title"))
  return f"({', '.join(filter(None, [name, year]))})" if name or year else ""


def _headings(citation: ET.Element | None) -> list[str]:
  listed = child(citation, "MeshHeadingList")
  if listed is None:
    return []
  return [text_of(child(h, "DescriptorName")) for h in listed]
