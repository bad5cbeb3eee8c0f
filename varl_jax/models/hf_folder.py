"""Hugging Face folders read: config.json, *.safetensors, tokenizer files."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from varl_jax.models import tokenizer as tokenizers
from varl_jax.models.assembly import Shardings, assemble
from varl_jax.models.errors import ModelError
from varl_jax.models.hf_config import config_from_json
from varl_jax.models.layers import Params
from varl_jax.models.tensor_file import TensorFile
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.weights import parts

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Qwen3.5 checkpoints with a vision part keep the text model under this name.
_NESTED = "model.language_model."
# Vision and multi-token prediction, left out by name; tables of old files.
_SKIPPED = ("model.visual.", "visual.", "mtp.")
_RECOMPUTED = "rotary_emb.inv_freq"


def load_folder(
  folder: pathlib.Path,
  *,
  dtype: Any = jnp.float32,
  shardings: Shardings | None = None,
) -> tuple[Any, Params, Tokenizer]:
  """Reads a folder; the tokenizer first, the weights last.

  Args:
    folder: with config.json, weights and tokenizer files.
    dtype: of the parameters.
    shardings: see `assembly.assemble`.

  Raises:
    ModelError: a file is missing or damaged, the architecture is another one,
      or weights and config do not fit.
  """
  settings = read_json(folder / "config.json")
  config = config_from_json(settings, folder)
  tokenizer = tokenizers.from_folder(
    folder,
    vocab_size=config.vocab_size,
    stop_ids=_stop_ids(settings, folder),
  )
  weights = FolderWeights(folder, skip_head=config.tie_embeddings)
  params = assemble(
    config,
    weights,
    folder,
    table=parts(config, weights.prefix),
    dtype=dtype,
    shardings=shardings,
  )
  return config, params, tokenizer


class FolderWeights:
  """The tensors of a folder's files that a text model has.

  Attributes:
    prefix: of all names but the output head's.
    shapes: of the tensors by name.
  """

  def __init__(self, folder: pathlib.Path, *, skip_head: bool):
    """Reads the headers of all files.

    Args:
      folder: with one file, or an index and its shards.
      skip_head: whether an output head is left out, being the embedding.

    Raises:
      ModelError: a file is missing or damaged, or shards and index differ.
    """
    self._files: dict[str, TensorFile] = {}
    for file, names in _weight_files(folder):
      found = TensorFile(file)
      absent = sorted(names - set(found.tensors))
      if absent:
        raise ModelError(
          f"{file} lacks {absent[0]}, which {INDEX} promises; fetch both again."
        )
      self._files |= dict.fromkeys(found.tensors, found)
    nested = any(name.startswith(_NESTED) for name in self._files)
    self.prefix = _NESTED if nested else "model."
    self.shapes = {
      name: file.tensors[name].shape
      for name, file in self._files.items()
      if not name.startswith(_SKIPPED)
      and not name.endswith(_RECOMPUTED)
      and not (skip_head and name == "lm_head.weight")
    }

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    return self._files[name].rows(name, start, stop)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a file.

  Raises:
    ModelError: missing, unreadable, or no object.
  """
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise ModelError(f"{path.parent} has no {path.name}.") from error
  except (ValueError, OSError) as error:
    raise ModelError(f"{path} cannot be read: {error}.") from error
  if not isinstance(value, dict):
    raise ModelError(f"{path} is not a JSON object.")
  return value


def _weight_files(
  folder: pathlib.Path,
) -> list[tuple[pathlib.Path, set[str]]]:
  """Files of weights, each with the names that the index gives it."""
  index = folder / INDEX
  if not index.is_file():
    if not (folder / WEIGHTS).is_file():
      raise ModelError(f"{folder} has no {WEIGHTS}.")
    return [(folder / WEIGHTS, set())]
  where = read_json(index).get("weight_map")
  if not isinstance(where, dict) or not where:
    raise ModelError(f"{index} has no weight_map.")
  names: dict[str, set[str]] = {}
  for name, file in where.items():
    names.setdefault(str(file), set()).add(name)
  absent = sorted(file for file in names if not (folder / file).is_file())
  if absent:
    raise ModelError(
      f"{folder} has no {absent[0]}, which {INDEX} names ({len(absent)} of"
      f" {len(names)} shards are missing); fetch the folder again."
    )
  return [(folder / file, names[file]) for file in sorted(names)]


def _stop_ids(settings: Mapping[str, Any], folder: pathlib.Path) -> set[int]:
  """Ids that end an answer, gathered from all files that name some."""
  inner = settings.get("text_config") or {}
  found = _as_ids(settings.get("eos_token_id"))
  found |= _as_ids(inner.get("eos_token_id"))
  if (folder / "generation_config.json").is_file():
    generation = read_json(folder / "generation_config.json")
    found |= _as_ids(generation.get("eos_token_id"))
  return found


def _as_ids(value: Any) -> set[int]:
  if value is None:
    return set()
  return {value} if isinstance(value, int) else set(value)
