"""How a page becomes routes: HTML for people, a JSON twin for programs, CSV for its table."""

from __future__ import annotations

import gzip
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from inspect import Parameter
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from qualify.errors import QualifyError
from qualify.facts.people import is_proven
from qualify.report.columns import AnyTable
from qualify.report.sitepages.parts import PartsPage, csv_pieces, parts_csv, parts_json, render_parts
from qualify.web.access import Caller
from qualify.web.rendered import Packed
from qualify.web.site import Site

JSON = "application/json"
HTML = "text/html; charset=utf-8"
CSV = "text/csv; charset=utf-8"
OBJECT: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON: {"schema": {"type": "object"}}}, "description": "The facts of the page."}
}
ATTACHED = {"content-disposition": 'attachment; filename="qualify.csv"'}
Make = Callable[..., PartsPage]
MakeRows = Callable[..., Iterator[AnyTable]]
Reading = Callable[..., Response]


class Pages:
    """Adds the routes of pages to a router."""

    def __init__(self, router: APIRouter, site: Site) -> None:
        self._router = router
        self._site = site

    def add(
        self, path: str, kind: str, *, twin: str = "", table: bool = True, template: str = "parts.html"
    ) -> Callable[[Make], Make]:
        """Makes routes of a function that gives a page of parts: its JSON twin, CSV of its main table, and HTML.

        Args:
            kind: of its JSON's schema.
            twin: address of the twins, where it is another than that of the page.
            table: whether it has CSV.
            template: of its HTML.
        """
        stem = twin or path

        def add(make: Make) -> Make:
            self.twin(f"{stem}.json")(self._kept(make, f"{stem}.json", partial(parts_json, kind), JSON))
            if table:
                self.csv(f"{stem}.csv")(make)
            self.html(path)(self._kept(make, path, partial(render_parts, template=template), HTML))
            return make

        return add

    def csv(self, path: str) -> Callable[[Make], Make]:
        """The route of a table as CSV."""

        def add(make: Make) -> Make:
            self.html(path)(self._kept(make, path, parts_csv, CSV))
            return make

        return add

    def rows(self, path: str) -> Callable[[MakeRows], MakeRows]:
        """The route of a table as CSV that may be long: it is sent while it is read, and never in memory as a whole."""

        def add(make: MakeRows) -> MakeRows:
            def route(request: Request, **named: Any) -> Response:
                pieces = csv_pieces(make(**named))
                first = next(pieces)  # what is refused, or fails at once, is so before the answer begins
                sent = () if request.method == "HEAD" else chain([first], pieces)
                return Pieces(sent, media_type=CSV, headers=ATTACHED)

            self.html(path)(_as_route(make, route))
            return make

        return add

    def html(self, path: str) -> Callable[[Reading], Reading]:
        """A route for people, which the OpenAPI description leaves out."""
        return self._router.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)

    def twin(self, path: str) -> Callable[[Reading], Reading]:
        """The route of a page's JSON, which the OpenAPI description knows."""

        def add(route: Reading) -> Reading:
            name = f"get_{path.removesuffix('.json').strip('/').replace('/', '_')}"
            self._router.get(path, responses=OBJECT, operation_id=name, response_class=JSONResponse)(route)
            self._router.head(path, include_in_schema=False)(route)
            return route

        return add

    def _kept(self, make: Make, path: str, shape: Callable[[PartsPage], str], media_type: str) -> Reading:
        """The route of a page in one shape, which is rendered once for each state of the store."""

        def route(request: Request, **named: Any) -> Response:
            key = (path, *map(_key, named.values()))
            return packed(request, self._site.kept(key, lambda: shape(make(**named))), media_type)

        return _as_route(make, route)


def _as_route(make: Callable[..., Any], route: Reading) -> Reading:
    """The route with the signature of what makes its answer.

    FastAPI reads from it what a route takes, and what it gives: an answer, not a page.
    """
    signature = inspect.signature(make, eval_str=True)
    asked = Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)
    taken = [it.replace(kind=Parameter.KEYWORD_ONLY) for it in signature.parameters.values()]
    route.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[asked, *taken], return_annotation=Response
    )
    route.__doc__ = make.__doc__
    return route


def _key(argument: Any) -> Hashable:
    """The part of an argument that may change a page; of a caller, the person, whether proven, and the rights."""
    if isinstance(argument, Caller):
        return argument.person.name, is_proven(argument.person.how), argument.rights
    found: Hashable = argument
    return found


class Pieces(StreamingResponse):
    """An answer in pieces. Where the store fails between two, it ends without an end: no client takes it for whole."""

    async def stream_response(self, send: Send) -> None:
        """Send what there is."""
        with suppress(QualifyError):
            await super().stream_response(send)


def packed(request: Request, page: Packed, media_type: str) -> Response:
    """A page, compressed for clients that take that; an empty answer for a client that has it already."""
    headers = {"vary": "Accept-Encoding", "etag": page.tag}
    known = (it.strip() for it in request.headers.get("if-none-match", "").split(","))
    if page.tag in known:
        return Response(status_code=304, headers=headers)
    if media_type == CSV:
        headers |= ATTACHED
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(page.content, media_type=media_type, headers=headers)
    return Response(gzip.decompress(page.content), media_type=media_type, headers=headers)
