"""The command line: parse, call, print, exit. Results go to stdout, the log to stderr.

Everything heavy is imported inside the command that needs it, so ``qualify --help`` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify import __version__
from qualify.errors import INTERRUPTED, QUALIFIED, DeviceError, NoVerdict, QualifyError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.cards.load import LoadedKernel, LoadedMatrix
    from qualify.plan.host import Host
    from qualify.store.store import Store

app = typer.Typer(
    name="qualify",
    help="Proves which attention kernel serves each production shape, that it computes the right thing, and how fast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
db_app = typer.Typer(help="The evidence store.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(db_app, name="db")

DEFAULT_DB = ".qualify/evidence.db"


class Level(str, Enum):
    """How much evidence to gather."""

    smoke = "smoke"
    full = "full"


class DeviceOption(str, Enum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class GateFormat(str, Enum):
    """How the gate prints its verdict."""

    text = "text"
    json = "json"


class SchemaKind(str, Enum):
    """Cards that have a JSON Schema."""

    kernel = "kernel"
    matrix = "matrix"
    model = "model"


MatrixArgument = Annotated[
    str, typer.Argument(metavar="MATRIX", help="Path of a matrix, or the name of a shipped one.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, or `latest`.")]
SelectOption = Annotated[str, typer.Option("--select", metavar="GLOB", help="Only cases whose id matches.")]
KernelOption = Annotated[str, typer.Option("--kernel", metavar="NAME", help="Only this kernel.")]
CardsOption = Annotated[
    list[Path] | None, typer.Option("--cards", metavar="DIR", help="Folder with your own cards; may be repeated.")
]
DbOption = Annotated[
    str,
    typer.Option(
        "--db", metavar="URL", envvar="QUALIFY_DB", help=f"SQLAlchemy URL or SQLite path. Default: {DEFAULT_DB}"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for reports.")]


def main() -> None:
    """Entry point of ``qualify``: every known error becomes its message and its exit code."""
    try:
        code = app(standalone_mode=False)
    except QualifyError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except typer.Abort:
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has gone; there is nobody left to tell.
        os._exit(0)
    except _usage_errors() as error:
        _fail(f"{error.format_message()} Try: qualify --help", UsageError.exit_code)
    except Exception as error:
        if os.environ.get("QUALIFY_TRACEBACK"):
            raise
        text = f"{type(error).__name__}: {error}"
        _fail(f"internal error: {text}. Please report it, with the traceback that QUALIFY_TRACEBACK=1 shows.", 4)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_errors() -> Any:
    import click

    return click.ClickException


def _fail(message: str, code: int) -> None:
    print(f"qualify: {message}", file=sys.stderr)
    sys.exit(code)


def _say(text: str) -> None:
    """One line of the log."""
    print(text, file=sys.stderr)


def _print_json(kind: str, data: dict[str, Any]) -> None:
    """One strict JSON object, versioned by ``schema``; not-a-number and infinities become null."""
    from qualify.facts import codec

    print(json.dumps(codec.strict({"schema": f"qualify.{kind}/1", **data}), indent=1, allow_nan=False))


def _extra(cards: list[Path] | None) -> tuple[Path, ...]:
    """The --cards folders, also put on the import path for the entries that they name."""
    folders = tuple(cards or ())
    for folder in folders:
        absolute = str(folder.resolve())
        if absolute not in sys.path:
            sys.path.append(absolute)
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if absolute not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), absolute])
    return folders


def _open(db: str, *, create: bool) -> Store:
    from qualify.store.store import Store

    if not db:
        db = DEFAULT_DB
        if create:
            _make_default_folder()
    return Store.open(db, create=create)


def _make_default_folder() -> None:
    folder = Path(DEFAULT_DB).parent
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{folder.resolve()}: the folder for the evidence cannot be made ({error.strerror}). Choose another "
            "place with --db or QUALIFY_DB."
        ) from None


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"qualify {__version__}")
        raise typer.Exit


@app.command()
def run(
    matrix: MatrixArgument,
    select: SelectOption = "",
    kernel: KernelOption = "",
    level: Annotated[Level, typer.Option(help="smoke: seconds per kernel; full: everything.")] = Level.smoke,
    device: Annotated[DeviceOption, typer.Option(help="auto takes the GPU where there is one.")] = DeviceOption.auto,
    db: DbOption = "",
    out: OutOption = Path("out"),
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with an interrupted run.")] = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan, execute, store, judge and report a matrix. The exit code is the gate's."""
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.fleet import local
    from qualify.fleet.probe import find_host
    from qualify.fleet.progress import Show
    from qualify.plan.plan import Selection, make_plan

    extra = _extra(cards)
    loaded, kernels = load_matrix(matrix, extra), load_kernels(extra)
    host = find_host(device.value)
    selection = Selection(select=select, kernel=kernel)
    plan = make_plan(loaded, kernels, host=host, selection=selection)
    _refuse_wrong_device(loaded, plan.cases, host)
    request = local.Request(
        matrix=loaded, kernels=kernels, plan=plan, level=level.value, device=host.kind, selection=selection
    )
    with _open(db, create=not resume) as store:
        begun = store.run(store.resolve(resume)) if resume else local.new_run(request)
        _say(f"run {begun.id}: {len(plan.cases)} cases on {host}, {len(plan.refused)} refused beforehand")
        with Show() as show:
            try:
                local.execute(request, store, begun, show, resume=bool(resume))
            except KeyboardInterrupt:
                _say(f"interrupted; what was measured is stored. Go on with: {_repeat(matrix)} --resume {begun.id}")
                sys.exit(INTERRUPTED)
        code = _conclude(store, begun.id, kernels, out, as_json=as_json)
    raise typer.Exit(code)


