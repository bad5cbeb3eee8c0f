"""A published state of a local index: files that never change again.

    index.json            recipe, counts, which snapshot is the newest
    gen-000001/
      passages.jsonl      one passage a line
      offsets.npy         int64 [N + 1], where each line begins
      sources.npy         int16 [N], positions in `sources` of index.json
      vectors.npy         float32 [N, width], with an encoder
      lexical/            see `lexical`

`index.json` is replaced in one step after all else is on the disk, so a reader
finds the old state or the new one whatever moment a writer dies at.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Final

import numpy as np

from varl_jax.retrieval.lexical import LexicalIndex, keys_of
from varl_jax.retrieval.passage import Passage, RetrievalError

MANIFEST: Final = "index.json"
FORMAT: Final = 1
LOCAL, MILVUS = "local", "milvus"
# Snapshots that stay, for readers that are just opening the one before.
_KEPT: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """What `index.json` says.

  Attributes:
    engine: what holds passages and vectors, `local` or `milvus`.
    uri: of a Milvus server, "" for a file in the index's folder.
    collection: name of the index there.
    snapshot: name of the newest snapshot's folder, "" before the first.
    encoder: the encoder's recipe, None without one.
    lexicon: name and digest of the word table.
    words: version of the word rules.
    sources: names, in the order `sources.npy` counts them.
    counts: passages a source.
  """

  engine: str = LOCAL
  uri: str = ""
  collection: str = ""
  snapshot: str = ""
  encoder: Mapping[str, Any] | None = None
  lexicon: tuple[str, str] = ("", "")
  words: int = 0
  sources: tuple[str, ...] = ()
  counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_manifest(folder: pathlib.Path) -> Manifest | None:
  """The manifest of an index, None where there is none.

  Raises:
    RetrievalError: damaged, or of another format.
  """
  path = folder / MANIFEST
  try:
    tree = json.loads(path.read_text(encoding="utf-8"))
    found = tree.pop("format")
    if found != FORMAT:
      raise RetrievalError(
        f"{path} has format {found}, this version reads {FORMAT}; build the"
        " index anew."
      )
    tree["lexicon"] = tuple(tree["lexicon"])
    tree["sources"] = tuple(tree["sources"])
    return Manifest(**tree)
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise RetrievalError(
      f"{path} is damaged ({error}); build the index anew."
    ) from error


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
  """Replaces the manifest in one step."""
  tree = {"format": FORMAT, **dataclasses.asdict(manifest)}
  draft = folder / f"{MANIFEST}.draft"
  with draft.open("w", encoding="utf-8") as stream:
    json.dump(tree, stream, indent=2, ensure_ascii=False)
    stream.flush()
    os.fsync(stream.fileno())
  os.replace(draft, folder / MANIFEST)
  _sync_folder(folder)


def write_snapshot(
  folder: pathlib.Path,
  manifest: Manifest,
  rows: Iterable[tuple[Passage, bytes]],
  *,
  shape: tuple[int, int],
  line: Callable[[Passage], bytes] | None = None,
) -> Manifest:
  """Writes the passages with their vectors and makes them the newest state.

  Args:
    folder: of the index.
    manifest: the one in force; its counts and snapshot are replaced.
    rows: passages in the index's order; each vector as float32 bytes, b""
      without an encoder.
    shape: of all vectors, of width 0 where none are kept.
    line: what is kept of a passage, ended by a line feed; all of it if None.
  """
  number = int(manifest.snapshot.removeprefix("gen-") or 0) + 1
  target = folder / f"gen-{number:06d}"
  shutil.rmtree(target, ignore_errors=True)  # of a writer that died in it
  (target / "lexical").mkdir(parents=True)
  vectors = None
  if shape[1] and shape[0]:
    vectors = np.lib.format.open_memmap(
      target / "vectors.npy", "w+", np.float32, shape
    )
  elif shape[1]:
    _save(target / "vectors.npy", np.zeros(shape, np.float32))
  sources: dict[str, int] = {}
  kinds, offsets, keys = [], [0], []
  with (target / "passages.jsonl").open("wb") as stream:
    for place, (passage, vector) in enumerate(rows):
      kinds.append(sources.setdefault(passage.source, len(sources)))
      offsets.append(offsets[-1] + stream.write((line or encode)(passage)))
      keys.append(keys_of(passage))
      if vectors is not None:
        vectors[place] = np.frombuffer(vector, np.float32)
    sync(stream)
  if vectors is not None:
    vectors.flush()
  _save(target / "offsets.npy", np.asarray(offsets, np.int64))
  _save(target / "sources.npy", np.asarray(kinds, np.int16))
  LexicalIndex.build(keys).save(target / "lexical")
  for file in (target / "lexical").iterdir():
    with file.open("rb") as stream:
      os.fsync(stream.fileno())
  _sync_folder(target)
  new = dataclasses.replace(
    manifest,
    snapshot=target.name,
    sources=tuple(sources),
    counts={name: kinds.count(i) for name, i in sources.items()},
  )
  write_manifest(folder, new)
  for old in sorted(folder.glob("gen-*"))[:-_KEPT]:
    shutil.rmtree(old, ignore_errors=True)
  return new


def encode(passage: Passage) -> bytes:
  """One line of JSON."""
  tree = dataclasses.asdict(passage)
  return json.dumps(tree, ensure_ascii=False).encode() + b"\n"


def decode(line: bytes | str) -> Passage:
  """What `encode` wrote."""
  tree = json.loads(line)
  tree["keys"] = tuple(tree["keys"])
  return Passage(**tree)


def read_passages(path: pathlib.Path) -> Iterator[Passage]:
  """All passages of a snapshot in order."""
  with path.open("rb") as stream:
    for line in stream:
      yield decode(line)


def _save(path: pathlib.Path, array: np.ndarray) -> None:
  with path.open("wb") as stream:
    np.save(stream, array)
    sync(stream)


def sync(stream: IO[bytes]) -> None:
  """Puts what was written to an open file onto the disk."""
  stream.flush()
  os.fsync(stream.fileno())


def _sync_folder(folder: pathlib.Path) -> None:
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
