"""The command line: parse, call, print, exit. Results go to stdout, the log to stderr.

Everything heavy is imported inside the command that needs it, so ``qualify --help`` answers at once.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify import __version__
from qualify.errors import (
    INTERRUPTED,
    NOT_QUALIFIED,
    QUALIFIED,
    DeviceError,
    InfrastructureError,
    QualifyError,
    UsageError,
)
from qualify.fleet.terminal import emit, open_streams, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.cards.load import LoadedKernel
    from qualify.facts.run import Run
    from qualify.fleet.request import Request
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


class SelfTestLevel(str, Enum):
    """At which level faults are planted."""

    smoke = "smoke"
    full = "full"
    both = "both"


class SchemaKind(str, Enum):
    """Cards that have a JSON Schema."""

    kernel = "kernel"
    matrix = "matrix"
    model = "model"


MatrixArgument = Annotated[
    str, typer.Argument(metavar="MATRIX", help="Path of a matrix, or the name of a shipped one.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, or `latest`.")]
SelectOption = Annotated[str | None, typer.Option("--select", metavar="GLOB", help="Only cases whose id matches.")]
KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel, or these (a glob).")
]
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
ResumeOption = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with an interrupted run (id, prefix or `latest`): its selection, level and device are kept.",
    ),
]


def main() -> None:
    """Entry point of ``qualify``: every known error becomes its message and its exit code."""
    open_streams()
    try:
        code = app(standalone_mode=False, prog_name="qualify")
    except QualifyError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the help has gone; there is nobody left to tell.
        os._exit(0)
    except _usage_errors() as error:
        _refuse_command_line(error)
    except Exception as error:
        if os.environ.get("QUALIFY_TRACEBACK"):
            raise
        text = f"{type(error).__name__}: {error}"
        _fail(f"internal error: {text}. Please report it, with the traceback that QUALIFY_TRACEBACK=1 shows.", 4)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_errors() -> Any:
    """The base of the parser's own errors; typer brings its own copy of click since 0.24, and used click before."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _refuse_command_line(error: Any) -> None:
    """What the parser says, and the command that helps; a command without its subcommand gets its help."""
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    if text.startswith("Usage:"):
        say(text)
        sys.exit(UsageError.exit_code)
    context = getattr(error, "ctx", None)
    _fail(f"{text}. Try: {context.command_path if context else 'qualify'} --help", UsageError.exit_code)


def _fail(message: str, code: int) -> None:
    say(f"qualify: {message}")
    sys.exit(code)


def _emit_json(kind: str, data: dict[str, Any]) -> None:
    """One strict JSON object, versioned by ``schema``; not-a-number and infinities become null."""
    from qualify.facts import codec

    emit(json.dumps(codec.strict({"schema": f"qualify.{kind}/1", **data}), indent=1, allow_nan=False))


def _open(db: str, *, create: bool) -> Store:
    from qualify.store.store import Store

    return Store.open(db or DEFAULT_DB, create=create)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"qualify {__version__}")
        raise typer.Exit


@app.command()
def run(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    level: Annotated[Level | None, typer.Option(help="smoke (default): seconds per kernel; full: everything.")] = None,
    device: Annotated[DeviceOption, typer.Option(help="auto takes the GPU where there is one.")] = DeviceOption.auto,
    db: DbOption = "",
    out: OutOption = Path("out"),
    resume: ResumeOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan, execute, store, judge and report a matrix. The exit code is the gate's."""
    from qualify.fleet.request import Asked, make_request
    from qualify.report.files import check_folder

    # What ends a batch job shall end it as Ctrl-C does: with everything stored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = Asked(
        matrix=matrix,
        cards=tuple(cards or ()),
        select=select,
        kernel=kernel,
        level=level.value if level else None,
        device=device.value,
    )
    with ExitStack() as stack:
        store = stack.enter_context(_open(db, create=False)) if resume else None
        begun = store.run(store.resolve(resume)) if store else None
        request = make_request(asked, begun)
        check_folder(out)
        store = store or stack.enter_context(_open(db, create=True))
        run_id = _execute(request, store, begun)
        code = _conclude(store, run_id, request.kernels, out, as_json=as_json)
    raise typer.Exit(code)


