"""``qualify web``: the pages over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from qualify.cli.access import AccessOption
from qualify.cli.shared import DEFAULT_DB, CardsOption, DbOption, emit_line, typed
from qualify.cli.terminal import emit, say


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
    """Serve the store as a site with reports, sign-offs and metrics.

    SIGTERM ends it with exit code 0.
    """
    from qualify.cards.access import load_access
    from qualify.cards.load import load_kernels
    from qualify.store.store import Store
    from qualify.web.access import Access
    from qualify.web.server import Address, bind, on_loopback, serve, url_of
    from qualify.web.site import Site

    card = load_access(access) if access else None
    login = card is not None and card.needs_login
    address = Address(host=host, port=port, exposed=expose, names=tuple(name or ()), login=login)
    kernels = load_kernels(tuple(cards or ()))
    with bind(address) as listening, Store.open(db or DEFAULT_DB, create=False, migrate=False) as store:
        url, local = url_of(listening), on_loopback(address)
        if as_json:
            started = {"address": url, "access": "login" if login else "open", "exposed": not local}
            emit_line("web", {**started, "store": store.where})
        else:
            emit(url)
        people = Access(card, access, loopback=local)
        serve(Site(store, kernels, typed(cards=cards), folders=cards or ()), listening, address, people, say)
