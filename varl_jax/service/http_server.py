"""A generation service behind HTTP.

Calls that may take an hour are jobs (`jobs`): a POST takes one on and a GET
waits for it a while, so that neither an impatient proxy nor a dropped
connection nor a killed trainer ends or repeats the work. Reads answer at once.

| request | answer |
|---|---|
| POST /jobs/CALL, body of `wire` | 202 `{"job": NAME}` |
| GET /jobs/NAME?wait=S&notices=N | the state of the job, `notices` after N |
| GET /event_number, /history, /cases, /evidence | the value; JSON lines |
| GET /health | fingerprint, step, event number, usage, lag |

Errors are `{"error": {"type", "message"}}`: 400 no such call, 401 token, 404
unknown job (submit it again), 409 another run's service, 503 stopping.

Without a token only requests addressed to this machine by a loopback name are
answered, and calls need a header that web pages cannot send.
"""

import asyncio
import concurrent.futures
import contextlib
import hmac
import logging
import pathlib
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from varl_jax.files import replace_text
from varl_jax.service import wire
from varl_jax.service.hosting import HostedService
from varl_jax.service.jobs import Job, Jobs
from varl_jax.types import to_json

_LOG = logging.getLogger(__name__)

# Most seconds a request waits for its job.
LONGEST_WAIT: Final = 30.0


class Refusal(Exception):
  """A request that is not answered; `status` is that of HTTP."""

  def __init__(self, status: int, kind: str, message: str):
    super().__init__(message)
    self.status = status
    self.kind = kind


class Door:
  """Decides which requests are answered.

  Args:
    fingerprint: of the service's config.
    token: what every request must carry, "" for none.
    owner: file with the name of the run that the service belongs to, written
      when the first run comes.
  """

  def __init__(self, *, fingerprint: str, token: str, owner: pathlib.Path):
    self.fingerprint = fingerprint
    self._token = token
    self._owner = owner

  def check(self, headers: Mapping[str, str]) -> None:
    """Lets a reader in.

    Raises:
      Refusal: wrong token, address, config or run.
    """
    if self._token:
      given = headers.get("authorization", "").removeprefix("Bearer ")
      if not hmac.compare_digest(given.encode(), self._token.encode()):
        raise Refusal(401, "Unauthorized", "The token is missing or wrong.")
    elif wire.host_name(headers.get("host", "")) not in wire.LOOPBACK:
      raise Refusal(
        401, "Unauthorized", "Without a token only this machine is answered."
      )
    theirs = headers.get(wire.FINGERPRINT_HEADER.lower())
    if theirs is not None and theirs != self.fingerprint:
      raise Refusal(
        409,
        "Mismatch",
        f"The service runs config {self.fingerprint}, the trainer {theirs};"
        " start both with the same --config and settings.",
      )
    run = headers.get(wire.RUN_HEADER.lower())
    if run is not None:
      self._check_owner(run)

  def check_run(self, headers: Mapping[str, str]) -> None:
    """Lets the run in that the service belongs to, from its first call on.

    Raises:
      Refusal: it is another, or says no name.
    """
    run = headers.get(wire.RUN_HEADER.lower(), "")
    if not run:
      raise Refusal(400, "BadRequest", f"{wire.RUN_HEADER} is missing.")
    if not self._owner_name():
      replace_text(self._owner, run + "\n")
    self._check_owner(run)

  def _owner_name(self) -> str:
    """The run that the service belongs to; "" before the first.

    An empty file is what a write that was cut short may leave: no run either.
    """
    if not self._owner.exists():
      return ""
    return self._owner.read_text(encoding="utf-8").strip()

  def _check_owner(self, run: str) -> None:
    if self._owner_name() not in ("", run):
      raise Refusal(
        409,
        "Mismatch",
        "The service belongs to the run of another folder; train in that"
        " folder, or start a service with a new --workdir.",
      )


