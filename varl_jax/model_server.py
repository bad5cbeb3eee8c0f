"""Serves a local model in the OpenAI protocol to this machine.

    python -m varl_jax.model_server --model=smollm2 --port=8000

    curl http://127.0.0.1:8000/v1/chat/completions \
        -H 'content-type: application/json' \
        -d '{"model": "smollm2", "max_tokens": 40,
             "messages": [{"role": "user", "content": "Say hello."}]}'

`--model` is a Hugging Face folder, a .gguf file or a built-in name; `--embed`
adds an encoder for /v1/embeddings. Any client of that protocol works, such as
the roles of a run: `--config.endpoints.roles.model=smollm2
--config.endpoints.roles.base_url=http://127.0.0.1:8000/v1
--config.endpoints.roles.api_key_env=''`. What is offered stands in `chat_api`.
"""

import asyncio
import contextlib
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import app, flags, logging

from varl_jax.build import use_compile_cache
from varl_jax.chat_api import make_app
from varl_jax.command_line import parse, refuse
from varl_jax.config import LocalConfig
from varl_jax.local_models import LoadedModel, load_local, open_local
from varl_jax.models.encoder import TextEncoder, model_id, resolve
from varl_jax.models.errors import ModelError
from varl_jax.service import http_process

_MODEL = flags.DEFINE_string("model", "", "Folder, .gguf file or name.")
_NAME = flags.DEFINE_string("name", "", "Its name in requests; else its own.")
_EMBED = flags.DEFINE_multi_string("embed", [], "Folder of an encoder.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at.")
_PORT = flags.DEFINE_integer("port", 8000, "Port to listen at; 0 for a free.")
_TOKEN = flags.DEFINE_string(
  "token_env", "", "Environment variable with the token of each request."
)
_SLOTS = flags.DEFINE_integer("slots", 32, "Replies drawn at a time.", 1)
_PROMPT = flags.DEFINE_integer(
  "max_prompt", 2048, "Most tokens of a conversation.", 1
)
_NEW = flags.DEFINE_integer("max_new", 1024, "Most tokens of a reply.", 1)
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of weights and computation."
)


def encoder_of(
  folder: str, turn: threading.Lock
) -> tuple[str, Callable[[Sequence[str]], Any]]:
  """An encoder's id and what encodes with it.

  Raises:
    ModelError: it cannot be loaded.
  """
  encoder = TextEncoder(resolve(folder))

  def now(texts: Sequence[str]) -> np.ndarray:
    with turn:
      return encoder.encode(texts)

  async def encode(texts: Sequence[str]) -> np.ndarray:
    return await asyncio.to_thread(now, texts)

  return model_id(folder, encoder), encode


def main(argv: list[str]) -> int:
  """Serves until a signal; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  if not _MODEL.value:
    return refuse("--model names no model; give a folder, or smollm2.")
  logging.set_verbosity(logging.WARNING)
  token = os.environ.get(_TOKEN.value, "") if _TOKEN.value else ""
  if _TOKEN.value and not token:
    return refuse(f"The variable {_TOKEN.value} (--token_env) is not set.")
  try:
    http_process.check_exposure(
      _HOST.value, token, token_env=_TOKEN.value or "--token_env"
    )
    use_compile_cache()
    loaded = load_local(_MODEL.value, dtype=_DTYPE.value)
    return _serve(loaded, token)
  except (ModelError, ValueError, http_process.ListenError) as error:
    return refuse(str(error))
  except ModuleNotFoundError as error:
    return refuse(f"{error.name} is not installed; pip install -e '.[server]'.")


def _serve(loaded: LoadedModel, token: str) -> int:
  name = _NAME.value or pathlib.Path(_MODEL.value).stem
  settings = LocalConfig(
    slots=_SLOTS.value, max_prompt=_PROMPT.value, max_reply=_NEW.value
  )
  with contextlib.ExitStack() as stack:
    listening = stack.enter_context(
      http_process.listen(_HOST.value, _PORT.value)
    )
    model = open_local(loaded, name=name, settings=settings)
    stack.callback(model.close)
    turn = threading.Lock()
    encoders = dict(encoder_of(folder, turn) for folder in _EMBED.value)
    url = f"{http_process.address(listening)}/v1"

    def ready() -> None:
      for served in (name, *encoders):
        print(f"Serving {served} at {url}", flush=True)

    web = make_app({name: model}, encoders=encoders, token=token)
    server = http_process.make_server(web, ready=ready)
    http_process.serve_until_signal(server, listening)
  return 0


if __name__ == "__main__":
  sys.exit(app.run(main, flags_parser=parse))
