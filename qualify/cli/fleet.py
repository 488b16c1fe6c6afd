"""``qualify fleet``, ``node``, ``ingest`` and ``coverage``: the cards of one machine, and of many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qualify.cli.shared import (
    AlwaysJsonOption,
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
    detail_of,
    emit_json,
    joined,
    log_of,
    open_store,
    talk_of,
)
from qualify.cli.terminal import emit, say
from qualify.errors import QUALIFIED, UsageError

if TYPE_CHECKING:
    from qualify.facts.fleet import NodePlan
    from qualify.fleet.intake import Taken
    from qualify.seal.keys import PublicKey
    from qualify.store.store import Store

TOLD = 100
"""files between two lines of the log"""


def node(
    plan: Annotated[
        str, typer.Argument(metavar="PLAN", help="File of JSON that says what to run; or a matrix, on every GPU.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the exported runs.")] = Path("out/node"),
    select: SelectOption = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the engine calls this machine, in place of its host name.")
    ] = "",
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every case that begins.")] = False,
    _as_json: AlwaysJsonOption = False,
) -> None:
    """Run a plan on the cards of this machine. Prints the node's verdict as JSON; the runs lie in DIR as files."""
    from qualify.facts import codec
    from qualify.fleet.node import run_node

    talk = talk_of(quiet=quiet, verbose=verbose)
    order = _plan_of(plan)
    order = replace(order, select=joined(select) if select else order.select, node=name or order.node)
    found = run_node(order, out, log_of(quiet=quiet), detail_of(talk))
    emit_json("node", codec.to_data(found) | {"folder": str(out)})
    raise typer.Exit(found.exit_code)


def _plan_of(text: str) -> NodePlan:
    from pydantic import ValidationError

    from qualify.facts import codec
    from qualify.facts.fleet import NodePlan
    from qualify.files import open_regular

    if not text.endswith(".json"):
        return NodePlan(matrix=text)
    try:
        with open_regular(Path(text)) as file:
            found: NodePlan = codec.from_data(NodePlan, json.load(file))
            return found
    except OSError as error:
        raise UsageError(f"{text}: {error.strerror or error}. The name is probably mistyped.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(
            f"{text}: {place}: {first['msg']}. The fields of a plan: {', '.join(NodePlan.__dataclass_fields__)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{text}: it is no JSON ({error})") from error


