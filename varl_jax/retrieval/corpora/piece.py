"""What a parser yields, and how long texts are cut into it."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

# Characters, as MedRAG cuts StatPearls: shorter pieces join the one before
# them while the sum stays within MOST.
SHORT: Final = 200
MOST: Final = 1000
_SENTENCE: Final = re.compile(r"(?<=[.!?;])\s+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
  """A passage before it has an index.

  Attributes:
    name: unique in its source and the same at every reading of the file.
    title: of page and section.
    text: without markup.
    url: of the page, "" when unknown.
    keys: see `passage.Passage`.
  """

  name: str
  title: str
  text: str
  url: str = ""
  keys: tuple[str, ...] = ()


def cut(lines: Iterable[str], *, short: int = SHORT) -> list[str]:
  """Lines to passages; nothing is dropped.

  A line under `short` characters joins the one before while both stay within
  MOST; a line over MOST is cut between sentences.
  """
  made: list[str] = []
  for line in lines:
    for part in _sentences(line):
      joined = len(made[-1]) + 1 + len(part) if made else MOST + 1
      if joined <= MOST and (len(part) < short or len(made[-1]) < short):
        made[-1] += f"\n{part}"
      else:
        made.append(part)
  return made


def _sentences(line: str) -> list[str]:
  """The line, or runs of its sentences (then words) of at most MOST."""
  if len(line) <= MOST:
    return [line] if line else []
  runs = [""]
  for sentence in _SENTENCE.split(line):
    units = [sentence] if len(sentence) <= MOST else sentence.split()
    for whole in units:
      for unit in [whole[i : i + MOST] for i in range(0, len(whole), MOST)]:
        if runs[-1] and len(runs[-1]) + 1 + len(unit) > MOST:
          runs.append("")
        runs[-1] = f"{runs[-1]} {unit}".strip()
  return [run for run in runs if run]
