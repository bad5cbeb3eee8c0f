"""Listens, serves and stops: the part of a service process that is no service.

uvicorn would end the process by the signal it got; here a signal is a request
to stop, and the process ends by itself with exit code 0.
"""

import contextlib
import ipaddress
import signal
import socket
import types
from collections.abc import Callable, Iterator
from typing import Any

from varl_jax.service import wire


class ListenError(Exception):
  """The address cannot be listened at; one clear sentence."""


def check_exposure(host: str, token: str, *, token_env: str) -> None:
  """Refuses to serve other machines without a token.

  Raises:
    ListenError: `host` is no loopback address and there is no token.
  """
  if not token and not is_loopback(host):
    raise ListenError(
      f"--host={host} can be reached from other machines, which needs a token:"
      f" set {token_env or 'service.token_env and that variable'}, for the"
      " trainer too."
    )


def is_loopback(host: str) -> bool:
  """Whether only this machine reaches an address."""
  if host in wire.LOOPBACK:
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def listen(host: str, port: int) -> socket.socket:
  """A listening socket.

  Raises:
    ListenError: the address is taken or not one of this machine.
  """
  try:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
  except (OSError, OverflowError) as error:
    raise ListenError(
      f"{host}:{port} cannot be listened at ({error}); choose another --host"
      " or --port."
    ) from error


def address(listening: socket.socket) -> str:
  """The URL of a listening socket."""
  host, port = listening.getsockname()[:2]
  return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Any, *, ready: Callable[[], None]) -> Any:
  """A uvicorn server that lets go of those who wait for a job when it stops.

  Args:
    app: of `http_server.make_app`, or another without jobs.
    ready: called when requests are answered.

  Raises:
    ModuleNotFoundError: the extra `server` is not installed.
  """
  import uvicorn

  class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
      super().handle_exit(sig, frame)
      # A dashboard has no jobs.
      if hasattr(app.state, "jobs"):
        app.state.jobs.stop_soon()

    async def startup(self, sockets: Any = None) -> None:
      await super().startup(sockets=sockets)
      ready()

  return Server(
    uvicorn.Config(
      app,
      log_level="warning",
      access_log=False,
      ws="none",
      timeout_graceful_shutdown=10,
    )
  )


def serve_until_signal(server: Any, listening: socket.socket) -> None:
  """Serves until SIGTERM or SIGINT; returns once the application has ended."""
  with _harmless_signals():
    server.run(sockets=[listening])


@contextlib.contextmanager
def _harmless_signals() -> Iterator[None]:
  """uvicorn raises the signal again once it has stopped."""
  handled = (signal.SIGINT, signal.SIGTERM)
  before = {s: signal.signal(s, lambda number, frame: None) for s in handled}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
