"""``qualify canary``: matrices that run by themselves."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    DbOption,
    JsonOption,
    OutOption,
    emit_json,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, say
from qualify.errors import INTERRUPTED, QUALIFIED, InfrastructureError, UsageError

if TYPE_CHECKING:
    from qualify.canary.service import Options
    from qualify.cards.load import LoadedCanary


app = typer.Typer(
    help="Matrices that run by themselves, and what becomes of their verdicts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DEFAULT_LEASE = "canary"
LeaseOption = Annotated[str, typer.Option("--lease", metavar="NAME", help="Replicas of one lease share the canaries.")]
NodeOption = Annotated[
    str,
    typer.Option("--node", metavar="NAME", help="Name of this machine in holds and history. Default: its host name."),
]
CanaryArgument = Annotated[str, typer.Argument(metavar="CANARY", help="Name of a canary.")]


@app.callback()
def _root() -> None:
    """Say what is missing where only the base is installed."""
    from importlib.util import find_spec

    if find_spec("apscheduler") is None:
        raise InfrastructureError(
            "canaries need apscheduler, which is not installed: pip install 'attn-qualify[service]'"
        )


@app.command("list")
def canary_list(
    lease: LeaseOption = DEFAULT_LEASE, db: DbOption = "", cards: CardsOption = None, as_json: JsonOption = False
) -> None:
    """List every canary: when it fires next, how it ended last, what it holds; who leads; alerts given up."""
    from qualify.canary.overview import list_canaries, to_lines
    from qualify.cards.load import load_canaries

    loaded = load_canaries(tuple(cards or ()))
    with open_store(db, create=True) as store:
        data = list_canaries(store, loaded, lease)
    if as_json:
        emit_json("canaries", data)
    else:
        emit("\n".join(to_lines(data, _serve_command(lease, db, cards))))


@app.command("explain")
def canary_explain(
    name: CanaryArgument,
    lease: LeaseOption = DEFAULT_LEASE,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say when a canary fires next and why, what it did, and what speaks against running it here now."""
    from qualify.canary.overview import explain, explain_lines

    loaded = _canary(name, tuple(cards or ()))
    with open_store(db, create=True) as store:
        data = explain(store, loaded, lease, typed(cards=cards, db=db))
    if as_json:
        emit_json("canary", data)
    else:
        emit("\n".join(explain_lines(data, _serve_command(lease, db, cards))))


def _serve_command(lease: str, db: str, cards: list[Path] | None = None, node: str = "") -> str:
    """The command that serves the lease on this machine."""
    words = [*(["--lease", lease] if lease != DEFAULT_LEASE else []), *(["--node", node] if node else [])]
    return typed(cards=cards, db=db).command("canary", "serve", *words)


def _canary(name: str, cards: tuple[Path, ...]) -> LoadedCanary:
    """The canary of that name."""
    from qualify.cards.load import load_canaries, unknown_canary

    loaded = load_canaries(cards)
    if name not in loaded:
        raise unknown_canary(name, loaded)
    return loaded[name]


@app.command("health")
def canary_health(
    lease: LeaseOption = DEFAULT_LEASE,
    node: NodeOption = "",
    longest: Annotated[
        str, typer.Option("--max-age", metavar="TIME", help="How old the last look at the stack may be.")
    ] = "15m",
    db: DbOption = "",
) -> None:
    """Say whether the service on this machine lives and sees the stack, and whether somebody leads. Exit code 4: no."""
    import socket

    from qualify.canary.overview import ailments

    name, longest_s = node or socket.gethostname(), _span("--max-age", longest)
    with open_store(db, create=False) as store:
        found = ailments(store, lease, name, longest_s)
    if found:
        advice = f"Its log probably says why. Start it with: {_serve_command(lease, db, node=node)}"
        raise InfrastructureError(f"{'; '.join(found)}. {advice}")
    emit(f"{name} serves lease {lease} and sees its stack")


@app.command("fire")
def canary_fire(
    name: CanaryArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the history.")] = "by hand",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has ended. A leader runs it.")] = True,
    node: NodeOption = "",
    lease: LeaseOption = DEFAULT_LEASE,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fire a canary now: where a service leads it runs there, else here. Exit code: 0 promote, 1 worse, 5 undecided."""
    from qualify.canary.by_hand import exit_code, fire_and_wait
    from qualify.canary.overview import fire_data, fire_line

    folders = tuple(cards or ())
    loaded = _canary(name, folders)
    with open_store(db, create=True) as store:
        fire = store.canaries.ask(name, loaded.card.matrix, reason, lease)
        if wait:
            with open_store(db, create=True) as keeping:
                fire = fire_and_wait(store, keeping, fire, folders, _serving(db, node, lease, out), say)
    if as_json:
        emit_json("fire", fire_data(fire))
    else:
        emit(fire_line(fire_data(fire)))
    raise typer.Exit(exit_code(fire) if wait else QUALIFIED)


@app.command("serve")
def canary_serve(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CANARY]...", help="Names or globs of canaries. Default: all.")
    ] = None,
    poll: Annotated[str, typer.Option("--poll", metavar="TIME", help="Between two looks at the stack.")] = "60s",
    lease_time: Annotated[
        str,
        typer.Option("--lease-time", metavar="TIME", help="How long a leader may be silent before another takes over."),
    ] = "15s",
    node: NodeOption = "",
    lease: LeaseOption = DEFAULT_LEASE,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
) -> None:
    """Serve canaries until it is stopped: lead, or follow and take over. SIGTERM ends it with exit code 0."""
    from dataclasses import replace

    from qualify.canary.deck import Deck
    from qualify.canary.service import Service
    from qualify.report.files import check_folder

    options = replace(
        _serving(db, node, lease, out), lease_s=_span("--lease-time", lease_time), poll_s=_span("--poll", poll)
    )
    deck = Deck(tuple(cards or ()), tuple(names or ()))
    check_folder(out)
    ended_by: list[int] = []
    with open_store(db, create=True) as store, open_store(db, create=True) as keeping:
        service = Service(store, keeping, deck, options, say)

        def stop(number: int, _: object) -> None:
            ended_by.append(number)
            service.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        service.run()
    raise typer.Exit(INTERRUPTED if signal.SIGINT in ended_by else QUALIFIED)


def _serving(db: str, node: str, lease: str, out: Path) -> Options:
    """How this process takes part in the service."""
    import socket

    from qualify.canary.service import Options

    return Options(db=db or DEFAULT_DB, node=node or socket.gethostname(), lease=lease, out=out)


def _span(option: str, text: str) -> float:
    """A length of time as the cards write it."""
    import re

    from qualify.cards.canary import SPAN, seconds

    if not re.fullmatch(SPAN, text):
        raise UsageError(f"{option} {text}: give a number and its unit s, m, h or d, for example 60s")
    return float(seconds(text))
