"""Connections to Milvus: a server, or Milvus Lite over a file.

Lite lets one process into a file and tells a second one nothing of use, keeps
its lock after `close`, and serves one client a path: so clients are shared in a
process, the lock is tried first, and the last one to close lets go of it.
"""

import fcntl
import logging
import pathlib
import threading
from typing import Any, Final

from varl_jax.retrieval.passage import IndexInUse, RetrievalError

_TIMEOUT_S: Final = 10.0
_MUTEX: Final = threading.Lock()
_OPEN: Final[dict[str, tuple[Any, int]]] = {}


def connect(uri: str, *, token: str = "") -> Any:
  """A client of the server at a URI, or of the Lite file at a path.

  Raises:
    IndexInUse: another process has the file.
    RetrievalError: no server answers, or the extra is missing.
  """
  try:
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException
  except ModuleNotFoundError as error:
    raise RetrievalError(
      f"Milvus needs {error.name}; pip install -e '.[milvus,retrieval]'."
    ) from error
  # They log what is raised as well, with its traces.
  for name in ("pymilvus", "milvus_lite"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  with _MUTEX:
    client, users = _OPEN.get(uri, (None, 0))
    if client is None:
      _try_lock(uri)
      try:
        client = MilvusClient(uri, token=token, timeout=_TIMEOUT_S)
      except MilvusException as error:
        raise RetrievalError(
          f"Milvus at {uri} cannot be used ({error.message}); check that it"
          " runs and that nothing else opened it."
        ) from error
    _OPEN[uri] = (client, users + 1)
  return client


def release(uri: str) -> None:
  """Closes the connection once everything that asked for it let go of it."""
  with _MUTEX:
    client, users = _OPEN.pop(uri)
    if users > 1:
      _OPEN[uri] = (client, users - 1)
      return
    client.close()
    if not _is_server(uri):
      from milvus_lite.server_manager import server_manager_instance

      server_manager_instance.release_server(uri)


def _is_server(uri: str) -> bool:
  return "://" in uri


def _try_lock(uri: str) -> None:
  """Raises IndexInUse when another process has a Lite file open."""
  path = pathlib.Path(uri) / "LOCK"
  if _is_server(uri) or not path.exists():
    return
  with path.open("a") as handle:
    try:
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise IndexInUse(
        f"{uri} is open in another process, and Milvus Lite lets in only one;"
        " end that one, or use a Milvus server."
      ) from error
