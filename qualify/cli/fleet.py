"""``qualify fleet``, ``collect`` and ``coverage``: the cards of many machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qualify.cli.node import ArrayOption, check_names, plan_of
from qualify.cli.shared import (
    CardsOption,
    DbOption,
    JsonOption,
    KernelOption,
    LevelToRunOption,
    MatrixArgument,
    OutOption,
    QuietOption,
    SelectOption,
    SignedByOption,
    Talk,
    check_folder,
    detail_of,
    emit_json,
    joined,
    log_of,
    open_store,
    talk_of,
    typed,
)
from qualify.cli.terminal import emit, kept_elsewhere, say
from qualify.errors import UsageError
from qualify.files import exists

if TYPE_CHECKING:
    from qualify.facts.fleet import Coverage, NodePlan
    from qualify.facts.typed import Typed
    from qualify.facts.vote import Vote
    from qualify.fleet.drive import FleetOrder
    from qualify.store.store import Store

EngineOption = Annotated[
    Literal["ray"], typer.Option(help="Library that places tasks on nodes; the extra `fleet` installs it.")
]
AddressOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="Address of the Ray cluster; auto: that of RAY_ADDRESS, or the one on this machine."
    ),
]
NodeDeviceOption = Annotated[str, typer.Option(metavar="cuda:all|cpu:N", help="Cards of every node.")]
SpreadOption = Annotated[
    Literal["shard", "repeat"],
    typer.Option(help="repeat: every card runs all; shard: the equal cards of all nodes share the production shapes."),
]
CoverageOption = Annotated[
    float, typer.Option(min=0, max=1, metavar="SHARE", help="Share of the cards to cover; below it: exit code 5.")
]
StartOption = Annotated[
    float, typer.Option("--start-within", min=0, metavar="SECONDS", help="A node that begins later is BUSY.")
]
DeadlineOption = Annotated[
    float | None, typer.Option("--deadline", min=0, metavar="SECONDS", help="A node that takes longer is stopped.")
]
AgainOption = Annotated[
    str, typer.Option(metavar="FLEET", help="Make another attempt on the uncovered cards of this fleet.")
]


def fleet(
    matrix: MatrixArgument,
    engine: EngineOption = "ray",
    address: AddressOption = "auto",
    device: NodeDeviceOption = "cuda:all",
    spread: SpreadOption = "repeat",
    select: SelectOption = None,
    kernel: KernelOption = None,
    level: LevelToRunOption = None,
    coverage: CoverageOption = 1.0,
    start_s: StartOption = 600.0,
    deadline_s: DeadlineOption = None,
    again: AgainOption = "",
    signed_by: SignedByOption = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every node that begins, and for every file of it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a matrix on every card of a cluster.

    The answer says which cards are covered, and which ones disagree about bits.

    With `--spread shard` the shares of the nodes make one run of the whole matrix, for `qualify gate` and `baseline`.
    """
    from qualify.facts.fleet import NodePlan
    from qualify.seal.keys import public_keys

    talk = talk_of(quiet=quiet, verbose=verbose)
    if deadline_s is not None and not deadline_s > 0:
        raise UsageError(f"--deadline {deadline_s:g}: give seconds above 0, or leave it out for no deadline")
    plan = NodePlan(
        matrix=matrix,
        select=joined(select),
        kernel=kernel,
        level=level.value if level else None,
        device=device,
        spread=spread,
        cards=tuple(str(folder.resolve()) for folder in cards or ()),
        deadline_s=deadline_s,
    )
    keys = tuple(public_keys(signed_by)) if signed_by else ()
    order = replace(_order_of(plan), least_coverage=coverage, start_s=start_s, again=again, keys=keys)
    check_folder(out)
    with open_store(db, create=True) as store:
        fleet_id = _led(store, order, engine, address, out, talk, typed(db=db))
        code = _show(store, fleet_id, cards or (), typed(cards=cards, db=db), as_json=as_json)
    raise typer.Exit(code)


