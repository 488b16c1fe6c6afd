"""The routes that read. Every page has a JSON twin, and a table also CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import BaseRoute, Match, Route

from qualify import __version__
from qualify.errors import NotAllowed, NoVerdict, QualifyError, StoreError, UsageError
from qualify.facts.overview import RunQuery
from qualify.facts.people import is_proven
from qualify.report.columns import AnyTable
from qualify.report.page import render_page
from qualify.report.site import ACCOUNT, MessagePage
from qualify.report.sitepages.fleet import CardQuery
from qualify.report.sitepages.parts import PartsPage, parts_json, render_parts
from qualify.report.sitepages.people import login_page
from qualify.report.sitepages.run_cases import CaseQuery
from qualify.text import clipped
from qualify.web.access import Access, AccessRefused, Caller
from qualify.web.actions import actions, login, within
from qualify.web.body import LONGEST_ADDRESS, BodyLimit, refuse_long
from qualify.web.connections import RequestLimit
from qualify.web.guard import READING, Guard, TooMany
from qualify.web.headers import RefusedGzip, SafeHeaders
from qualify.web.metrics import exposition
from qualify.web.pages import HTML, JSON, Pages, packed
from qualify.web.site import SHOWN, Site
from qualify.web.verdicts import NotJudged

SMALLEST = 1_000
"""answers of at least so many bytes are compressed"""
WORDS = {
    400: "bad request",
    401: "log in",
    403: "not allowed",
    404: "not found",
    405: "method not allowed",
    409: "not possible",
    413: "too large",
    415: "format not supported",
    429: "too many requests",
    503: "the store does not answer",
}
LOST = "What was sent is not stored: log in, and send it again."
CASES_SHOWN = CaseQuery().limit
CARDS_SHOWN = CardQuery().limit
MOST_SHOWN = 61
"""characters of a wrong value in a message, with the ellipsis of a longer one"""
ERROR = {
    "content": {
        JSON: {"schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}}
    }
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, **ERROR} for status, words in WORDS.items() if status != 405
}
Text = Annotated[str, Query(max_length=200)]
EVERY = 10**9
"""rows of a list that its CSV holds, unless a limit is given"""
Number = Annotated[int, Query(ge=0, le=EVERY)]


def create_app(site: Site, hosts: Sequence[str], access: Access) -> FastAPI:
    """The application.

    Args:
        hosts: host names that requests may use; ``*`` = any. Another site may point its name at this machine's loopback
            address (DNS rebinding): its page then asks under that name, and is refused.
        access: who may do what.
    """
    app = FastAPI(
        title="qualify",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(refuse_long)],
    )
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST, compresslevel=5)
    app.add_middleware(RefusedGzip)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(RequestLimit)
    app.add_middleware(BodyLimit)
    app.add_middleware(SafeHeaders)
    guard = Guard(site.store, access)
    _add_states(app, site)
    reading = APIRouter(dependencies=[Depends(guard.may("read"))], responses=ERRORS)
    pages = Pages(reading, site)
    _add_lists(pages, site)
    _add_compared(pages, site)
    _add_reports(pages, site)
    _add_canaries(pages, site, guard)
    _add_people(pages, site, guard)
    _add_machine(reading, app, site)
    routers = (login(guard), reading, actions(site, guard, ERRORS))
    for router in routers:
        app.include_router(router)
    routes = [route for router in (app, *routers) for route in router.routes]
    for kind in (QualifyError, HTTPException, RequestValidationError, AccessRefused):
        app.add_exception_handler(kind, partial(_explain, access, routes))
    return app


def _run_query(shown: int) -> Any:
    """What an address asks of the list of runs.

    Args:
        shown: rows that it has where the address does not say.
    """

    def asked(q: Text = "", matrix: Text = "", stack: Text = "", offset: Number = 0, limit: Number = shown) -> RunQuery:
        return RunQuery(text=q, matrix=matrix, stack=stack, offset=offset, limit=limit)

    return Depends(asked)


def _card_query(shown: int) -> Any:
    """What an address asks of the cards of a fleet, as :func:`_run_query`."""

    def asked(q: Text = "", state: Text = "", node: Text = "", offset: Number = 0, limit: Number = shown) -> CardQuery:
        return CardQuery(text=q, state=state, node=node, offset=offset, limit=limit)

    return Depends(asked)


def _case_query(shown: int) -> Any:
    """What an address asks of the cases of a run, as :func:`_run_query`."""

    def asked(
        q: Text = "",
        verdict: Text = "",
        model: Text = "",
        kernel: Text = "",
        offset: Number = 0,
        limit: Number = shown,
    ) -> CaseQuery:
        return CaseQuery(text=q, verdict=verdict, model=model, kernel=kernel, offset=offset, limit=limit)

    return Depends(asked)


def _add_lists(pages: Pages, site: Site) -> None:
    add = pages.add

    @add("/", "home", twin="/home")
    def home() -> PartsPage:
        return site.home()

    page, every = _run_query(SHOWN), _run_query(EVERY)

    @add("/runs", "runs", table=False)
    def runs(query: RunQuery = page) -> PartsPage:
        return site.runs(query)

    @pages.rows("/runs.csv")
    def runs_csv(query: RunQuery = every) -> Iterator[AnyTable]:
        return site.run_tables(query)

    add("/models", "models")(site.models)
    add("/models/{name}", "model")(site.model)
    add("/kernels", "kernels")(site.kernels)
    add("/kernels/{name}", "kernel")(site.kernel)
    add("/findings", "findings")(site.findings)
    add("/waivers", "waivers")(site.waivers)
    add("/duels", "duels")(site.duels)
    add("/duels/{name}", "duel")(site.duel)
    add("/stacks", "stacks")(site.stacks)
    add("/stacks/{fingerprint}", "stack")(site.stack)


def _add_compared(pages: Pages, site: Site) -> None:
    html, twin = pages.html, pages.twin

    @html("/compare")
    def compare(request: Request, after: Text = "", before: Text = "") -> Response:
        if after and before:
            other = before if before.partition(":")[0] == "baseline" else site.head(before).id
            return RedirectResponse(f"/runs/{site.head(after).id}/against/{other}", 303)
        made = site.kept(("/compare", after, before), lambda: render_parts(site.compare(after, before)))
        return packed(request, made, HTML)

    @twin("/compare.json")
    def compare_twin(request: Request) -> Response:
        """The newest runs, which may be compared."""
        made = site.kept("/compare.json", lambda: parts_json("compare", site.compare("", "")))
        return packed(request, made, JSON)

    @twin("/runs/{run}/against/{before}.json")
    def diff_twin(request: Request, run: str, before: str) -> Response:
        """What changed between two runs."""
        return packed(request, site.diff(run, before, twin=True), JSON)

    @html("/runs/{run}/against/{before}")
    def diff(request: Request, run: str, before: str) -> Response:
        return packed(request, site.diff(run, before, twin=False), HTML)


def _add_reports(pages: Pages, site: Site) -> None:
    @pages.twin("/runs/{run}.json")
    def report_twin(request: Request, run: str) -> Response:
        """The report of a run."""
        return packed(request, site.report(run, twin=True), JSON)

    @pages.html("/runs/{run}")
    def report(request: Request, run: str) -> Response:
        return packed(request, site.report(run, twin=False), HTML)

    _add_cases(pages, site)
    _add_newest(pages, site, "fleets", "The newest fleets, with every card.", site.fleets)

    page, every = _card_query(CARDS_SHOWN), _card_query(EVERY)

    @pages.csv("/fleets/{name}.csv")
    def fleet_csv(name: str, query: CardQuery = every) -> PartsPage:
        return site.fleet(name, query, most=EVERY)

    @pages.add("/fleets/{name}", "fleet", table=False)
    def fleet(name: str, query: CardQuery = page) -> PartsPage:
        return site.fleet(name, query)

    _add_newest(pages, site, "selftest", "The newest result of the selftest.", site.selftest)


def _add_cases(pages: Pages, site: Site) -> None:
    page, every = _case_query(CASES_SHOWN), _case_query(EVERY)

    @pages.add("/runs/{run}/cases", "run-cases", table=False)
    def cases(run: str, query: CaseQuery = page) -> PartsPage:
        return site.cases.of_run(run, query)

    @pages.csv("/runs/{run}/cases.csv")
    def cases_csv(run: str, query: CaseQuery = every) -> PartsPage:
        return site.cases.of_run(run, query, most=EVERY)

    @pages.add("/runs/{run}/cases/{case:path}", "run-case", table=False, template="run_case.html")
    def case(run: str, case: str) -> PartsPage:
        return site.cases.in_run(run, case)


def _add_newest(pages: Pages, site: Site, name: str, words: str, make: Callable[..., str]) -> None:
    """A page that is no list of parts, and its JSON twin.

    Args:
        words: what the OpenAPI description says of the twin.
    """

    def twin(request: Request) -> Response:
        return packed(request, site.kept(f"/{name}.json", lambda: make(twin=True)), JSON)

    def page(request: Request) -> Response:
        return packed(request, site.kept(f"/{name}", lambda: make(twin=False)), HTML)

    twin.__doc__ = words
    pages.twin(f"/{name}.json")(twin)
    pages.html(f"/{name}")(page)


def _add_canaries(pages: Pages, site: Site, guard: Guard) -> None:
    add, asking = pages.add, Depends(guard.may("read"))

    @add("/canaries", "canaries")
    def canaries() -> PartsPage:
        return site.canaries("")

    add("/canaries/{name}", "canaries")(site.canaries)
    add("/holds", "holds")(site.holds)

    @add("/holds/{number}", "hold", table=False)
    def hold(number: int, caller: Caller = asking) -> PartsPage:
        return site.hold(number, may_act="comment" in caller.rights)


def _add_people(pages: Pages, site: Site, guard: Guard) -> None:
    add, asking, signing = pages.add, Depends(guard.may("read")), Depends(guard.may("sign"))

    @add("/runs/{run}/decision", "decision", table=False)
    def decision(run: str, caller: Caller = asking) -> PartsPage:
        roles = guard.access.card.roles_of(caller.person.name) if "sign" in caller.rights else ()
        proven = is_proven(caller.person.how)
        return site.decision(
            run, roles=roles, may_write="comment" in caller.rights, proven=proven, person=caller.person
        )

    @add("/cases/{case:path}", "case")
    def case(case: str, caller: Caller = asking) -> PartsPage:
        return site.cases.history(case, may_write="comment" in caller.rights)

    @add("/audit", "audit", table=False)
    def audit(before: Number | None = None, _: Caller = signing) -> PartsPage:
        return site.audit(before)

    @pages.rows("/audit.csv")
    def audit_csv(before: Number | None = None, _: Caller = signing) -> Iterator[AnyTable]:
        return site.audit_tables(before)


def _add_machine(router: APIRouter, app: FastAPI, site: Site) -> None:
    @router.get("/metrics", include_in_schema=False)
    @router.head("/metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(exposition(site), media_type=CONTENT_TYPE_LATEST)

    @router.get("/openapi.json", include_in_schema=False)
    @router.head("/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return JSONResponse(app.openapi())


def _add_states(app: FastAPI, site: Site) -> None:
    page = partial(app.api_route, methods=["GET", "HEAD"], include_in_schema=False)

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


async def _explain(access: Access, routes: Sequence[BaseRoute], request: Request, error: Exception) -> Response:
    """An error in words: JSON for a twin and for a program, a page for a browser."""
    status, text = _status(request, error)
    headers = {"retry-after": str(error.wait_s)} if isinstance(error, TooMany) else {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="qualify"'
    if status == 405:
        headers["allow"] = _methods(routes, request)
    accepted, sent = request.headers.get("accept", ""), request.headers.get("content-type", "")
    program = "text/html" not in accepted and (JSON in accepted or (request.method not in READING and JSON in sent))
    if request.url.path.endswith(".json") or program:
        return JSONResponse({"error": text}, status_code=status, headers=headers)
    back = _asked_for(request)
    if status == 401:
        lost = "" if request.method in READING or request.url.path == ACCOUNT else f" {LOST}"
        page = login_page(with_token=access.has_tokens, why=f"{text}{lost}", back=back)
        return HTMLResponse(render_parts(page), status_code=status, headers=headers)
    told, leads_to = (f"{text.removesuffix('.')}. Back: ", back) if _sent_by(request) else _with_address(text)
    message = MessagePage(title=f"{status}: {WORDS.get(status, 'not answered')}", text=told, leads_to=leads_to)
    if isinstance(error, NotJudged):
        message = _not_judged(error, status)
    return HTMLResponse(render_page("message.html", message, frame=message), status_code=status, headers=headers)


def _methods(routes: Sequence[BaseRoute], request: Request) -> str:
    """The methods that the address takes, over all its routes."""
    fitting = [it for it in routes if isinstance(it, Route) and it.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for it in fitting for method in it.methods or ()}))


def _with_address(text: str) -> tuple[str, str]:
    """A message without the page of this site that it names last, and that page; empty where it names none."""
    found = re.fullmatch(r"(.*: )(/[a-z]+)", text, re.DOTALL)
    return (found[1], found[2]) if found else (text, "")


def _asked_for(request: Request) -> str:
    """The address of the page that a person wanted, or whose form was sent; empty where a login cannot lead there."""
    query = request.scope["query_string"]
    address: str = (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
    if request.method not in READING:
        address = getattr(request.state, "back", "") or _sent_by(request)
    elsewhere = not address or address.partition("?")[0] == ACCOUNT or len(address) > LONGEST_ADDRESS
    return "" if elsewhere else within(address)


def _sent_by(request: Request) -> str:
    """The address of the page of this site whose form was sent; empty where no form was, or nobody knows."""
    page = urlsplit(request.headers.get("referer", ""))
    if request.method in READING or page.netloc != request.headers.get("host") or page.path == ACCOUNT:
        return ""
    return f"{page.path}?{page.query}" if page.query else page.path


def _not_judged(error: NotJudged, status: int) -> MessagePage:
    """What is wrong, what the site shows all the same, and what to do."""
    run = error.head.id
    return MessagePage(
        title=f"{status}: run {run} cannot be judged",
        text=f"This qualify {__version__} does not accept the matrix of run {run}, or its waivers. So its report, its "
        "cases and comparisons with it are not shown:",
        items=tuple(error.lines),
        advice=(
            "All evidence is still stored: the list of runs has the run, the history of a case its outcome and time.",
            "Run the matrix again with this qualify: qualify run MATRIX. Or open the run with the one that made it.",
            "If a file of waivers is wrong, mend it: it is read at each request.",
        ),
    )


def _status(request: Request, error: Exception) -> tuple[int, str]:
    match error:
        case AccessRefused():
            return error.status, error.text
        case NotAllowed():
            return 403, str(error)
        case NotJudged():
            return 409, f"run {error.head.id} cannot be judged: {'; '.join(str(error).splitlines())}"
        case UsageError() if request.method not in READING and not str(error).startswith(("no run ", "run ")):
            return 409, str(error)
        case UsageError() | NoVerdict():
            return 404, str(error)
        case QualifyError():
            return 503, str(error)
        case HTTPException(status_code=404) if request.method in READING:
            return 404, "There is no such page."
        case HTTPException(status_code=405):
            return 405, "This address does not take that method."
        case HTTPException():
            return error.status_code, str(error.detail)
        case _:
            assert isinstance(error, RequestValidationError), "no other error is handled here"
            return 400, f"The address is not understood: {'; '.join(map(_mistake, error.errors()[:5]))}."


def _mistake(found: Mapping[str, Any]) -> str:
    """What is wrong in an address: the name of the part, its value, and what it should be."""
    given = str(found["input"])
    return f"{found['loc'][-1]} is {clipped(given, MOST_SHOWN)!r}: {found['msg']}"