def _repeat(matrix: str) -> str:
    """The command line as it was typed, without a --resume."""
    arguments = sys.argv[1:]
    if "--resume" in arguments:
        at = arguments.index("--resume")
        arguments = arguments[:at] + arguments[at + 2 :]
    return " ".join(["qualify", *arguments]) if matrix in arguments else f"qualify run {matrix}"


def _refuse_wrong_device(matrix: LoadedMatrix, cases: tuple[Any, ...], host: Host) -> None:
    """Nothing of the matrix can run here: that is the machine's fault, not a verdict."""
    if cases or host.kind == "cuda":
        return
    raise DeviceError(
        f"matrix {matrix.card.matrix} has no case that this machine can run: it was planned for {host}, and every case "
        f"is refused. `qualify plan {matrix.card.matrix} --here` lists the reasons, `qualify doctor` checks the "
        "machine."
    )


def _conclude(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel], out: Path, *, as_json: bool) -> int:
    """Judge a stored run, write its report, print the verdict; returns the gate's exit code."""
    from qualify.report.files import write_report
    from qualify.report.judged import judge, to_data, to_text

    judged = judge(store, run_id, kernels)
    path = write_report(out / run_id, judged.run, judged.records, judged.conclusion)
    if as_json:
        _print_json("run", to_data(judged) | {"report": str(path)})
    else:
        print(to_text(judged))
        print(f"report: {path}")
    return judged.conclusion.exit_code


@app.command()
def plan(
    matrix: MatrixArgument,
    select: SelectOption = "",
    kernel: KernelOption = "",
    here: Annotated[bool, typer.Option("--here", help="Refuse also what this machine cannot run.")] = False,
    device: Annotated[DeviceOption, typer.Option(help="Device for --here.")] = DeviceOption.auto,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every case id and every refusal with its reasons, without a device."""
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.plan.plan import Selection, make_plan

    extra = _extra(cards)
    loaded, kernels = load_matrix(matrix, extra), load_kernels(extra)
    host = None
    if here:
        from qualify.fleet.probe import find_host

        host = find_host(device.value)
    made = make_plan(loaded, kernels, host=host, selection=Selection(select=select, kernel=kernel))
    counts = {"cases": len(made.cases), "refused": len(made.refused)}
    if as_json:
        refused = [{"id": case.id, "reasons": reasons} for case, reasons in made.refused]
        cases = [case.id for case in made.cases]
        _print_json("plan", {"matrix": made.matrix, "cases": cases, "refused": refused, "counts": counts})
        return
    for case in made.cases:
        print(case.id)
    for case, reasons in made.refused:
        print(f"{case.id}  refused: {'; '.join(reasons)}")
    _say(f"{made.matrix}: {counts['cases']} cases, {counts['refused']} refused")


@app.command()
def gate(
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Run id, a unique prefix, or `latest`.")
    ] = "latest",
    format_: Annotated[GateFormat, typer.Option("--format", help="How to print the verdict.")] = GateFormat.text,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the verdict on stored evidence."""
    from qualify.cards.load import load_kernels
    from qualify.report.judged import judge, to_data, to_text

    kernels = load_kernels(_extra(cards))
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels)
    if as_json or format_ is GateFormat.json:
        _print_json("run", to_data(judged))
    else:
        print(to_text(judged))
    if judged.run.state != "completed" and judged.conclusion.exit_code == QUALIFIED:
        raise NoVerdict(f"run {judged.run.id} is {judged.run.state}, so its coverage is incomplete")
    raise typer.Exit(judged.conclusion.exit_code)


@app.command()
def report(
    run_id: RunArgument = "latest", db: DbOption = "", out: OutOption = Path("out"), cards: CardsOption = None
) -> None:
    """Write the self-contained HTML report of a stored run, and its JSON twin."""
    from qualify.cards.load import load_kernels
    from qualify.report.files import write_report
    from qualify.report.judged import judge

    kernels = load_kernels(_extra(cards))
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels)
    print(write_report(out / judged.run.id, judged.run, judged.records, judged.conclusion))


@app.command()
def kernels(cards: CardsOption = None, as_json: JsonOption = False) -> None:
    """List every kernel card: available here or not, and why."""
    from qualify.fleet.probe import list_kernels

    found = list_kernels(_extra(cards))
    if as_json:
        _print_json("kernels", {"kernels": found})
        return
    for kernel in found:
        state = f"available ({kernel['version']})" if kernel["available"] else "; ".join(kernel["reasons"])
        print(f"{kernel['kernel']:22} {state}")


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Describe the stack, and say what would make a run on it untrustworthy."""
    from qualify.facts import codec
    from qualify.fleet.doctor import examine

    found = examine()
    if as_json:
        _print_json("doctor", codec.to_data(found))
    else:
        if found.stack:
            print(f"{'device':12} {found.stack.device.name}")
            for part in found.stack.components:
                if part.kind != "binary":
                    print(f"{part.kind:12} {part.name} {part.version}")
            for name, value in found.stack.environment.items():
                print(f"{'environment':12} {name}={value}")
            print(f"{'fingerprint':12} {found.stack.fingerprint}")
        for item in found.concerns:
            print(f"{item.severity:12} {item.detail}")
    if any(item.severity == "error" for item in found.concerns):
        raise typer.Exit(DeviceError.exit_code)


@app.command("schema")
def show_schema(kind: SchemaKind) -> None:
    """Print the JSON Schema (draft-07) of a card, for editors."""
    from qualify.cards.schema import schema

    print(json.dumps(schema(kind.value), indent=2))


@db_app.command("upgrade")
def db_upgrade(db: DbOption = "") -> None:
    """Bring the evidence store's schema to this program's; opening a store does the same."""
    with _open(db, create=True) as store:
        print(f"{store.where} is up to date")
