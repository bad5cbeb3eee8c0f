"""The dashboard behind HTTP: a report that refreshes itself; reads only.

| request | answer |
|---|---|
| GET / | the page; `?token=` sets a cookie and leads to it |
| GET /version | a number that grows when there are news |
| GET /cases/KEY, /rollouts/KEY | a fragment of HTML |

Other methods are refused. Every answer forbids framing, sniffing, storing and
loading anything from elsewhere. Without a token only requests that name this
machine are answered, so that no page of another site can ask by a name that it
points here.
"""

import hmac
import threading
from collections.abc import Callable
from typing import Any, Final

from varl_jax import page, report_cases, report_page
from varl_jax.report_data import ReportError
from varl_jax.report_page import Browser
from varl_jax.run_reader import RunReader
from varl_jax.service import wire

COOKIE: Final = "varl_jax_dashboard"
# Kept answers that a live page lists, the newest.
LISTED_ROLLOUTS: Final = 2000


class Pages:
  """What the dashboard shows, read anew when there are news.

  Args:
    reader: of the run; used by one thread at a time.
  """

  def __init__(self, reader: RunReader):
    self._reader = reader
    self._lock = threading.Lock()
    self._shown: tuple[int, str] = (-1, "")

  def version(self) -> int:
    """Grows when there are news.

    Raises:
      ReportError: a file of the run is damaged.
    """
    with self._lock:
      self._reader.refresh()
      return self._reader.version

  def page(self) -> str:
    """The whole page."""
    with self._lock:
      reader = self._reader
      reader.refresh()
      if self._shown[0] != reader.version:
        text = report_page.render_report(
          [reader.data()],
          cases=Browser(index=reader.index()),
          rollouts=self._rollouts(),
          judges=reader.store.judges(),
          live=True,
          version=str(reader.version),
        )
        self._shown = (reader.version, text)
      return self._shown[1]

  def case(self, key: str) -> str | None:
    """HTML of a case; None for an unknown one."""
    with self._lock:
      self._reader.refresh()
      record = self._reader.store.case(key)
      if record is None:
        return None
      kept = self._reader.data().groups
      return report_cases.case_fragment(
        report_cases.case_view(record, kept=kept)
      )

  def rollout(self, key: str) -> str | None:
    """HTML of a kept answer; None for an unknown one."""
    with self._lock:
      self._reader.refresh()
      roles = self._reader.store.roles()
      for place, group, rollout in self._kept():
        if report_cases.rollout_key(*place) == key:
          role, case_key = roles.get(place, ("", ""))
          return report_cases.rollout_fragment(
            report_cases.rollout_view(
              place[0], group, rollout, role=role, case_key=case_key
            )
          )
      return None

  def _kept(self) -> list[tuple[tuple[int, str, int], Any, Any]]:
    return [
      ((step, group["task_id"], rollout["sample"]), group, rollout)
      for step, group, rollout in report_page.kept_rollouts(
        self._reader.rollouts.records
      )
    ]

  def _rollouts(self) -> Browser:
    roles = self._reader.store.roles()
    return Browser(
      index=report_cases.Index(
        facets=report_cases.ROLLOUT_FACETS,
        orders=report_cases.ROLLOUT_ORDERS,
        rows=tuple(
          report_cases.rollout_row(
            place[0], group, rollout, role=roles.get(place, ("", ""))[0]
          )
          for place, group, rollout in self._kept()[:LISTED_ROLLOUTS]
        ),
      )
    )


def make_app(reader: RunReader, *, token: str = "") -> Any:
  """The ASGI application.

  Args:
    reader: of the run.
    token: what every request must carry, in a cookie; "" for none.

  Raises:
    ModuleNotFoundError: the extra `server` is not installed.
  """
  import fastapi
  from fastapi import responses
  from starlette.concurrency import run_in_threadpool

  pages = Pages(reader)
  app = fastapi.FastAPI(
    title="varl_jax", openapi_url=None, docs_url=None, redoc_url=None
  )

  def admitted(request: fastapi.Request) -> bool:
    if not token:
      return wire.host_name(request.headers.get("host", "")) in wire.LOOPBACK
    given = request.cookies.get(_cookie(request), "")
    return hmac.compare_digest(given.encode(), token.encode())

  @app.middleware("http")
  async def guard(request: fastapi.Request, call_next: Callable) -> Any:
    if token and "token" in request.query_params:
      reply = _entrance(request)
    elif admitted(request):
      reply = await call_next(request)
    else:
      reply = _said(
        401,
        "The token is missing or wrong."
        if token
        else "Without a token only this machine is answered.",
      )
    reply.headers.update(_headers())
    return reply

  def _entrance(request: fastapi.Request) -> Any:
    given = request.query_params["token"]
    if not hmac.compare_digest(given.encode(), token.encode()):
      return _said(401, "The token is missing or wrong.")
    # The token leaves the address, so that it is not shown or sent on.
    reply = responses.RedirectResponse("/", status_code=303)
    reply.set_cookie(_cookie(request), token, httponly=True, samesite="lax")
    return reply

  def _said(status: int, sentence: str) -> Any:
    return responses.PlainTextResponse(sentence, status_code=status)

  @app.exception_handler(ReportError)
  async def damaged(request: fastapi.Request, error: ReportError) -> Any:
    return _said(500, str(error))

  @app.get("/")
  async def whole() -> Any:
    return _html(await run_in_threadpool(pages.page))

  @app.get("/version")
  async def version() -> Any:
    found = await run_in_threadpool(pages.version)
    return responses.JSONResponse({"version": str(found)})

  @app.get("/cases/{key}")
  async def case(key: str) -> Any:
    return _found(await run_in_threadpool(pages.case, key))

  @app.get("/rollouts/{key:path}")
  async def rollout(key: str) -> Any:
    return _found(await run_in_threadpool(pages.rollout, key))

  def _html(text: str) -> Any:
    # A model's text may hold what UTF-8 cannot, such as half a surrogate pair.
    return responses.Response(
      text.encode("utf-8", "replace"), media_type="text/html; charset=utf-8"
    )

  def _found(text: str | None) -> Any:
    return (
      _said(404, "There is none of that name.")
      if text is None
      else (_html(text))
    )

  return app


def _cookie(request: Any) -> str:
  """Cookies know no ports, and a machine may show several runs."""
  return f"{COOKIE}_{request.url.port or 80}"


def _headers() -> dict[str, str]:
  return {
    "Content-Security-Policy": page.policy(script=True, live=True)
    + "; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
  }
