"""An encoder behind an OpenAI-compatible /embeddings.

Serves the field's large encoders, and the ones of `varl_jax.models` without an
array framework in this process (`python -m varl_jax.embed`, loopback).
"""

import base64
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from varl_jax.retrieval.embedder import (
  EncoderRecipe,
  Side,
  document_text,
  unit_length,
)
from varl_jax.retrieval.passage import Passage, RetrievalError

_BATCH: Final = 64
_ATTEMPTS: Final = 4
_TIMEOUT_S: Final = 60.0
_FIRST_WAIT_S: Final = 0.5
_KEYS: Final = ("url", "api_key_env", "query", "document", "width", "model")


class EndpointEmbedder:
  """Asks a server for vectors; safe to use from many threads."""

  def __init__(
    self,
    *,
    url: str,
    query: Side,
    document: Side,
    width: int = 0,
    api_key_env: str = "",
  ):
    """Connects.

    Args:
      url: such as http://127.0.0.1:8080/v1.
      query: model and prefix for queries.
      document: likewise for passages.
      width: of the vectors; 0 asks the server.
      api_key_env: environment variable with the key, "" for none.

    Raises:
      RetrievalError: no server answers, or the extra or the key is missing.
    """
    self._client = _client(url, api_key_env)
    self._url = url
    if not width:
      width = self._ask([query.prefix + "width"], query.model).shape[1]
    self.recipe = EncoderRecipe(query=query, document=document, width=width)

  @classmethod
  def at(cls, url: str, model: str) -> "EndpointEmbedder":
    """One model for both sides, without prefixes."""
    side = Side(model=model, pooling="served", max_length=0)
    return cls(url=url, query=side, document=side)

  @classmethod
  def from_dict(cls, tree: Mapping[str, Any]) -> "EndpointEmbedder":
    """From `{"url", "model", "query": {"prefix", ...}, "document": {...}}`.

    Raises:
      ValueError: an unknown key.
      KeyError, TypeError: a key is missing or of another kind.
    """
    unknown = sorted(set(tree) - set(_KEYS))
    if unknown:
      raise ValueError(f"unknown key {unknown[0]!r}")

    def side(name: str) -> Side:
      base = {"model": tree.get("model", ""), "pooling": "served"}
      made = Side(**{**base, "max_length": 0, **tree.get(name, {})})
      if not made.model:
        raise ValueError(f"{name} has no model")
      return made

    return cls(
      url=tree["url"],
      query=side("query"),
      document=side("document"),
      width=int(tree.get("width", 0)),
      api_key_env=tree.get("api_key_env", ""),
    )

  def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
    side = self.recipe.query
    return self._embed([side.prefix + text for text in texts], side)

  def embed_passages(self, passages: Sequence[Passage]) -> np.ndarray:
    side = self.recipe.document
    texts = [side.prefix + document_text(p, side.form) for p in passages]
    return self._embed(texts, side)

  def _embed(self, texts: Sequence[str], side: Side) -> np.ndarray:
    made = [np.zeros((0, self.recipe.width), np.float32)]
    for first in range(0, len(texts), _BATCH):
      made.append(self._ask(texts[first : first + _BATCH], side.model))
      if made[-1].shape[1] != self.recipe.width:
        raise RetrievalError(
          f"{self._url} gave vectors of {made[-1].shape[1]} numbers, the index"
          f" has {self.recipe.width}; serve the encoder it was built with."
        )
    return unit_length(np.concatenate(made))

  def _ask(self, texts: Sequence[str], model: str) -> np.ndarray:
    """float32 [texts, width]."""
    import openai

    wait = _FIRST_WAIT_S
    for attempt in range(_ATTEMPTS):
      try:
        reply = self._client.embeddings.create(
          input=[text or " " for text in texts],
          model=model,
          encoding_format="float",
        )
        return _vectors(reply.data, len(texts), self._url)
      except (openai.APIConnectionError, openai.APIStatusError) as error:
        status = getattr(error, "status_code", 503)
        final = status not in (408, 409, 429) and status < 500
        if final or attempt == _ATTEMPTS - 1:
          raise RetrievalError(
            f"The encoder at {self._url} failed ({type(error).__name__},"
            f" status {status}); check that it serves {model}."
          ) from error
      except openai.OpenAIError as error:
        raise RetrievalError(
          f"The encoder at {self._url} failed ({type(error).__name__})."
        ) from error
      time.sleep(wait)
      wait *= 2
    raise AssertionError("unreachable")


def _vectors(data: Any, count: int, url: str) -> np.ndarray:
  try:
    rows = sorted(data, key=lambda item: item.index)
    made = [
      np.frombuffer(base64.b64decode(row.embedding), np.float32)
      if isinstance(row.embedding, str)
      else np.asarray(row.embedding, np.float32)
      for row in rows
    ]
    whole = np.stack(made)
  except (TypeError, ValueError, AttributeError) as error:
    raise RetrievalError(
      f"{url} answered with something else than embeddings ({error})."
    ) from error
  if len(whole) != count or not math.isfinite(float(whole.sum())):
    raise RetrievalError(
      f"{url} gave {len(whole)} vectors for {count} texts, or ones that are no"
      " numbers."
    )
  return whole


def _client(url: str, api_key_env: str) -> Any:
  try:
    import openai
  except ModuleNotFoundError as error:
    raise RetrievalError(
      "An encoder endpoint needs openai; pip install -e '.[openai]'."
    ) from error
  key = os.environ.get(api_key_env, "") if api_key_env else "none"
  if not key:
    raise RetrievalError(
      f"The environment has no {api_key_env}, the key for {url}; set it."
    )
  return openai.OpenAI(
    base_url=url, api_key=key, max_retries=0, timeout=_TIMEOUT_S
  )
