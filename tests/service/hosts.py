"""Services to test against: in a thread, or in a thread behind real HTTP."""

import contextlib
import signal
import threading

from tests import fakes
from varl_jax.methods import METHODS
from varl_jax.service import http_process
from varl_jax.service.hosting import HostedService, Notices
from varl_jax.service.http_client import HttpService
from varl_jax.service.http_server import Door, make_app
from varl_jax.service.store import Store


def host(
  path,
  *,
  config=None,
  roles=None,
  meter=dict,
  away=lambda: False,
  canary=False,
  tools=None,
  **changed,
):
  """A service on the fake world; its store is `path`."""
  config = config or fakes.config()
  service = METHODS[config.method.name](
    config,
    roles=roles or fakes.roles(**changed),
    store=Store(path),
    checks=fakes.CHECKS,
    verifiers=fakes.CHECKS.describe(),
  )
  return HostedService(
    service,
    notices=Notices(lambda sentence: None),
    meter=meter,
    away=away,
    canary=canary,
    tools=tools,
  )


class Http:
  """A service behind HTTP, until `stop`; `url` is where."""

  def __init__(self, hosted, folder, *, token="", port=0, fingerprint="f"):
    door = Door(
      fingerprint=fingerprint, token=token, owner=folder / "service_run"
    )
    self.hosted = hosted
    self.app = make_app(hosted, door=door)
    self._socket = http_process.listen("127.0.0.1", port)
    self.url = http_process.address(self._socket)
    self.port = self._socket.getsockname()[1]
    ready = threading.Event()
    self._server = http_process.make_server(self.app, ready=ready.set)
    self._thread = threading.Thread(
      target=self._server.run, kwargs={"sockets": [self._socket]}
    )
    self._thread.start()
    assert ready.wait(60)

  def stop(self):
    """As a signal would; harmless when repeated."""
    if self._thread.is_alive():
      self._server.handle_exit(signal.SIGTERM, None)
      self._thread.join()
    self._socket.close()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self.stop()


def client(url, **changed):
  """A client that does not dawdle between tries."""
  parts = {
    "fingerprint": "f",
    "run_id": "run",
    "sleep": lambda seconds: None,
    **changed,
  }
  return HttpService(url=url, **parts)


@contextlib.contextmanager
def presented(kind, hosted, folder):
  """A service as its trainer sees it, thread or http; closed at the end."""
  if kind == "thread":
    with contextlib.closing(hosted):
      yield hosted
    return
  with (
    Http(hosted, folder) as http,
    contextlib.closing(client(http.url)) as service,
  ):
    yield service


def opened(kind, path, **parts):
  """The same of a fresh service on the store `path`."""
  return presented(kind, host(path, **parts), path.parent)
