"""The 135M model as a Hugging Face folder, which every peer can read."""

import pathlib
import tempfile

from varl_jax.models.loading import load_model, save_model, smollm2_file


def smollm2_folder() -> pathlib.Path:
  """Made once from the package's GGUF file, in the folder for such things."""
  folder = pathlib.Path(tempfile.gettempdir()) / "varl_jax_smollm2"
  newest = smollm2_file().stat().st_mtime
  made = folder / "config.json"
  if not made.is_file() or made.stat().st_mtime < newest:
    config, params, tokenizer = load_model("smollm2")
    save_model(folder, config, params, tokenizer=tokenizer)
  return folder
