"""A results folder: answers and verdicts saved as they come, then results.

    settings.json   what decides the results; another setting is refused
    answers.jsonl   one answer a line
    verdicts.jsonl  one verdict a line
    calls.sqlite    every paid call, so that none is paid twice
    results.json    written at the end
    report.html     likewise

Lines are appended whole; one that a crash cut is dropped at the next start.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, Final

from varl_jax.benchmarks import data
from varl_jax.benchmarks.answering import Answer
from varl_jax.benchmarks.protocol import BenchmarkError
from varl_jax.types import Verdict, from_json, to_json

SETTINGS: Final = "settings.json"
ANSWERS: Final = "answers.jsonl"
VERDICTS: Final = "verdicts.jsonl"
CALLS: Final = "calls.sqlite"
RESULTS: Final = "results.json"

# (task_id, sample).
Key = tuple[str, int]


def answer_mark(answer: str | None) -> str:
  """Names an answer's text in rows about it."""
  if answer is None:
    return ""
  text = answer.encode("utf-8", "surrogatepass")
  return hashlib.sha256(text).hexdigest()[:16]


class Lines:
  """JSON lines that are appended and read back."""

  def __init__(self, path: pathlib.Path):
    """Opens or creates the file and reads it; a cut last line is dropped.

    Raises:
      BenchmarkError: a line before the last is damaged, or it cannot be opened.
    """
    self._path = path
    try:
      self.rows, sound = read_lines(path)
      self._file = open(path, "ab", buffering=0)
      if self._file.tell() > sound:
        os.ftruncate(self._file.fileno(), sound)
    except OSError as error:
      raise BenchmarkError(
        f"{path} cannot be opened ({error.strerror or error})."
      ) from error

  def append(self, rows: list[dict[str, Any]], *, sync: bool = False) -> None:
    """Writes rows; with `sync` they are on the disk when this returns.

    Raises:
      BenchmarkError: they could not be written whole; none of them is kept.
    """
    # ensure_ascii also writes halves of characters, which UTF-8 cannot.
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    start = os.fstat(self._file.fileno()).st_size
    try:
      if self._file.write(lines) != len(lines):
        raise OSError("the disk is full")
      if sync:
        os.fsync(self._file.fileno())
    except OSError as error:
      os.ftruncate(self._file.fileno(), start)
      raise BenchmarkError(
        f"{self._path} cannot be written ({error.strerror or error}); free some"
        " space and give the same command again."
      ) from error

  def close(self) -> None:
    """Puts everything on the disk; harmless when repeated."""
    if not self._file.closed:
      os.fsync(self._file.fileno())
      self._file.close()


