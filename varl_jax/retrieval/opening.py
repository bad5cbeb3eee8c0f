"""Opens an index, its writer and its encoder by what their names say."""

import json
import pathlib
from typing import Any, Final

from varl_jax.retrieval.embedder import Embedder, HashingEmbedder
from varl_jax.retrieval.fusion import LEXICAL_WEIGHT
from varl_jax.retrieval.local_index import LocalIndex
from varl_jax.retrieval.local_writer import LocalWriter
from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.snapshot import LOCAL, MILVUS, read_manifest

ENCODERS_HELP: Final = (
  "'' for lexical search alone, hashing, URL#MODEL of an OpenAI-compatible"
  " /embeddings, or a .json file that describes one"
)


def open_index(
  folder: str | pathlib.Path,
  *,
  embedder: Embedder | None = None,
  lexical_only: bool = False,
  lexical_weight: float = LEXICAL_WEIGHT,
) -> Any:
  """The index in a folder, whatever engine holds it (`passage.Index`).

  The arguments are those of `LocalIndex`.

  Raises:
    RetrievalError: there is none, it is in use or damaged, or it was made with
      another encoder.
  """
  folder = pathlib.Path(folder)
  manifest = read_manifest(folder)
  if manifest is not None and manifest.engine == MILVUS:
    from varl_jax.retrieval.milvus_index import MilvusIndex

    kind: Any = MilvusIndex
  else:
    kind = LocalIndex
  return kind(
    folder,
    embedder=embedder,
    lexical_only=lexical_only,
    lexical_weight=lexical_weight,
  )


def open_writer(
  folder: str | pathlib.Path,
  *,
  embedder: Embedder | None = None,
  lexicon: str = "clinical",
  engine: str = "",
  uri: str = "",
) -> Any:
  """The writer of the index in a folder, which is made where it is missing.

  Args:
    folder: of the index.
    embedder: encodes passages, None for lexical search alone.
    lexicon: name of the word table.
    engine: `local` or `milvus`; "" for the one that the index has.
    uri: of a Milvus server; "" for a file in the folder.

  Raises:
    RetrievalError: see `open_index`.
  """
  folder = pathlib.Path(folder)
  manifest = read_manifest(folder)
  held = manifest.engine if manifest is not None else LOCAL
  if manifest is not None and engine not in ("", held):
    raise RetrievalError(
      f"{folder} is an index of the engine {held}; give another folder for"
      f" {engine}."
    )
  if (engine or held) == MILVUS:
    from varl_jax.retrieval.milvus_index import MilvusWriter

    return MilvusWriter(folder, embedder=embedder, lexicon=lexicon, uri=uri)
  return LocalWriter(folder, embedder=embedder, lexicon=lexicon)


def make_embedder(name: str) -> Embedder | None:
  """The encoder of a name; see ENCODERS_HELP.

  Raises:
    RetrievalError: no such encoder, or its file cannot be read.
  """
  if not name:
    return None
  if name == "hashing":
    return HashingEmbedder()
  from varl_jax.retrieval.endpoint_embedder import EndpointEmbedder

  if name.startswith(("http://", "https://")):
    url, _, model = name.partition("#")
    if not model:
      raise RetrievalError(f"{name} names no model; write URL#MODEL.")
    return EndpointEmbedder.at(url, model)
  if not name.endswith(".json"):
    raise RetrievalError(
      f"There is no encoder {name!r}; choose {ENCODERS_HELP}."
    )
  try:
    tree = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    return EndpointEmbedder.from_dict(tree)
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise RetrievalError(
      f"{name} describes no encoder ({error}); it is an object with url, model,"
      " query and document."
    ) from error
