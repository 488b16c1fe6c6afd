"""The routes. Every page has a JSON twin, and none of them writes anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from qualify.errors import NoVerdict, QualifyError, StoreError, UsageError
from qualify.report.page import render_page
from qualify.report.site import MessagePage
from qualify.web.connections import RequestLimit
from qualify.web.headers import SafeHeaders
from qualify.web.metrics import exposition
from qualify.web.site import SHOWN, Site

JSON = "application/json"


def create_app(site: Site, hosts: Sequence[str]) -> FastAPI:
    """The application.

    Args:
        hosts: names under which it may be asked; ``*`` = any. A page of somebody else's, whose name was pointed at this
            machine's loopback address, asks under its own name.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(RequestLimit)
    app.add_middleware(SafeHeaders)
    _add_pages(app, site)
    _add_states(app, site)
    for kind in (QualifyError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _explain)
    return app


def _add_pages(app: FastAPI, site: Site) -> None:
    page = partial(app.api_route, methods=["GET", "HEAD"])

    @page("/")
    def runs(limit: int = SHOWN) -> Response:
        return HTMLResponse(site.runs(limit, twin=False))

    @page("/runs")
    def runs_folder() -> Response:
        return RedirectResponse("/")

    @page("/runs.json")
    def runs_twin(limit: int = SHOWN) -> Response:
        return Response(site.runs(limit, twin=True), media_type=JSON)

    @page("/runs/{run}/against/{before}.json")
    def diff_twin(run: str, before: str) -> Response:
        return Response(site.diff(run, before, twin=True), media_type=JSON)

    @page("/runs/{run}/against/{before}")
    def diff(run: str, before: str) -> Response:
        return HTMLResponse(site.diff(run, before, twin=False))

    @page("/runs/{run}.json")
    def report_twin(run: str) -> Response:
        return Response(site.report(run, twin=True), media_type=JSON)

    @page("/runs/{run}")
    def report(run: str) -> Response:
        return HTMLResponse(site.report(run, twin=False))

    @page("/canaries")
    def canaries() -> Response:
        return HTMLResponse(site.canaries("", twin=False))

    @page("/canaries.json")
    def canaries_twin() -> Response:
        return Response(site.canaries("", twin=True), media_type=JSON)

    @page("/canaries/{name}.json")
    def canary_twin(name: str) -> Response:
        return Response(site.canaries(name, twin=True), media_type=JSON)

    @page("/canaries/{name}")
    def canary(name: str) -> Response:
        return HTMLResponse(site.canaries(name, twin=False))


def _add_states(app: FastAPI, site: Site) -> None:
    page = partial(app.api_route, methods=["GET", "HEAD"])

    @page("/metrics")
    def metrics() -> Response:
        return Response(exposition(site), media_type=CONTENT_TYPE_LATEST)

    @page("/healthz")
    async def healthz() -> Response:
        """Liveness: the process answers, whatever the database does."""
        return JSONResponse({"alive": True})

    @page("/readyz")
    def readyz() -> Response:
        """Readiness: the database answers, and its schema is this program's."""
        try:
            return JSONResponse({"ready": True, "schema": site.store.check()})
        except StoreError as error:
            return JSONResponse({"ready": False, "reason": str(error)}, status_code=503)


async def _explain(request: Request, error: Exception) -> Response:
    """An error in words, as a page or, for a twin, as JSON."""
    status, text = _status(error)
    if request.url.path.endswith(".json"):
        return JSONResponse({"error": text}, status_code=status)
    page = MessagePage(title=f"{status}: {_WORDS.get(status, 'not answered')}", text=text)
    return HTMLResponse(render_page("message.html", page), status_code=status)


_WORDS = {400: "asked wrongly", 404: "not here", 405: "only to read", 503: "the store does not answer"}


def _status(error: Exception) -> tuple[int, str]:
    match error:
        case UsageError() | NoVerdict():
            return 404, str(error)
        case QualifyError():
            return 503, str(error)
        case HTTPException(status_code=404):
            return 404, "There is no such page."
        case HTTPException(status_code=405):
            return 405, "This site is read only."
        case HTTPException():
            return error.status_code, str(error.detail)
        case _:
            return 400, "The address is not understood: limit must be a number."
