"""``qualify web``: the pages over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from qualify.cli.shared import DEFAULT_DB, CardsOption, DbOption
from qualify.cli.terminal import emit, say


def web(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="IP address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")] = 8321,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that others reach. There is no login.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Host name under which it may be asked; may be repeated."),
    ] = None,
    db: DbOption = "",
    cards: CardsOption = None,
) -> None:
    """Serve the stored runs' reports, metrics and health over HTTP, to read only. SIGTERM ends it with exit code 0."""
    from qualify.cards.load import load_kernels
    from qualify.store.store import Store
    from qualify.web.server import Address, bind, serve, url_of
    from qualify.web.site import Site

    address = Address(host=host, port=port, exposed=expose, names=tuple(name or ()))
    kernels = load_kernels(tuple(cards or ()))
    with bind(address) as listening, Store.open(db or DEFAULT_DB, create=False, migrate=False) as store:
        emit(url_of(listening))
        serve(Site(store, kernels), listening, address, say)
