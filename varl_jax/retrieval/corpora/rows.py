"""Tables of texts: JSON lines, one JSON object, CSV; read row by row."""

import csv
import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from varl_jax.retrieval.corpora.files import CorpusError, open_bytes

_BLOCK: Final = 1 << 20


def json_lines(file: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
  """Objects with the number of their line; empty lines are passed over.

  Raises:
    CorpusError: a line is no JSON object.
  """
  with open_bytes(file) as stream:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
    for number, line in enumerate(_decoded(text, file), 1):
      if not line.strip():
        continue
      try:
        row = json.loads(line)
      except ValueError as error:
        ended = "" if line.endswith("\n") else "; the file may be truncated"
        raise CorpusError(
          f"{file}:{number} is no JSON ({error}){ended}."
        ) from error
      if not isinstance(row, dict):
        raise CorpusError(f"{file}:{number} is no JSON object.")
      yield number, row
    text.detach()


def _decoded(text: io.TextIOWrapper, file: pathlib.Path) -> Iterator[str]:
  try:
    yield from text
  except UnicodeDecodeError as error:
    raise CorpusError(
      f"{file} is not UTF-8 ({error}); convert it first."
    ) from error


def json_members(file: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Members of the one object in a file, without holding the file.

  Raises:
    CorpusError: truncated or no JSON object.
  """
  decoder = json.JSONDecoder()
  with open_bytes(file) as stream:
    text = io.TextIOWrapper(stream, encoding="utf-8")
    held = text.read(_BLOCK).lstrip("\ufeff").lstrip()
    if not held.startswith("{"):
      raise CorpusError(f"{file} is no JSON object.")
    held = held[1:]
    while True:
      held = held.lstrip(" \t\r\n,")
      if held.startswith("}"):
        break
      try:
        key, end = decoder.raw_decode(held)
        rest = held[end:].lstrip()
        if not rest.startswith(":"):
          raise ValueError("no colon")
        rest = rest[1:].lstrip()
        value, end = decoder.raw_decode(rest)
        if not rest[end:]:
          raise ValueError("a value may go on")
        held = rest[end:]
      except ValueError as error:
        more = text.read(_BLOCK)
        if not more:
          raise CorpusError(
            f"{file} is truncated or no JSON ({error}); fetch it again."
          ) from error
        held += more
        continue
      yield str(key), value
    text.detach()


def csv_rows(file: pathlib.Path) -> Iterator[tuple[int, dict[str, str]]]:
  """Rows by the names in the first line, with the number of their last line.

  Raises:
    CorpusError: a row has more or fewer cells than the first line.
  """
  with open_bytes(file) as stream:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    table = csv.DictReader(_decoded(text, file), strict=True)
    try:
      for row in table:
        if None in row or None in row.values():
          raise CorpusError(
            f"{file}:{table.line_num} has other columns than the first line;"
            " the file may be truncated."
          )
        yield table.line_num, {k.strip(): v for k, v in row.items()}
    except csv.Error as error:
      raise CorpusError(
        f"{file}:{table.line_num} is no CSV ({error}); the file may be"
        " truncated."
      ) from error
    text.detach()
