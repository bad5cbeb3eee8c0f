"""Files of a corpus: found, told from pointers, opened whatever wraps them."""

import contextlib
import gzip
import io
import pathlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

_LFS_MARK: Final = b"version https://git-lfs"
_ANNEX_MARK: Final = b"/annex/objects/"
# A zip of zips of zips is no corpus.
_MAX_NESTING: Final = 2


class CorpusError(Exception):
  """A file that cannot be read as its source; names it and the mend."""


def find_files(
  path: pathlib.Path, suffixes: tuple[str, ...]
) -> list[pathlib.Path]:
  """The file itself, or those below a folder with one of the endings, sorted.

  Raises:
    CorpusError: there is no such path, or no such file in it.
  """
  if path.is_file():
    return [path]
  if not path.is_dir():
    raise CorpusError(f"{path} does not exist.")
  found = sorted(
    file
    for file in path.rglob("*")
    if file.is_file() and file.name.lower().endswith(suffixes)
  )
  if not found:
    raise CorpusError(
      f"{path} holds no file that ends in {', '.join(suffixes)}."
    )
  return found


def refuse_pointer(file: pathlib.Path) -> None:
  """Raises CorpusError for a pointer that Git left in a file's place."""
  with file.open("rb") as stream:
    head = stream.read(256)
  if head.startswith(_LFS_MARK):
    raise CorpusError(
      f"{file} is a Git LFS pointer; fetch the file itself (git lfs pull)."
    )
  if len(head) < 256 and _ANNEX_MARK in head:
    raise CorpusError(
      f"{file} is a git-annex pointer; fetch the file itself (git annex get)."
    )


@contextlib.contextmanager
def open_bytes(file: pathlib.Path) -> Iterator[IO[bytes]]:
  """Opens a file, unpacking `.gz`; damage found while reading is named.

  Raises:
    CorpusError: a pointer, or truncated or damaged gzip.
  """
  refuse_pointer(file)
  if file.stat().st_size == 0:
    raise CorpusError(f"{file} is empty; fetch it again.")
  try:
    if file.name.lower().endswith(".gz"):
      with gzip.open(file, "rb") as stream:
        yield stream  # pyright: ignore[reportReturnType]
    else:
      with file.open("rb") as stream:
        yield stream
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise CorpusError(
      f"{file} is truncated or damaged ({error}); fetch it again."
    ) from error


def zip_members(
  file: pathlib.Path, suffix: str
) -> Iterator[tuple[str, IO[bytes]]]:
  """Members of a zip with an ending, those of zips inside it too.

  Raises:
    CorpusError: truncated or damaged.
  """
  refuse_pointer(file)
  with file.open("rb") as stream:
    yield from _members(stream, str(file), suffix, _MAX_NESTING)


def _members(
  stream: IO[bytes], name: str, suffix: str, depth: int
) -> Iterator[tuple[str, IO[bytes]]]:
  try:
    with zipfile.ZipFile(stream) as archive:
      for entry in archive.namelist():
        inner = f"{name}/{entry}"
        if entry.lower().endswith(suffix):
          yield inner, io.BytesIO(archive.read(entry))
        elif entry.lower().endswith(".zip") and depth > 1:
          packed = io.BytesIO(archive.read(entry))
          yield from _members(packed, inner, suffix, depth - 1)
  except (zipfile.BadZipFile, zlib.error, EOFError) as error:
    raise CorpusError(
      f"{name} is truncated or damaged ({error}); fetch it again."
    ) from error