def _order_of(plan: NodePlan) -> FleetOrder:
    """What a fleet shall do, with the matrix as it is here."""
    from qualify.cards.load import load_matrix
    from qualify.fleet.drive import FleetOrder
    from qualify.fleet.inventory import kind_of
    from qualify.fleet.shares import cells_to_share

    kind_of(plan.device)
    loaded = load_matrix(plan.matrix, tuple(map(Path, plan.cards)), {})
    where = str(loaded.path.resolve()) if exists(Path(plan.matrix)) else plan.matrix
    plan = replace(plan, matrix=where, matrix_hash=loaded.content_hash)
    return FleetOrder(plan=plan, matrix=loaded.card.matrix, cells=cells_to_share(loaded, plan))


def _led(store: Store, order: FleetOrder, engine: str, address: str, out: Path, talk: Talk, into: Typed) -> str:
    """Lead the fleet to its end; returns its id."""
    from qualify.fleet.lead import run_fleet, spool_in

    log = log_of(quiet=talk == "quiet")
    with spool_in(out, say, into) as spool:
        placing = _engine(engine, address)
        log(f"fleet: {placing.where}")
        return run_fleet(placing, order, store, spool, log, detail_of(talk))


def _engine(name: str, address: str) -> Any:
    """The engine, whose library is optional."""
    from qualify.errors import InfrastructureError

    try:
        from qualify.fleet.ray_engine import RayEngine
    except ImportError as error:
        raise InfrastructureError(
            f"--engine {name}: ray is not installed ({error}). Install it: pip install 'attn-qualify[fleet]'"
        ) from error
    return RayEngine(address)


def collect(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The file of JSON that the nodes were given.")],
    fleet_name: ArrayOption = "",
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for shards that are missing.")
    ] = 0.0,
    signed_by: SignedByOption = None,
    db: DbOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Join the shards of nodes without a leader into one run.

    The run is one of the whole matrix, for `gate` and `baseline`.

    Where a shard is missing, or ran on another stack than the others, nothing is joined and the exit code is 5.
    """
    from qualify.fleet.collect import collect as join
    from qualify.seal.keys import public_keys

    if plan.suffix != ".json":
        raise UsageError(f"{plan}: give the plan, the file of JSON that the nodes were given; a matrix has no shards")
    order = plan_of(str(plan))
    order = replace(order, fleet=fleet_name or order.fleet)
    check_names(order)
    keys = public_keys(signed_by) if signed_by else []
    with open_store(db, create=False) as store:
        join(store, order, log_of(quiet=quiet), wait_s=wait_s, keys=keys)
        folders = [Path(folder) for folder in order.cards]
        code = _show(store, order.fleet, folders, typed(cards=folders, db=db), as_json=as_json)
    raise typer.Exit(code)


def coverage(
    fleet_id: Annotated[
        str, typer.Argument(metavar="FLEET", help="Fleet id, a unique prefix, or `latest`.")
    ] = "latest",
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which cards of a fleet are covered, and why others are not.

    It also lists stacks, slow cards, and votes about bits.
    """
    with open_store(db, create=False) as store:
        code = _show(store, fleet_id, cards or (), typed(cards=cards, db=db), as_json=as_json)
    raise typer.Exit(code)


def _show(store: Store, fleet_id: str, cards: Sequence[Path], into: Typed, *, as_json: bool) -> int:
    from qualify.judge.fleet import coverage_of, exit_code_of

    found, votes = coverage_of(store, fleet_id, cards)
    code = exit_code_of(found, votes)
    with kept_elsewhere(f"What the fleet measured is stored: {into.command('coverage', fleet_id)}"):
        _print(store, found, votes, code, into, as_json=as_json)
    return code


def _print(store: Store, found: Coverage, votes: Sequence[Vote], code: int, into: Typed, *, as_json: bool) -> None:
    from qualify.assets import named
    from qualify.report.fleet_text import coverage_data, coverage_lines

    if as_json:
        emit_json("coverage", coverage_data(found, votes, code))
    else:
        there = (it.run_id for it in found.cards if it.run_id and not store.retention.gone(it.run_id))
        matrix = next((named(store.run(run_id).matrix_path) for run_id in there), "")
        emit("\n".join(coverage_lines(found, votes, into, matrix)))
