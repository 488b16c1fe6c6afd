"""``qualify web``: the pages over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from qualify.cli.access import AccessOption
from qualify.cli.shared import DEFAULT_DB, CardsOption, DbOption, typed
from qualify.cli.terminal import emit, say
from qualify.errors import QualifyError


def web(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="IP address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")] = 8321,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that other machines reach; needs --access with a login.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Host name that requests may use; may be repeated."),
    ] = None,
    access: AccessOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON on stdout when it listens, or when it cannot start.")
    ] = False,
) -> None:
    """Serve the store as a site: reports, lists, sign-offs, metrics, health. SIGTERM ends it with exit code 0."""
    with _told(as_json=as_json):
        _serve(access, host, port, name or [], db, cards, exposed=expose, as_json=as_json)


def _serve(
    access: Path | None,
    host: str,
    port: int,
    names: Sequence[str],
    db: str,
    cards: Sequence[Path] | None,
    *,
    exposed: bool,
    as_json: bool,
) -> None:
    from qualify.cards.access import load_access
    from qualify.cards.load import load_kernels
    from qualify.store.store import Store
    from qualify.web.access import Access
    from qualify.web.server import Address, bind, on_loopback, serve, url_of
    from qualify.web.site import Site

    card = load_access(access) if access else None
    login = card is not None and card.needs_login
    address = Address(host=host, port=port, exposed=exposed, names=tuple(names), login=login)
    kernels = load_kernels(tuple(cards or ()))
    with bind(address) as listening, Store.open(db or DEFAULT_DB, create=False, migrate=False) as store:
        url, local = url_of(listening), on_loopback(address)
        started = {"address": url, "access": "login" if login else "open", "exposed": not local}
        emit(_line({**started, "store": store.where}) if as_json else url, plain=as_json)
        people = Access(card, access, loopback=local)
        serve(Site(store, kernels, typed(cards=cards)), listening, address, people, say)


@contextmanager
def _told(*, as_json: bool) -> Iterator[None]:
    """Says on stdout why the site cannot start or go on, where a program reads it; stderr has the same in words."""
    try:
        yield
    except QualifyError as error:
        if as_json:
            emit(_line({"error": str(error), "exit_code": error.exit_code}), plain=True)
        raise


def _line(data: dict[str, Any]) -> str:
    """One line: who starts a site reads it while the site goes on."""
    return json.dumps({"schema": "qualify.web/1", **data}, ensure_ascii=False)