def _execute(request: Request, store: Store, begun: Run | None) -> str:
    """Run it under a progress display; whatever ends it early, say how to go on. Returns the run's id."""
    from qualify.fleet.local import execute, new_run
    from qualify.fleet.progress import Show

    plan, the_run = request.plan, begun or new_run(request)
    if the_run.state == "completed":
        say(f"run {the_run.id} is complete: nothing is left to run")
        return the_run.id
    calls = f"{len(plan.cases)} cases" + (f" ({plan.calls} calls)" if plan.calls < len(plan.cases) else "")
    say(f"run {the_run.id}: {calls} on {request.host}, {len(plan.refused)} refused beforehand")
    go_on = f"What was measured is stored. Go on with: {_as_typed()} --resume {the_run.id}"
    try:
        with Show() as show:
            execute(request, store, the_run, show, resume=begun is not None)
    except KeyboardInterrupt:
        _fail(f"interrupted. {go_on}", INTERRUPTED)
    except InfrastructureError as error:
        raise type(error)(f"{error}\n{go_on}") from error
    return the_run.id


def _as_typed() -> str:
    """This command line without its --resume."""
    arguments = sys.argv[1:]
    for at, argument in reversed(list(enumerate(arguments))):
        if argument == "--resume":
            del arguments[at : at + 2]
        elif argument.startswith("--resume="):
            del arguments[at]
    return shlex.join(["qualify", *arguments])


def _conclude(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel], out: Path, *, as_json: bool) -> int:
    """Judge a stored run, write its report, print the verdict; returns the gate's exit code."""
    from qualify.report.files import write_report
    from qualify.report.judged import judge, to_data, to_text

    judged = judge(store, run_id, kernels)
    if not as_json:
        emit(to_text(judged))
    path = write_report(out / run_id, judged.run, judged.records, judged.conclusion, judged.selftest)
    if as_json:
        _emit_json("run", to_data(judged) | {"report": str(path)})
    else:
        emit(f"report: {path}")
    return judged.conclusion.exit_code


@app.command()
def plan(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    here: Annotated[bool, typer.Option("--here", help="Refuse also what this machine cannot run.")] = False,
    device: Annotated[DeviceOption, typer.Option(help="Device for --here.")] = DeviceOption.auto,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every case id and every refusal with its reasons, without a device."""
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.fleet.probe import find_host
    from qualify.plan.plan import Selection, make_plan

    extra = tuple(cards or ())
    loaded, kernels = load_matrix(matrix, extra), load_kernels(extra)
    selection = Selection(select=select or "", kernel=kernel or "")
    made = make_plan(loaded, kernels, host=find_host(device.value) if here else None, selection=selection)
    counts = {"cases": len(made.cases), "calls": made.calls, "refused": len(made.refused)}
    if as_json:
        refused = [{"id": case.id, "reasons": reasons} for case, reasons in made.refused]
        cases = [case.id for case in made.cases]
        _emit_json("plan", {"matrix": made.matrix, "cases": cases, "refused": refused, "counts": counts})
        return
    for case in made.cases:
        emit(case.id)
    for case, reasons in made.refused:
        emit(f"{case.id}  refused: {'; '.join(reasons)}")
    calls = f" ({made.calls} different calls)" if made.calls < len(made.cases) else ""
    say(f"{made.matrix}: {counts['cases']} cases{calls}, {counts['refused']} refused")


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
    """Give the verdict on stored evidence. An unfinished run is never qualified."""
    from qualify.cards.load import load_kernels
    from qualify.report.judged import judge, to_data, to_text

    kernels = load_kernels(tuple(cards or ()))
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels)
    if as_json or format_ is GateFormat.json:
        _emit_json("run", to_data(judged))
    else:
        emit(to_text(judged))
    raise typer.Exit(judged.conclusion.exit_code)


@app.command()
def report(
    run_id: RunArgument = "latest",
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the self-contained HTML report of a stored run, and its JSON twin."""
    from qualify.cards.load import load_kernels
    from qualify.report.files import write_report
    from qualify.report.judged import judge

    kernels = load_kernels(tuple(cards or ()))
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels)
    path = write_report(out / judged.run.id, judged.run, judged.records, judged.conclusion, judged.selftest)
    if as_json:
        _emit_json("report", {"run": judged.run.id, "report": str(path)})
    else:
        emit(str(path))


