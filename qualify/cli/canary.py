"""``qualify canary``: matrices that run by themselves."""

from __future__ import annotations

import signal
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    DbOption,
    JsonOption,
    OutOption,
    check_folder,
    emit_json,
    emit_line,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, kept_elsewhere, say
from qualify.errors import INFRASTRUCTURE, INTERRUPTED, QUALIFIED, InfrastructureError, UsageError

if TYPE_CHECKING:
    from qualify.canary.options import Options
    from qualify.cards.load import LoadedCanary
    from qualify.facts.canary import Fire
    from qualify.store.store import Store


app = typer.Typer(
    help="Matrices that run at set times or after an upgrade. They send alerts. A fire is one such run; the holder "
    "of a lease leads the service.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DEFAULT_LEASE = "canary"


class LogForm(str, Enum):
    """How the log of a service is written."""

    text = "text"
    json = "json"


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
    """List every canary: when it fires next, and how it ended last.

    It also lists what canaries hold, who leads, and alerts that were given up.
    """
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
    """Say when a canary fires next and why, and what it did.

    It also lists what forbids a run here now. A canary that would run nothing is an error.
    """
    from qualify.canary.idle import refuse_idle
    from qualify.canary.overview import explain, explain_lines

    loaded = _canary(name, tuple(cards or ()))
    refuse_idle(loaded, tuple(cards or ()))
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
    from qualify.cards.load import load_canaries
    from qualify.cards.named import unknown_canary

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
    as_json: JsonOption = False,
) -> None:
    """Say whether the canary service on this machine works.

    It works where it saw the stack within --max-age and a service of its lease leads. Exit code 4: it does not.
    """
    import socket

    from qualify.canary.overview import ailments
    from qualify.facts.canary import own_lease

    name, longest_s = node or socket.gethostname(), _span("--max-age", longest)
    with open_store(db, create=False) as store:
        found = ailments(store, lease, name, longest_s)
        known = store.canaries.lease(own_lease(lease, name)) is not None
    if as_json:
        emit_json("health", {"node": name, "lease": lease, "healthy": not found, "ailments": list(found)})
        raise typer.Exit(INFRASTRUCTURE if found else QUALIFIED)
    if found:
        advice = "Its log probably says why. Start it again" if known else "Start one"
        raise InfrastructureError(f"{'; '.join(found)}. {advice}: {_serve_command(lease, db, node=node)}")
    emit(f"the canary service on {name} works: it sees the stack, and a service leads (lease {lease})")


@app.command("fire")
def canary_fire(
    name: CanaryArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the history.")] = "by hand",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it ends; --no-wait leaves it to a leader.")
    ] = True,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="NODE",
            help="Run it on that machine of the service; `every-node`: on all that serve it, in waves where its card "
            "has them, without waiting.",
        ),
    ] = "",
    node: NodeOption = "",
    lease: LeaseOption = DEFAULT_LEASE,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fire a canary now. One that would run nothing is an error.

    Where a service leads, that service runs it; else this command does. Exit code: 0 promote, 1 worse, 5 undecided,
    4 it could not run.
    """
    from qualify.canary.by_hand import exit_code, fire_and_wait
    from qualify.canary.idle import refuse_idle
    from qualify.canary.log import plain_log
    from qualify.canary.overview import fire_data, fire_line
    from qualify.canary.waves import EVERY_NODE

    folders = tuple(cards or ())
    loaded = _canary(name, folders)
    refuse_idle(loaded, folders)
    wait = wait and on != EVERY_NODE
    if wait:
        check_folder(out)
    with open_store(db, create=True) as store:
        fire, *others = ask(store, loaded, reason, lease, on)
        if wait:
            with open_store(db, create=True) as keeping:
                fire = fire_and_wait(store, keeping, fire, folders, _serving(db, node, lease, out), plain_log(say))
    look = typed(cards=cards, db=db).command("canary", "explain", name)
    with kept_elsewhere(f"Fire {fire.id} is filed, and typing the command again would file another one: {look}"):
        if as_json:
            emit_json("fire", fire_data(fire))
        else:
            emit("\n".join(fire_line(fire_data(each)) for each in (fire, *others)))
    raise typer.Exit(exit_code(fire) if wait else QUALIFIED)


def ask(store: Store, loaded: LoadedCanary, reason: str, lease: str, on: str) -> list[Fire]:
    """File a fire by hand: for the leader, or for machines of the service.

    Raises:
        UsageError: the leader does not serve the canary, so nobody would run the fire.
    """
    from qualify.canary.nodes import leader_lacks
    from qualify.canary.waves import EVERY_NODE, nodes_for

    card = loaded.card
    if not on:
        if lacks := leader_lacks(store.canaries, lease, [card.canary]):
            raise UsageError(
                f"{lacks[0]}, which leads lease {lease}, does not serve {card.canary}, so nobody would run this fire. "
                "Give that service the card, or type the lease of the service that has it: --lease NAME."
            )
        return [store.canaries.ask(card.canary, card.matrix, reason, lease)]
    nodes, waves = nodes_for(store.canaries, loaded, lease, on), bool(card.rollout) and on == EVERY_NODE
    return store.canaries.ask_nodes(card.canary, card.matrix, reason, nodes, waves=waves)


@app.command("waves")
def canary_waves(
    name: CanaryArgument,
    wave: Annotated[
        int | None,
        typer.Option("--wave", metavar="N", min=0, help="Exit code: wave N's advice: 0 promote, 1 roll back, else 5."),
    ] = None,
    lease: LeaseOption = DEFAULT_LEASE,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the rollouts of a canary, wave by wave.

    For each wave it shows the nodes, how far they are, and the advice.
    """
    from qualify.canary.waves import wave_code, waves, waves_lines
    from qualify.cards.load import load_canaries

    with open_store(db, create=False) as store:
        data = waves(store.canaries, name, lease)
    if not data["rollouts"] and name not in load_canaries(()):
        raise UsageError(
            f"no rollout of a canary {name!r} is stored, and no shipped canary has that name. `qualify canary list` "
            "names the canaries; --lease names another lease."
        )
    code = QUALIFIED if wave is None else wave_code(data, wave)
    if as_json:
        emit_json("waves", data)
    else:
        emit("\n".join(waves_lines(data)))
    raise typer.Exit(code)