def read_lines(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
  """Rows of a file, and the number of bytes that hold them.

  Raises:
    BenchmarkError: a line before the last is damaged.
  """
  content = path.read_bytes() if path.exists() else b""
  rows: list[dict[str, Any]] = []
  sound = 0
  for number, line in enumerate(content.splitlines(keepends=True), 1):
    try:
      row = json.loads(line)
      whole = line.endswith(b"\n") and isinstance(row, dict)
    except ValueError:
      whole = False
    if not whole:
      if sound + len(line) < len(content):
        raise BenchmarkError(
          f"Line {number} of {path} is damaged; restore the file, or remove it"
          " to make its rows again."
        )
      break
    rows.append(row)
    sound += len(line)
  return rows, sound


def claim(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
  """Makes the folder these settings', or checks that it is.

  Raises:
    BenchmarkError: it holds results under other settings; names one.
  """
  path = folder / SETTINGS
  wanted = json.loads(json.dumps(settings))
  if path.exists():
    found = read_json(path)
    different = _first_difference(found, wanted)
    if different:
      raise BenchmarkError(
        f"{folder} holds results with {different}; choose another --workdir or"
        " remove the folder."
      )
    return
  write_json(path, wanted)


def _first_difference(
  found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> str:
  for key in sorted({*found, *wanted}):
    old, new = found.get(key), wanted.get(key)
    if old == new:
      continue
    if isinstance(old, Mapping) and isinstance(new, Mapping):
      return f"{key}.{_first_difference(old, new)}"
    return f"{key} {old!r:.80} instead of {new!r:.80}"
  return ""


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object.

  Raises:
    BenchmarkError: there is none.
  """
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise BenchmarkError(f"{path} cannot be read ({error}).") from error
  if not isinstance(found, dict):
    raise BenchmarkError(f"{path} holds no JSON object.")
  return found


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes a small file so that it is never seen half-written."""
  draft = path.with_name(f"{path.name}.draft")
  text = json.dumps(value, indent=2, allow_nan=False)
  draft.write_text(text + "\n", encoding="utf-8")
  os.replace(draft, path)


def read_answers(rows: list[dict[str, Any]]) -> dict[Key, Answer]:
  """Saved answers; the last of a task's sample counts.

  Raises:
    BenchmarkError: a row is no answer.
  """
  try:
    found = [from_json(Answer, row) for row in rows]
  except (ValueError, TypeError) as error:
    raise BenchmarkError(
      f"{ANSWERS} holds a row of another form: {error}"
    ) from error
  return {(one.task_id, one.sample): one for one in found}


def verdict_row(
  key: Key, criterion: int, answer: str, verdict: Verdict
) -> dict[str, Any]:
  """One line of `verdicts.jsonl`."""
  return {
    "task_id": key[0],
    "sample": key[1],
    "criterion": criterion,
    "answer": answer_mark(answer),
    **to_json(verdict),
  }


def read_verdicts(
  rows: list[dict[str, Any]],
) -> dict[Key, dict[int, tuple[str, Verdict]]]:
  """Saved verdicts by criterion, each with the mark of the answer it is on.

  Raises:
    BenchmarkError: a row is no verdict.
  """
  found: dict[Key, dict[int, tuple[str, Verdict]]] = {}
  try:
    for row in rows:
      rest = dict(row)
      key = (rest.pop("task_id"), rest.pop("sample"))
      index, mark = rest.pop("criterion"), rest.pop("answer")
      found.setdefault(key, {})[index] = (mark, from_json(Verdict, rest))
  except (KeyError, ValueError, TypeError) as error:
    raise BenchmarkError(
      f"{VERDICTS} holds a row of another form: {error!r}."
    ) from error
  return found


def import_answers(
  path: pathlib.Path,
  task_ids: Collection[str],
  *,
  samples: int,
  rows: list[dict[str, Any]] | None = None,
) -> dict[Key, Answer]:
  """Answers of a file, or of a results folder, to be graded here.

  A row holds `task_id`, `answer` (null for none) and perhaps `sample`; without
  one, a task's rows count up. Other fields are kept where they are an answer's.

  Args:
    path: of the file or folder.
    task_ids: of the data.
    samples: most answers a task.
    rows: those of the file where it is none of JSON lines.

  Raises:
    BenchmarkError: a row is of another form or task, a task has more answers
      than `samples`, or there is no such file.
  """
  file = path / ANSWERS if path.is_dir() else path
  if not file.is_file():
    raise BenchmarkError(f"There are no answers at {file}.")
  if rows is None:
    rows = [row for _, row in data.read_rows(file)]
  known = set(Answer.__dataclass_fields__)
  found: dict[Key, Answer] = {}
  counts: dict[str, int] = {}
  for number, row in enumerate(rows, 1):
    if not isinstance(row, dict):
      raise BenchmarkError(f"{file}:{number} is no JSON object.")
    name = row.get("task_id")
    if not isinstance(name, str) or name not in task_ids:
      raise BenchmarkError(
        f"{file}:{number} answers the task {name!r}, which the data do not"
        " hold; give the data that were answered."
      )
    if "answer" not in row or not isinstance(row["answer"], (str, type(None))):
      raise BenchmarkError(f"{file}:{number} holds no answer (a text or null).")
    sample = row.get("sample", counts.get(name, 0))
    if type(sample) is not int or sample < 0:
      raise BenchmarkError(f"{file}:{number} has the sample {sample!r:.40}.")
    counts[name] = sample + 1
    if sample >= samples or (name, sample) in found:
      raise BenchmarkError(
        f"{file}:{number} is one more answer to {name!r} than --samples="
        f"{samples}."
      )
    fields = {key: row[key] for key in known & set(row)}
    fields["sample"] = sample
    found[name, sample] = from_json(Answer, fields)
  return found