def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files of `qualify node` or `db export`, or folders that hold such."),
    ],
    signed_by: SignedByOption = None,
    interim: Annotated[
        bool,
        typer.Option("--interim", help="Also files of nodes that were lost: what they had measured until then."),
    ] = False,
    db: DbOption = "",
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every file that is taken.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the runs of many files to the store. One that is there already stays; one whose seal does not fit is refused.

    One refused file makes the exit code 2; the other files are still taken. Should this end early, give the same files
    again.
    """
    from qualify.fleet.ingest import files_of
    from qualify.seal.keys import public_keys

    talk = talk_of(quiet=quiet, verbose=verbose)
    keys = public_keys(signed_by) if signed_by else []
    given = files_of(files, interim=interim)
    with open_store(db, create=True) as store:
        taken = _taken(store, given.files, keys, talk)
        where = store.where
    for path in given.unfinished:
        say(f"{path}: its node has not ended the run, so it is left out. If the node is lost, take it by --interim.")
    code = _show_taken(where, taken, given.unfinished, as_json=as_json)
    raise typer.Exit(code)


def _taken(store: Store, files: Sequence[Path], keys: Sequence[PublicKey], talk: Talk) -> list[Taken]:
    """What became of each file, in the order of the files."""
    from qualify.fleet.intake import Intake

    found: dict[Path, Taken] = {}
    with Intake(store, keys) as intake:
        for one in intake.take(files):
            found[one.file] = one
            if one.refused:
                say(one.refused)
            elif one.moved and talk == "verbose":
                say(f"{one.file}: run {one.moved.run} {'is added' if one.moved.new else 'was there already'}")
            if len(found) % TOLD == 0 and talk != "quiet":
                say(f"{len(found)} of {len(files)} files")
    return [found[file] for file in files]


def _show_taken(where: str, taken: Sequence[Taken], unfinished: Sequence[Path], *, as_json: bool) -> int:
    """Print what became of all files; returns the exit code."""
    from qualify.facts import codec
    from qualify.report.figures import counted

    moved = [one.moved for one in taken if one.moved]
    refused = {str(one.file): one.refused for one in taken if one.refused}
    new = sum(one.new for one in moved)
    if as_json:
        runs = [codec.to_data(one) for one in moved]
        left_out = [str(path) for path in unfinished]
        emit_json("ingest", {"store": where, "runs": runs, "new": new, "refused": refused, "left_out": left_out})
    else:
        old = f"{counted(len(moved) - new, 'run')} there already"
        more = f", {counted(len(unfinished), 'unfinished run')} left out" if unfinished else ""
        emit(f"{where}: {counted(new, 'run')} added, {old}, {counted(len(refused), 'file')} refused{more}")
    return UsageError.exit_code if refused else QUALIFIED


EngineOption = Annotated[
    Literal["ray"], typer.Option(help="Library that places tasks on nodes; the extra `fleet` installs it.")
]
AddressOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the Ray cluster.")]
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
    str, typer.Option(metavar="FLEET", help="Try the cards of this fleet that are not covered again.")
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
    """Run a matrix on every card of a cluster, and say which cards are covered and which disagree about bits.

    With `--spread shard` what the nodes ran makes up one run of the whole matrix, for `qualify gate` and `baseline`.
    """
    import tempfile

    from qualify.cards.load import load_matrix
    from qualify.facts.fleet import NodePlan
    from qualify.fleet.drive import FleetOrder
    from qualify.fleet.inventory import kind_of
    from qualify.fleet.lead import run_fleet
    from qualify.fleet.shares import cells_to_share
    from qualify.seal.keys import public_keys

    talk = talk_of(quiet=quiet, verbose=verbose)
    kind_of(device)
    loaded = load_matrix(matrix, tuple(cards or ()), {})
    plan = NodePlan(
        matrix=str(loaded.path.resolve()) if Path(matrix).exists() else matrix,
        matrix_hash=loaded.content_hash,
        select=joined(select),
        kernel=kernel,
        level=level.value if level else None,
        device=device,
        spread=spread,
        cards=tuple(str(folder.resolve()) for folder in cards or ()),
        deadline_s=deadline_s,
    )
    order = FleetOrder(
        plan=plan,
        matrix=loaded.card.matrix,
        least_coverage=coverage,
        start_s=start_s,
        again=again,
        cells=cells_to_share(loaded, plan),
        keys=tuple(public_keys(signed_by)) if signed_by else (),
    )
    out.mkdir(parents=True, exist_ok=True)
    with open_store(db, create=True) as store, tempfile.TemporaryDirectory(prefix="fleet-", dir=out) as spool:
        log = log_of(quiet=quiet)
        fleet_id = run_fleet(_engine(engine, address), order, store, Path(spool), log, detail_of(talk))
        code = _show(store, fleet_id, as_json=as_json)
    raise typer.Exit(code)


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


def coverage(
    fleet_id: Annotated[
        str, typer.Argument(metavar="FLEET", help="Fleet id, a unique prefix, or `latest`.")
    ] = "latest",
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say which cards of a fleet are covered and why others are not; list stacks, slow cards and votes."""
    with open_store(db, create=False) as store:
        code = _show(store, fleet_id, as_json=as_json)
    raise typer.Exit(code)


def _show(store: Store, fleet_id: str, *, as_json: bool) -> int:
    from qualify.judge.fleet import coverage_of, exit_code_of
    from qualify.report.fleet_text import coverage_data, coverage_lines

    found, votes = coverage_of(store, fleet_id)
    code = exit_code_of(found, votes)
    if as_json:
        emit_json("coverage", coverage_data(found, votes, code))
    else:
        emit("\n".join(coverage_lines(found, votes)))
    return code