@app.command()
def repro(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Case id: model/phase/shape/dtype/mask/kernel.")],
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Run id, prefix or `latest`. Default: newest with the case.")
    ] = "",
    shrink: Annotated[
        bool, typer.Option("--minimise", help="Shrink the workload while it fails in the same way (at most 60 trials).")
    ] = False,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a standalone Python script that repeats a failed case and exits 1 while it fails."""
    from qualify.cards.load import load_kernels
    from qualify.facts import codec
    from qualify.fleet.repro import find_wanted, reproduce

    folders = tuple(cards or ())
    kernels = load_kernels(folders)
    with _open(db, create=False) as store:
        wanted = find_wanted(store, case_id, run_id, kernels, folders)
    made = reproduce(wanted, shrink=shrink, say=say)
    if as_json:
        _emit_json("repro", codec.to_data(made))
    else:
        emit(made.script)


@app.command()
def model(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Path of a config.json, or hf://organisation/name@COMMIT.")
    ],
    matrix: Annotated[
        Path | None, typer.Option("--matrix", metavar="OUT", help="Write a matrix of the model to this new file.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What to call it. Default: after its place.")
    ] = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the attention geometry of a model from its config.json. Nothing in it is executed."""
    from qualify.cards.config.reading import read_model
    from qualify.cards.config.writing import to_data, to_lines, write_matrix
    from qualify.cards.load import model_names

    read = read_model(config, name, model_names(tuple(cards or ())))
    if matrix:
        write_matrix(read.card, matrix)
    if as_json:
        _emit_json("model", to_data(read))
        return
    for line in to_lines(read):
        emit(line)
    if matrix:
        say(f"wrote {matrix}; next: qualify plan {matrix}")


@app.command()
def kernels(cards: CardsOption = None, as_json: JsonOption = False) -> None:
    """List every kernel card: available here or not, and why."""
    from qualify.fleet.probe import list_kernels

    found = list_kernels(tuple(cards or ()))
    if as_json:
        _emit_json("kernels", {"kernels": found})
        return
    for kernel in found:
        state = f"available ({kernel['version']})" if kernel["available"] else "; ".join(kernel["reasons"])
        emit(f"{kernel['kernel']:22} {state}")


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Describe the stack, and say what would make a run on it untrustworthy."""
    from qualify.facts import codec
    from qualify.fleet.doctor import examine, to_lines

    found = examine()
    if as_json:
        _emit_json("doctor", codec.to_data(found))
    else:
        emit("\n".join(to_lines(found)))
    if any(item.severity == "error" for item in found.concerns):
        raise typer.Exit(DeviceError.exit_code)


@app.command()
def selftest(
    level: Annotated[
        SelfTestLevel, typer.Option(help="Detection is shown for each level separately.")
    ] = SelfTestLevel.both,
    runs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Correct cases that must stay silent, at least.")
    ] = 1000,
    fault: Annotated[str, typer.Option("--fault", metavar="GLOB", help="Only faults whose name matches.")] = "",
    db: DbOption = "",
    out: OutOption = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Plant faults in a simulated kernel and see which checks find them; exit 1 where one is missed."""
    from qualify.facts import codec
    from qualify.facts.case import Level as CaseLevel
    from qualify.fleet.counter import counter
    from qualify.report.files import check_folder
    from qualify.report.selftest import to_data, to_text, write_selftest
    from qualify.run.selftest.battery import Asked, chosen, run_battery

    chosen(fault)
    check_folder(out)
    levels = codec.from_data(tuple[CaseLevel, ...], ["smoke", "full"] if level is SelfTestLevel.both else [level.value])
    with _open(db, create=True) as store:
        with counter("selftest") as progress:
            result = run_battery(Asked(levels=levels, runs=runs, select=fault), progress)
        store.add_selftest(result)
    path = write_selftest(out, result)
    if as_json:
        _emit_json("selftest", to_data(result) | {"report": str(path)})
    else:
        emit(f"{to_text(result)}\nreport: {path}")
    raise typer.Exit(QUALIFIED if result.holds else NOT_QUALIFIED)


@app.command("schema")
def show_schema(kind: SchemaKind) -> None:
    """Print the JSON Schema (draft-07) of a card, for editors."""
    from qualify.cards.schema import schema

    emit(json.dumps(schema(kind.value), indent=2))


@db_app.command("upgrade")
def db_upgrade(db: DbOption = "", as_json: JsonOption = False) -> None:
    """Bring the evidence store's schema to this program's; opening a store does the same."""
    with _open(db, create=True) as store:
        where = store.where
    if as_json:
        _emit_json("db", {"store": where})
    else:
        emit(f"{where} is up to date")