@app.command("serve")
def canary_serve(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="CANARY", help="Names or globs of canaries. Default: all.")
    ] = None,
    poll: Annotated[str, typer.Option("--poll", metavar="TIME", help="Time between two looks at the stack.")] = "60s",
    lease_time: Annotated[
        str,
        typer.Option("--lease-time", metavar="TIME", help="How long a leader may be silent before another takes over."),
    ] = "15s",
    node: NodeOption = "",
    lease: LeaseOption = DEFAULT_LEASE,
    log: Annotated[
        LogForm, typer.Option("--log", help="The log on stderr: lines of text, or one JSON object for each line.")
    ] = LogForm.text,
    allow_program: Annotated[
        list[Path] | None,
        typer.Option("--allow-program", metavar="PATH", help="A program that alerts of kind command may run."),
    ] = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One line of JSON once it serves, or the error that ends it; a log of JSON."),
    ] = False,
) -> None:
    """Run canaries at their times, until it is stopped.

    One service leads, the others follow and take over. SIGTERM ends it with exit code 0.
    """
    from dataclasses import replace

    options = replace(
        _serving(db, node, lease, out),
        lease_s=_span("--lease-time", lease_time),
        poll_s=_span("--poll", poll),
        programs=tuple(map(_program, allow_program or ())),
    )
    form = LogForm.json if as_json else log
    ended_by = _serve(options, tuple(cards or ()), tuple(names or ()), form, as_json=as_json)
    sys.exit(QUALIFIED if ended_by == signal.SIGTERM else INTERRUPTED)


def _serve(options: Options, cards: tuple[Path, ...], names: tuple[str, ...], log: LogForm, *, as_json: bool) -> int:
    """Serve until a signal comes; returns its number. After nohup a terminal that closes ends nothing."""
    from qualify.canary.deck import Deck
    from qualify.canary.log import service_log
    from qualify.canary.overview import serving_data
    from qualify.canary.service import Service

    deck = Deck(cards, names)
    check_folder(options.out)
    ended_by: list[int] = []
    with open_store(options.db, create=True) as store, open_store(options.db, create=True) as keeping:
        told = service_log(say, log.value, node=options.node, lease=options.lease)
        service = Service(store, keeping, deck, options, told)
        if as_json:
            emit_line("serve", serving_data(options, deck))

        def stop(number: int, _: object) -> None:
            ended_by.append(number)
            service.stop()

        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGTERM, signal.SIGINT, *hangup):
            signal.signal(number, stop)
        service.run()
    return next((number for number in ended_by if number != signal.SIGTERM), signal.SIGTERM)


def _serving(db: str, node: str, lease: str, out: Path) -> Options:
    """How this process takes part in the service."""
    import socket

    from qualify.canary.options import Options

    return Options(db=db or DEFAULT_DB, node=node or socket.gethostname(), lease=lease, out=out)


def _program(path: Path) -> str:
    """The path of a program. Raises UsageError where none is there: each alert that needs it would fail."""
    import shutil

    if shutil.which(path) is None:
        raise UsageError(f"--allow-program {path}: no program is there that can be run. The path is probably mistyped")
    return str(path)


def _span(option: str, text: str) -> float:
    """The seconds of a length of time, written as on the cards. Raises UsageError for another text."""
    import re

    from qualify.cards.canary import SPAN, seconds

    if not re.fullmatch(SPAN, text):
        raise UsageError(f"{option} {text}: give a number and its unit s, m, h or d, for example 60s")
    return float(seconds(text))