def make_app(hosted: HostedService, *, door: Door) -> Any:
  """The ASGI application; it closes the service when it ends.

  Args:
    hosted: the service.
    door: who is answered.

  Raises:
    ModuleNotFoundError: the extra `server` is not installed.
  """
  import fastapi
  from fastapi import responses

  jobs = Jobs()

  @contextlib.asynccontextmanager
  async def lifespan(app: Any) -> AsyncIterator[None]:
    jobs.open()
    try:
      yield
    finally:
      jobs.stop()
      await asyncio.to_thread(hosted.close)

  app = fastapi.FastAPI(
    title="varl_jax",
    lifespan=lifespan,
    # Without a page there is nothing to see without the token.
    openapi_url=None,
    docs_url=None,
    redoc_url=None,
  )
  app.state.jobs = jobs

  @app.exception_handler(Refusal)
  async def refuse(request: fastapi.Request, error: Refusal) -> Any:
    return _json(
      {"error": {"type": error.kind, "message": str(error)}}, error.status
    )

  async def fail(request: fastapi.Request, error: Exception) -> Any:
    return _json({"error": wire.pack_error(error)}, 500)

  for kind in (*wire.ERRORS.values(), Exception):
    app.add_exception_handler(kind, fail)

  def _json(value: Any, status: int = 200) -> Any:
    return responses.Response(
      wire.pack(value), status_code=status, media_type="application/json"
    )

  async def read(request: fastapi.Request, work: Callable[[], Any]) -> Any:
    door.check(request.headers)
    return _json(await asyncio.to_thread(lambda: to_json(work())))

  @app.post("/jobs/{name}")
  async def submit(name: str, request: fastapi.Request) -> Any:
    door.check(request.headers)
    door.check_run(request.headers)
    if jobs.stopping:
      raise Refusal(503, "Stopping", "The service is stopping.")
    body = await request.body()
    try:
      call = await asyncio.to_thread(wire.read_call, name, body)
    except ValueError as error:
      raise Refusal(400, "BadRequest", str(error)) from error
    job = jobs.submit(
      wire.job_name(name, body),
      request.headers.get(wire.CALL_HEADER, ""),
      lambda: _outcome(call, hosted),
      kind=name,
      # What a trainer left behind ends before its successor goes back.
      exclusive=name == wire.Rewind.NAME,
    )
    return _json({"job": job.name}, 202)

  @app.get("/jobs/{name}")
  async def wait(
    name: str, request: fastapi.Request, wait: float = 0.0, notices: int = 0
  ) -> Any:
    door.check(request.headers)
    job = jobs.find(name)
    if job is None:
      raise Refusal(404, "UnknownJob", f"There is no job {name!r}.")
    await jobs.wait(job, min(wait, LONGEST_WAIT))
    if not job.done.is_set() and jobs.stopping:
      raise Refusal(503, "Stopping", "The service is stopping.")
    return _state(job, hosted.notices.since(notices))

  def _state(job: Job, notices: list[tuple[int, str]]) -> Any:
    state: dict[str, Any] = {"notices": notices, "done": job.done.is_set()}
    if job.error is not None:
      state["error"] = wire.pack_error(job.error)
    elif state["done"]:
      # The value is JSON already; only the frame is written here.
      frame = wire.pack(state)[:-1] + b',"value":' + job.value + b"}"
      return responses.Response(frame, media_type="application/json")
    return _json(state)

  @app.get("/event_number")
  async def event_number(request: fastapi.Request) -> Any:
    return await read(request, hosted.event_number)

  @app.get("/history")
  async def history(request: fastapi.Request, limit: int | None = None) -> Any:
    return await read(request, lambda: hosted.history(limit))

  @app.get("/cases")
  async def cases(
    request: fastapi.Request,
    limit: int | None = None,
    repaired: bool = False,
  ) -> Any:
    return await read(request, lambda: hosted.cases(limit, repaired=repaired))

  @app.get("/health")
  async def health(request: fastapi.Request) -> Any:
    return await read(
      request, lambda: {"fingerprint": door.fingerprint} | hosted.health()
    )

  @app.get("/evidence")
  async def evidence(request: fastapi.Request) -> Any:
    door.check(request.headers)
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "evidence.jsonl"
    await asyncio.to_thread(hosted.export_evidence, path)
    return responses.StreamingResponse(
      _chunks(path, folder), media_type="application/x-ndjson"
    )

  return app


def _outcome(call: wire.Call, hosted: HostedService) -> bytes:
  """Runs a call; the trace of a mistake stands in the service's own log."""
  try:
    return wire.pack(call.run(hosted))
  except (*wire.ERRORS.values(), concurrent.futures.CancelledError):
    raise
  except Exception:
    _LOG.exception("The call %r failed by a mistake.", call.NAME)
    raise


def _chunks(path: pathlib.Path, folder: tempfile.TemporaryDirectory) -> Any:
  """A file in pieces; its folder is removed behind it."""
  with folder, open(path, "rb") as file:
    while piece := file.read(1 << 20):
      yield piece
