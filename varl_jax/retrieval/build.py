"""Builds an index of reference texts.

    python -m varl_jax.retrieval.build --source icd10cm --path tabular.xml \
        --index indexes/clinical

One call a source; all sources share an index. Files that are done are not read
again, so the same command goes on after an interruption. A damaged file is
named and adds nothing; the others are still built.

Exit codes: 0 done, 1 some files could not be read, 2 wrong input,
130 interrupted (go on with the same command).
"""

import argparse
import dataclasses
import itertools
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from varl_jax.retrieval.build_log import BuildLog, fingerprint
from varl_jax.retrieval.corpora import SOURCES, Source
from varl_jax.retrieval.corpora.files import CorpusError, find_files
from varl_jax.retrieval.opening import ENCODERS_HELP, make_embedder, open_writer
from varl_jax.retrieval.passage import Passage, RetrievalError

BATCH: Final = 512
DONE, DAMAGED, WRONG, INTERRUPTED = 0, 1, 2, 130
_REPORT_EVERY_S: Final = 2.0


class _Writer(Protocol):
  """What a build needs of an index's writer."""

  def put(self, passages: Sequence[Passage]) -> None: ...
  def delete(self, passage_ids: Any) -> int: ...
  def delete_source(self, source: str) -> int: ...
  def counts(self) -> dict[str, int]: ...
  def publish(self) -> None: ...
  def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What a build did.

  Attributes:
    passages: put by this call.
    files: read to their end by this call.
    skipped: done by an earlier call.
    problems: one sentence a file that could not be read.
    counts: passages a source, of the whole index.
  """

  passages: int
  files: int
  skipped: int
  problems: tuple[str, ...]
  counts: dict[str, int]


def build(
  source: Source,
  path: pathlib.Path,
  writer: _Writer,
  log: BuildLog,
  *,
  say: Any = print,
) -> Outcome:
  """Puts the passages of all files of a source into an index and publishes.

  Raises:
    CorpusError: there is no such path or no file of the source in it.
    RetrievalError: the index cannot be written, or a file that is already in
      it has changed.
  """
  passages = done = skipped = 0
  problems: list[str] = []
  files = find_files(path, source.suffixes)
  for number, file in enumerate(files, 1):
    try:
      mark = fingerprint(file)
      known = log.known(source.name, file)
      if known is not None and known.mark != mark:
        raise RetrievalError(
          f"{file} has changed since it was indexed; build {source.name} anew"
          " with --replace."
        )
      if known is not None and known.complete:
        skipped += 1
        continue
      before = 0 if known is None else known.passages
      label = f"{source.name} {number}/{len(files)} {file.name}"
      found = _one_file(source, file, mark, writer, log, before, label, say)
    except CorpusError as error:
      problems.append(str(error))
      say(f"varl_jax: {error}")
      continue
    passages += found
    done += 1
  writer.publish()
  return Outcome(
    passages=passages,
    files=done,
    skipped=skipped,
    problems=tuple(problems),
    counts=writer.counts(),
  )


def _one_file(
  source: Source,
  file: pathlib.Path,
  mark: str,
  writer: _Writer,
  log: BuildLog,
  before: int,
  label: str,
  say: Any,
) -> int:
  """Puts what is left of a file; a damaged one is taken back out."""
  ids: list[str] = []
  count = 0
  said = time.monotonic()
  try:
    for batch in _batches(source.passages(file)):
      count += len(batch)
      ids += [passage.passage_id for passage in batch]
      if count <= before:
        continue
      writer.put(batch)
      log.note(source.name, file, mark=mark, passages=count, complete=False)
      if time.monotonic() - said > _REPORT_EVERY_S:
        said = time.monotonic()
        say(f"{label}: {count} passages")
  except CorpusError:
    writer.delete(ids)
    log.forget(source.name, file)
    raise
  log.note(source.name, file, mark=mark, passages=count, complete=True)
  say(f"{label}: {count} passages, done")
  return max(0, count - before)


def _batches(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
  while batch := list(itertools.islice(passages, BATCH)):
    yield batch


def main(argv: Sequence[str] | None = None) -> int:
  """Parses, builds, reports; returns the exit code."""
  args = _parser().parse_args(argv)
  try:
    source = dataclasses.replace(
      SOURCES[args.source],
      **{
        key: value
        for key in ("licence", "attribution")
        if (value := getattr(args, key))
      },
    )
    embedder = make_embedder(args.encoder)
    writer = open_writer(
      args.index,
      embedder=embedder,
      lexicon=args.lexicon,
      engine=args.engine,
      uri=args.milvus_uri,
    )
    try:
      log = BuildLog(pathlib.Path(args.index))
      if args.replace:
        removed = writer.delete_source(source.name)
        log.forget_source(source.name)
        print(f"{source.name}: {removed} passages removed")
      outcome = build(source, pathlib.Path(args.path), writer, log)
      log.close()
    finally:
      writer.close()
  except (RetrievalError, CorpusError) as error:
    return _refuse(str(error))
  except KeyboardInterrupt:
    _refuse("Interrupted; the same command goes on from here.")
    return INTERRUPTED
  return _report(source, outcome)


def _report(source: Source, outcome: Outcome) -> int:
  print(
    f"{source.name}: {outcome.passages} passages from {outcome.files} files"
    f" ({outcome.skipped} done before, {len(outcome.problems)} unreadable)."
    f" Licence: {source.licence or 'not stated'}."
  )
  total = ", ".join(f"{name} {n}" for name, n in sorted(outcome.counts.items()))
  print(f"The index holds: {total or 'nothing'}.")
  return DAMAGED if outcome.problems else DONE


def _refuse(sentence: str) -> int:
  print(f"varl_jax: {sentence}", file=sys.stderr)
  return WRONG


def _parser() -> argparse.ArgumentParser:
  made = argparse.ArgumentParser(
    prog="python -m varl_jax.retrieval.build",
    description="Builds an index of reference texts.",
  )
  made.add_argument("--source", required=True, choices=sorted(SOURCES))
  made.add_argument(
    "--path", required=True, help="file or folder of the source"
  )
  made.add_argument("--index", required=True, help="folder of the index")
  made.add_argument(
    "--engine",
    default="",
    choices=("", "local", "milvus"),
    help="what holds a new index; local where it is not said",
  )
  made.add_argument(
    "--milvus-uri", default="", help="of a server; '' for a file in the folder"
  )
  made.add_argument("--encoder", default="", help=ENCODERS_HELP)
  made.add_argument(
    "--lexicon", default="clinical", help="word table; '' for none"
  )
  made.add_argument("--licence", default="", help="in place of the source's")
  made.add_argument("--attribution", default="", help="likewise")
  made.add_argument(
    "--replace", action="store_true", help="remove the source's passages first"
  )
  return made


if __name__ == "__main__":
  sys.exit(main())
