"""Encoders of `models.encoder` for the index: in this process, or served.

    python -m varl_jax.embed --model=/models/all-MiniLM-L6-v2 --port=8710

serves an OpenAI-compatible /embeddings to this machine alone, so that building
and searching an index load no array framework; it prints the `--encoder` to
give. `--model=minilm` is the encoder of the extra `embed`. Several models may
be served, such as the two of MedCPT.

In one process, `FolderEmbedder` is given to `retrieval.opening` by hand.
"""

import pathlib
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from absl import app, flags, logging

from varl_jax.command_line import parse, refuse
from varl_jax.models.encoder import TextEncoder, model_id, resolve
from varl_jax.models.errors import ModelError
from varl_jax.retrieval.embedder import EncoderRecipe, Side, document_text
from varl_jax.retrieval.passage import Passage
from varl_jax.service import http_process

# In a form, what parts the two segments of a passage.
SEGMENTS: Final = "[SEP]"
# Most texts and characters of one request.
MOST_TEXTS: Final = 2048
MOST_CHARS: Final = 20_000_000

_MODELS = flags.DEFINE_multi_string("model", [], "Folder of an encoder.")
_PORT = flags.DEFINE_integer("port", 8710, "Port to listen at; 0 for a free.")


class FolderEmbedder:
  """An `Embedder` over encoders in folders."""

  def __init__(
    self,
    folder: str | pathlib.Path,
    *,
    query_folder: str | pathlib.Path = "",
    query_prefix: str = "",
    document_prefix: str = "",
    pooling: str = "",
    query_length: int = 0,
    document_length: int = 0,
    form: str = "{title}\n{text}",
  ):
    """Loads the encoders.

    Args:
      folder: of the encoder, or of the passages' one.
      query_folder: of the queries' encoder where it is another.
      query_prefix: put before queries.
      document_prefix: put before passages.
      pooling: see `TextEncoder`.
      query_length: most tokens of a query; 0 takes the encoder's.
      document_length: likewise of a passage.
      form: of a passage; `[SEP]` in it makes two segments.

    Raises:
      ModelError: an encoder cannot be loaded.
    """
    self._document = TextEncoder(
      resolve(folder), pooling=pooling, max_length=document_length
    )
    self._query = TextEncoder(
      resolve(query_folder or folder), pooling=pooling, max_length=query_length
    )
    self.recipe = EncoderRecipe(
      query=Side(
        model=model_id(query_folder or folder, self._query),
        prefix=query_prefix,
        pooling=self._query.pooling,
        max_length=self._query.max_length,
      ),
      document=Side(
        model=model_id(folder, self._document),
        prefix=document_prefix,
        pooling=self._document.pooling,
        max_length=self._document.max_length,
        form=form,
      ),
      width=self._document.config.width,
    )

  def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
    prefix = self.recipe.query.prefix
    return self._query.encode([prefix + text for text in texts])

  def embed_passages(self, passages: Sequence[Passage]) -> np.ndarray:
    return self._document.encode([self._text(p) for p in passages])

  def _text(self, passage: Passage) -> str | tuple[str, str]:
    side = self.recipe.document
    first, parted, second = side.form.partition(SEGMENTS)
    head = side.prefix + document_text(passage, first)
    return (head, document_text(passage, second)) if parted else head


def make_app(encoders: Mapping[str, TextEncoder]) -> Any:
  """The web application over encoders by their ids.

  Raises:
    ModuleNotFoundError: the extra `server` is not installed.
  """
  import fastapi
  from fastapi.concurrency import run_in_threadpool
  from fastapi.responses import JSONResponse

  web = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
  turn = threading.Lock()
  # What the server tells before it stops; nothing waits for a job here.
  web.state.jobs = types.SimpleNamespace(stop_soon=lambda: None)

  def encode(model: str, texts: Sequence[str]) -> np.ndarray:
    with turn:
      return encoders[model].encode(texts)

  def refusal(status: int, message: str) -> Any:
    return JSONResponse({"error": {"message": message}}, status)

  @web.get("/v1/models")
  async def models() -> Any:
    listed = [{"id": name, "object": "model"} for name in encoders]
    return {"object": "list", "data": listed}

  @web.post("/v1/embeddings")
  async def embeddings(body: dict[str, Any]) -> Any:
    model, texts = str(body.get("model")), body.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if model not in encoders:
      return refusal(404, f"Models here are {', '.join(encoders)}.")
    if not isinstance(texts, list) or not all(
      isinstance(text, str) for text in texts
    ):
      return refusal(400, "The input is a text or a list of texts.")
    if len(texts) > MOST_TEXTS or sum(map(len, texts)) > MOST_CHARS:
      return refusal(413, f"At most {MOST_TEXTS} texts a request.")
    found = await run_in_threadpool(encode, model, texts) if texts else ()
    data = [
      {"object": "embedding", "index": place, "embedding": row.tolist()}
      for place, row in enumerate(found)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return {"object": "list", "model": model, "data": data, "usage": usage}

  return web


def main(argv: list[str]) -> int:
  """Serves until a signal; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  if not _MODELS.value:
    return refuse("--model names no encoder; give a folder, or minilm.")
  logging.set_verbosity(logging.WARNING)
  try:
    encoders = {}
    for folder in _MODELS.value:
      encoder = TextEncoder(resolve(folder))
      encoders[model_id(folder, encoder)] = encoder
    with http_process.listen("127.0.0.1", _PORT.value) as listening:
      url = f"{http_process.address(listening)}/v1"

      def ready() -> None:
        for name in encoders:
          print(f"Serving --encoder={url}#{name}", flush=True)

      server = http_process.make_server(make_app(encoders), ready=ready)
      http_process.serve_until_signal(server, listening)
  except (ModelError, http_process.ListenError) as error:
    return refuse(str(error))
  except ModuleNotFoundError as error:
    return refuse(f"{error.name} is not installed; pip install -e '.[server]'.")
  return 0


if __name__ == "__main__":
  sys.exit(app.run(main, flags_parser=parse))
