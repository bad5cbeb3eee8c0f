"""A table as data, in Markdown and in JSON."""

import dataclasses
import string
from collections.abc import Sequence
from typing import Any

from experiments.saved import Cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """One table.

  Attributes:
    number: the paper's.
    title: what it shows.
    note: what a reader has to know; "" for nothing.
    columns: heads, the first one of the rows' names.
    rows: a name, then cells or texts, one a column.
    percent: whether numbers are shares, shown as per cent.
  """

  number: int
  title: str
  note: str = ""
  columns: Sequence[str]
  rows: Sequence[tuple[str, Sequence[Cell | str]]]
  percent: bool = False

  @property
  def missing(self) -> list[str]:
    """Commands that would fill the missing cells, each once."""
    cells = [cell for _, row in self.rows for cell in row]
    fills = [c.fill for c in cells if isinstance(c, Cell) and c.value is None]
    return list(dict.fromkeys(fill for fill in fills if fill))

  def markdown(self) -> str:
    """The table, the paper's numbers in brackets, missing ones lettered."""
    letters = dict(zip(self.missing, marks(len(self.missing)), strict=True))
    lines = [f"# Table {self.number}: {self.title}", ""]
    note = [self.note] if self.note else []
    if any(isinstance(c, Cell) for _, row in self.rows for c in row):
      note.append("In brackets: the paper's number, where its text gives one.")
    lines += [" ".join(note), ""] if note else []
    lines.append(f"| {' | '.join(self.columns)} |")
    lines.append("|---" * len(self.columns) + "|")
    for name, row in self.rows:
      cells = [self._text(cell, letters) for cell in row]
      lines.append(f"| {' | '.join([name, *cells])} |")
    if letters:
      lines += ["", "Missing, and the run that would fill it:", ""]
      lines += [f"- {mark}: `{fill}`" for fill, mark in letters.items()]
    return "\n".join(lines) + "\n"

  def plain(self) -> dict[str, Any]:
    """The table as plain values."""
    return {
      "number": self.number,
      "title": self.title,
      "note": self.note,
      "columns": list(self.columns),
      "rows": [
        {
          "name": name,
          "cells": [
            dataclasses.asdict(c) if isinstance(c, Cell) else c for c in row
          ],
        }
        for name, row in self.rows
      ],
      "missing": self.missing,
    }

  def _text(self, cell: Cell | str, letters: dict[str, str]) -> str:
    if isinstance(cell, str):
      return cell
    if cell.value is None:
      shown = f"- *{letters[cell.fill]}*" if cell.fill else "-"
    else:
      shown = self._number(cell.value)
      if cell.error is not None:
        shown += f" +- {self._number(cell.error)}"
    paper = "" if cell.paper is None else f" ({self._number(cell.paper)})"
    return shown + paper

  def _number(self, value: float) -> str:
    return f"{100 * value:.0f}%" if self.percent else f"{value:.3f}"


def marks(count: int) -> list[str]:
  """a, b, ..., z, aa, ab, ..."""
  letters = string.ascii_lowercase
  single = list(letters)
  double = [one + two for one in letters for two in letters]
  return [*single, *double][:count]
