"""Safetensors files, read by rows and written tensor by tensor.

The file is never mapped: pages of a mapped file count as memory of the process
until the system takes them back, plain reads do not.
"""

import json
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from varl_jax.models.errors import ModelError

# The types that weights may have, by their names in the format.
TYPES: Final[Mapping[str, np.dtype]] = {
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES: Final = {dtype: name for name, dtype in TYPES.items()}
_MAX_HEADER: Final = 100_000_000
_ALIGNED: Final = 64
_LFS_MARK: Final = b"version https://git-lfs"


class Tensor(NamedTuple):
  """Where a tensor lies: type, shape, first byte in the file."""

  dtype: np.dtype
  shape: tuple[int, ...]
  start: int


class TensorFile:
  """The tensors of one file.

  Attributes:
    path: of the file.
    tensors: by name.
  """

  def __init__(self, path: pathlib.Path, *, ignore: Collection[str] = ()):
    """Reads the header.

    Args:
      path: of the file.
      ignore: names of tensors that are left out, of whatever type.

    Raises:
      ModelError: missing, damaged, truncated, or of an unsupported type.
    """
    self.path = path
    refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as stream:
      length = int.from_bytes(stream.read(8), "little")
      if size < 8 or length > min(_MAX_HEADER, size - 8):
        raise ModelError(
          f"{path} is damaged, truncated or not safetensors: its {size} bytes"
          " do not hold its header; fetch it again."
        )
      head = stream.read(length)
    try:
      entries = json.loads(head)
      entries.pop("__metadata__", None)
      self.tensors = {
        name: self._tensor(name, entry, 8 + length)
        for name, entry in entries.items()
        if name not in ignore
      }
      end = max((e["data_offsets"][1] for e in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ModelError(
        f"{path} is damaged or not safetensors: {error!r} in its header; fetch"
        " it again."
      ) from error
    if size != 8 + length + end:
      raise ModelError(
        f"{path} is truncated or damaged: it has {size} bytes and its header"
        f" promises {8 + length + end}; fetch it again."
      )

  def _tensor(self, name: str, entry: Mapping[str, Any], base: int) -> Tensor:
    kind = entry["dtype"]
    if kind not in TYPES:
      raise ModelError(
        f"{self.path}: {name} has the unsupported type {kind}; weights are"
        f" {', '.join(TYPES)}."
      )
    shape = tuple(map(int, entry["shape"]))
    start, stop = map(int, entry["data_offsets"])
    if stop - start != math.prod(shape) * TYPES[kind].itemsize or start < 0:
      raise ModelError(
        f"{self.path} is damaged: {name} of shape {shape} lies in"
        f" {stop - start} bytes; fetch it again."
      )
    return Tensor(TYPES[kind], shape, base + start)

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor, by name."""
    return {name: tensor.shape for name, tensor in self.tensors.items()}

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    """Entries start to stop of a tensor's first axis, nothing else is read.

    Raises:
      ModelError: the file ends before them.
    """
    tensor = self.tensors[name]
    row = math.prod(tensor.shape[1:])
    count = (stop - start) * row * tensor.dtype.itemsize
    with self.path.open("rb") as stream:
      stream.seek(tensor.start + start * row * tensor.dtype.itemsize)
      raw = _aligned(count)
      got = stream.readinto(raw.data)
    if got != count:
      raise ModelError(f"{self.path} ends inside {name}; fetch it again.")
    return raw.view(tensor.dtype).reshape(stop - start, *tensor.shape[1:])


def write_tensors(
  path: pathlib.Path,
  shapes: Mapping[str, tuple[int, ...]],
  dtype: Any,
  arrays: Iterable[np.ndarray],
) -> None:
  """Writes a file and syncs it; one array at a time is held.

  Args:
    path: of the new file.
    shapes: names and shapes, in order.
    dtype: of every tensor.
    arrays: the values, in the same order.
  """
  dtype = np.dtype(dtype)
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  end = 0
  for name, shape in shapes.items():
    size = math.prod(shape) * dtype.itemsize
    header[name] = {
      "dtype": _NAMES[dtype],
      "shape": list(shape),
      "data_offsets": [end, end + size],
    }
    end += size
  head = json.dumps(header, separators=(",", ":")).encode()
  head += b" " * (-len(head) % 8)
  with path.open("wb") as stream:
    stream.write(len(head).to_bytes(8, "little") + head)
    for (name, shape), array in zip(shapes.items(), arrays, strict=True):
      if array.shape != shape:
        raise ValueError(f"{name} is {array.shape}, announced as {shape}.")
      whole = np.ascontiguousarray(array, dtype)
      stream.write(whole.reshape(-1).view(np.uint8).data)
    sync(stream)


def _aligned(size: int) -> np.ndarray:
  """Uninitialized bytes that jax can use on a CPU without a copy."""
  whole = np.empty(size + _ALIGNED, np.uint8)
  start = -whole.ctypes.data % _ALIGNED
  return whole[start : start + size]


def refuse_pointer(file: pathlib.Path) -> None:
  """Raises ModelError when Git LFS left a pointer in the file's place."""
  with file.open("rb") as stream:
    if stream.read(len(_LFS_MARK)) == _LFS_MARK:
      raise ModelError(
        f"{file} is a Git LFS pointer; fetch the file itself (git lfs pull)."
      )


def sync(stream: Any) -> None:
  """Puts what was written to an open file onto the disk."""
  stream.flush()
  os.fsync(stream.fileno())
