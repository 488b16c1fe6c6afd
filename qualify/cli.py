"""The command line: parse, call, print, exit. Results go to stdout, the log to stderr.

Everything heavy is imported inside the command that needs it, so ``qualify --help`` answers at once.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify import __version__
from qualify.errors import (
    INTERRUPTED,
    NO_VERDICT,
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

    from qualify.canary.service import Options
    from qualify.cards.load import LoadedCanary, LoadedKernel
    from qualify.facts.comparison import Comparison
    from qualify.facts.run import Run
    from qualify.facts.stack import Stack
    from qualify.fleet.request import Request
    from qualify.report.attestation import Subject
    from qualify.report.judged import Judged
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

waiver_app = typer.Typer(
    help="Failures that somebody answers for, until a day.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(waiver_app, name="waiver")

baseline_app = typer.Typer(help="Evidence that somebody accepted.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(baseline_app, name="baseline")

traffic_app = typer.Typer(
    help="Which calls production makes, and how often.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(traffic_app, name="traffic")

canary_app = typer.Typer(
    help="Matrices that run by themselves, and what becomes of their verdicts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(canary_app, name="canary")

DEFAULT_DB = ".qualify/evidence.db"
DEFAULT_AGE = "24h"
DEFAULT_LEASE = "canary"


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
    junit = "junit"
    markdown = "markdown"
    github = "github"
    in_toto = "in-toto"


class SelfTestLevel(str, Enum):
    """At which level faults are planted."""

    smoke = "smoke"
    full = "full"
    both = "both"


class CliffAxis(str, Enum):
    """What is varied to find cliffs."""

    seqlen = "seqlen"
    context = "context"
    batch = "batch"
    head_dim = "head_dim"
    group = "group"
    page_size = "page_size"


class CliffPhase(str, Enum):
    """The call whose axes are varied."""

    prefill = "prefill"
    decode = "decode"


CLIFFS_ELSEWHERE = {
    ("prefill", False): {"context", "page_size"},
    ("prefill", True): {"context"},
    ("decode", False): {"seqlen", "page_size"},
    ("decode", True): {"seqlen"},
}
"""axes that a call does not have, by phase and whether it has pages"""


class SchemaKind(str, Enum):
    """What has a JSON Schema: the cards, and the JSON of the gate."""

    kernel = "kernel"
    matrix = "matrix"
    model = "model"
    waivers = "waivers"
    traffic = "traffic"
    canary = "canary"
    gate = "gate"


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
LeaseOption = Annotated[str, typer.Option("--lease", metavar="NAME", help="Replicas of one lease share the canaries.")]
NodeOption = Annotated[
    str,
    typer.Option("--node", metavar="NAME", help="Name of this machine in holds and history. Default: its host name."),
]
CanaryArgument = Annotated[str, typer.Argument(metavar="CANARY", help="Name of a canary.")]
WaiversOption = Annotated[
    Path | None,
    typer.Option("--waivers", metavar="FILE", help="Waivers to judge by, instead of the file that the matrix names."),
]
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

    emit(codec.to_json({"schema": f"qualify.{kind}/1", **data}))


def _reading_only() -> None:
    """For commands that read evidence, answer once and end: nothing that they make becomes garbage before.

    Collecting it would only look through millions of records again and again: a third of the time.
    """
    gc.disable()


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
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything: also what a run of the last 24 h passed on this stack.")
    ] = False,
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
        run_id = _execute(request, store, begun, reuse=not fresh)
        code = _conclude(store, run_id, request.kernels, out, as_json=as_json)
    raise typer.Exit(code)


def _execute(request: Request, store: Store, begun: Run | None, *, reuse: bool) -> str:
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
            execute(request, store, the_run, show, resume=begun is not None, reuse=reuse and begun is None)
    except KeyboardInterrupt:
        _fail(f"interrupted. {go_on}", INTERRUPTED)
    except InfrastructureError as error:
        raise type(error)(f"{error}\n{go_on}") from error
    return the_run.id


def _as_typed() -> str:
    """This command line without its --resume, and without the store's password."""
    from qualify.store.database import without_password

    arguments = [without_password(argument) for argument in sys.argv[1:]]
    for at, argument in reversed(list(enumerate(arguments))):
        if argument == "--resume":
            del arguments[at : at + 2]
        elif argument.startswith("--resume="):
            del arguments[at]
    return shlex.join(["qualify", *arguments])


def _conclude(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel], out: Path, *, as_json: bool) -> int:
    """Judge a stored run, write its report, print the verdict; returns the gate's exit code."""
    from qualify.report.files import write_report
    from qualify.report.judged import judge, to_data
    from qualify.report.verdict_text import to_text

    now = datetime.now(UTC)
    judged = judge(store, run_id, kernels, now=now)
    if not as_json:
        emit(to_text(judged, now))
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
        str | None, typer.Option("--run", metavar="RUN", help="Run id, a unique prefix, or `latest` (default).")
    ] = None,
    matrix: Annotated[
        str | None,
        typer.Option("--matrix", metavar="MATRIX", help="Judge a matrix on all fresh evidence that is stored."),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="AGE", help="Older evidence is stale, for example 24h (default), 7d."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack", metavar="STACK", help="With --matrix: `here`, or a fingerprint. Default: the newest run's."
        ),
    ] = None,
    level: Annotated[Level, typer.Option(help="With --matrix: evidence of this level at least.")] = Level.smoke,
    format_: Annotated[GateFormat, typer.Option("--format", help="How to print the verdict.")] = GateFormat.text,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN", help="Compare with a run, or with the accepted `baseline`."),
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject", metavar="NAME@sha256:HEX", help="Artifact of the in-toto statement; may be repeated."
        ),
    ] = None,
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the verdict on stored evidence. What is unfinished, missing or stale is never qualified."""
    from qualify.report.attestation import parse_subject

    for option, value in (
        ("--run", run_id),
        ("--matrix", matrix),
        ("--max-age", max_age),
        ("--stack", stack),
        ("--against", against),
    ):
        if value == "":
            raise UsageError(f"{option} is empty: the variable that it comes from is probably not set")
    subjects = [parse_subject(text) for text in subject or []]
    if subjects and format_ is not GateFormat.in_toto:
        raise UsageError("--subject needs --format in-toto: only that states something about artifacts")
    if run_id and matrix:
        raise UsageError("--run and --matrix: give one of them. --run judges one run, --matrix all fresh evidence.")
    if stack and not matrix:
        raise UsageError(f"--stack {stack} needs --matrix: a run has its one stack.")
    now = datetime.now(UTC)
    _reading_only()
    wanted = GateWanted(
        run=run_id or "",
        matrix=matrix or "",
        max_age=max_age or "",
        stack=stack or "",
        level=level.value,
        against=against or "",
        cards=tuple(cards or ()),
    )
    with _open(db, create=False) as store:
        judged = _judged(store, wanted, waivers, now)
    _emit_verdict(judged, GateFormat.json if as_json else format_, subjects, now)
    raise typer.Exit(judged.conclusion.exit_code)


def _emit_verdict(judged: Judged, format_: GateFormat, subjects: list[Subject], now: datetime) -> None:
    """Print the verdict in one format."""
    from qualify.facts import codec
    from qualify.report.annotations import to_github
    from qualify.report.attestation import to_statement
    from qualify.report.judged import to_data
    from qualify.report.junit import to_junit
    from qualify.report.markdown import to_markdown
    from qualify.report.verdict_text import to_text

    match format_:
        case GateFormat.text:
            emit(to_text(judged, now))
        case GateFormat.json:
            _emit_json("run", to_data(judged))
        case GateFormat.junit:
            emit(to_junit(judged))
        case GateFormat.markdown:
            emit(to_markdown(judged, now))
        case GateFormat.github:
            workspace = os.environ.get("GITHUB_WORKSPACE")
            emit(to_github(judged, now, Path(workspace) if workspace else None))
        case GateFormat.in_toto:
            emit(codec.to_json(to_statement(judged, subjects)))


@dataclass(frozen=True, kw_only=True)
class GateWanted:
    """What the gate is asked to judge, as the command line has it."""

    run: str
    matrix: str
    max_age: str
    stack: str
    level: Any
    against: str
    cards: tuple[Path, ...]


def _judged(store: Store, wanted: GateWanted, waivers: Path | None, now: datetime) -> Judged:
    """The verdict on a run, or on a matrix."""
    from qualify.cards.load import load_kernels
    from qualify.report.against import compare_with

    kernels = load_kernels(wanted.cards)
    judged = _judged_alone(store, wanted, kernels, waivers, now)
    if not wanted.against:
        return judged
    return compare_with(store, judged, wanted.against, kernels, now=now, waivers=waivers)


def _judged_alone(
    store: Store, wanted: GateWanted, kernels: Mapping[str, LoadedKernel], waivers: Path | None, now: datetime
) -> Judged:
    """The verdict without any comparison."""
    from qualify.cards.load import load_matrix
    from qualify.cards.waivers import beside, load_waivers
    from qualify.report.ages import parse_age
    from qualify.report.gathered import Fresh, gather
    from qualify.report.judged import judge

    if not wanted.matrix:
        limit = parse_age(wanted.max_age) if wanted.max_age else None
        run_id = store.resolve(wanted.run or "latest")
        return judge(store, run_id, kernels, now=now, waivers=waivers, max_age=limit)
    loaded = load_matrix(wanted.matrix, wanted.cards)
    fresh = Fresh(
        now=now,
        max_age=parse_age(wanted.max_age or DEFAULT_AGE),
        level=wanted.level,
        stack=_stack_here() if wanted.stack == "here" else wanted.stack,
    )
    named = str(waivers or (beside(loaded.path, loaded.card.waivers) if loaded.card.waivers else ""))
    items = load_waivers(waivers) if waivers else loaded.waivers
    return gather(store, loaded, kernels, fresh, waivers=items, waivers_path=named)


def _stack_here() -> Stack:
    """What this machine is."""
    from qualify.fleet.doctor import examine

    stack = examine().stack
    if stack is None:
        raise DeviceError("--stack here: this machine's stack cannot be described; `qualify doctor` says why")
    return stack


@app.command()
def report(
    run_id: RunArgument = "latest",
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the self-contained HTML report of a stored run, and its JSON twin."""
    from qualify.cards.load import load_kernels
    from qualify.report.files import write_report
    from qualify.report.judged import judge

    _reading_only()
    kernels = load_kernels(tuple(cards or ()))
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels, now=datetime.now(UTC), waivers=waivers)
    path = write_report(out / judged.run.id, judged.run, judged.records, judged.conclusion, judged.selftest)
    if as_json:
        _emit_json("report", {"run": judged.run.id, "report": str(path)})
    else:
        emit(str(path))


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Run id, prefix, `latest` or `baseline` (that of B).")],
    after: Annotated[str, typer.Argument(metavar="B", help="Run id, a unique prefix, or `latest`.")] = "latest",
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write DIR/A..B/diff.html and diff.json.")
    ] = None,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: the stack first, then verdicts, kernels, numbers and times."""
    from qualify.cards.load import load_kernels
    from qualify.report.diff_page import write_diff
    from qualify.report.differences import to_data, to_text

    _reading_only()
    kernels, now = load_kernels(tuple(cards or ())), datetime.now(UTC)
    with _open(db, create=False) as store:
        comparison = _compared(store, before, after, kernels, waivers, now)
    path = write_diff(out, comparison) if out else None
    if as_json:
        _emit_json("diff", to_data(comparison) | ({"report": str(path)} if path else {}))
    else:
        emit(to_text(comparison) + (f"\nreport: {path}" if path else ""))


def _compared(
    store: Store, before: str, after: str, kernels: Mapping[str, LoadedKernel], waivers: Path | None, now: datetime
) -> Comparison:
    """Two stored runs, judged and compared."""
    from qualify.report.against import compare_with
    from qualify.report.judged import judge

    judged = judge(store, store.resolve(after), kernels, now=now, waivers=waivers)
    compared = compare_with(store, judged, before, kernels, now=now, waivers=waivers).against
    assert compared is not None, "it was just compared"
    return compared.comparison


@app.command()
def bisect(
    before: Annotated[str, typer.Argument(metavar="A", help="The run before: id, prefix or `baseline` (that of B).")],
    after: Annotated[str, typer.Argument(metavar="B", help="The run in which something got worse.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="List the stacks to test. Needed: qualify installs no stack by itself.")
    ] = False,
    select: Annotated[str, typer.Option("--select", metavar="GLOB", help="Blame for these cases only.")] = "*",
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the fewest stacks to test to blame one component for what got worse; uses runs of them that are stored."""
    from qualify.cards.load import load_kernels
    from qualify.report.bisection import plan_bisection, to_data, to_text

    if not plan:
        raise UsageError("qualify installs no stack by itself: add --plan, and it lists the stacks to test")
    kernels, now = load_kernels(tuple(cards or ())), datetime.now(UTC)
    with _open(db, create=False) as store:
        comparison = _compared(store, before, after, kernels, waivers, now)
        made = plan_bisection(store, comparison, kernels, select=select, now=now, waivers=waivers)
    if as_json:
        _emit_json("bisect", to_data(made))
    else:
        emit(to_text(made))


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
def cliffs(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="Name of a kernel card.")],
    axis: Annotated[
        list[CliffAxis] | None, typer.Option("--axis", help="Vary only this; may be repeated. Default: all.")
    ] = None,
    phase: Annotated[CliffPhase, typer.Option(help="Of the call that is varied.")] = CliffPhase.prefill,
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the call that is varied.")] = "bf16",
    seqlen: Annotated[int, typer.Option(min=1, metavar="N", help="Keys of the call that is varied.")] = 512,
    page_size: Annotated[int, typer.Option(min=0, metavar="N", help="Keys per page; 0 = no pages.")] = 0,
    grids: Annotated[bool, typer.Option("--grids", help="Another grid of the same kernel is a cliff too.")] = False,
    limit: Annotated[int, typer.Option(min=16, metavar="N", help="Values traced on each axis at most.")] = 200,
    device: Annotated[DeviceOption, typer.Option(help="Where to run.")] = DeviceOption.auto,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the exact shapes at which a kernel's library launches something else."""
    from qualify.cards.load import load_kernels
    from qualify.cards.problems import meant
    from qualify.facts import codec
    from qualify.facts.case import Dtype
    from qualify.fleet.cliffs import Axis, Map, base_workload, find_maps
    from qualify.fleet.probe import find_host

    folders = tuple(cards or ())
    known = load_kernels(folders)
    if kernel not in known:
        raise UsageError(f"no kernel is called {kernel!r}{meant(kernel, known)}; `qualify kernels` lists them")
    card = known[kernel].card
    if dtype not in card.claims.dtypes:
        raise UsageError(f"--dtype {dtype}: {kernel} claims {', '.join(card.claims.dtypes)}")
    base = base_workload(dtype=codec.from_data(Dtype, dtype), phase=phase.value, seqlen=seqlen, page_size=page_size)
    usual = [item for item in CliffAxis if item.value not in CLIFFS_ELSEWHERE[phase.value, bool(page_size)]]
    host = find_host(device.value)
    maps = []
    paths = [str(folder.resolve()) for folder in folders]
    axes = codec.from_data(tuple[Axis, ...], [item.value for item in axis or usual])
    for found in find_maps(card, axes, base, host.kind, paths, grids=grids, limit=limit):
        maps.append(found)
        if not as_json:
            emit(f"{found.axis}: {len(found.segments) - 1} cliffs, {found.traced} values traced on {host}")
            for part in found.segments:
                emit(f"  {part.first:>7} to {part.last:<7} {'' if part.exact else '(about) '}{part.launched}")
    if as_json:
        _emit_json("cliffs", {"kernel": kernel, "device": str(host), "maps": codec.to_data(maps, list[Map])})


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
    """Print the JSON Schema (draft-07) of a card, or of the gate's JSON."""
    from qualify.cards.schema import schema
    from qualify.report.contract import gate_schema

    emit(json.dumps(gate_schema() if kind is SchemaKind.gate else schema(kind.value), indent=2))


@baseline_app.command("accept")
def baseline_accept(
    run_id: RunArgument,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who accepts it.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")],
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run that qualified the baseline of its matrix on its device model."""
    from qualify.cards.load import load_kernels
    from qualify.report.against import accepted, why_not
    from qualify.report.baselines import to_data, to_line
    from qualify.report.judged import judge

    now = datetime.now(UTC)
    with _open(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), load_kernels(tuple(cards or ())), now=now, waivers=waivers)
        baseline = accepted(store, judged, by=by, reason=reason, now=now)
    if baseline is None:
        run = judged.run.id
        say(f"qualify: run {run} cannot become a baseline: {why_not(judged)}. See: qualify gate --run {run}")
        raise typer.Exit(judged.conclusion.exit_code or NO_VERDICT)
    if as_json:
        _emit_json("baseline", to_data(baseline, current=True))
    else:
        emit(to_line(baseline, current=True))


@baseline_app.command("list")
def baseline_list(
    matrix: Annotated[str, typer.Option("--matrix", metavar="NAME", help="Only of the matrix of that name.")] = "",
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """List every acceptance, newest first; the current one of each matrix and device model is marked."""
    from qualify.report.baselines import marked, to_data, to_line

    with _open(db, create=False) as store:
        found = marked(store.baselines(matrix or None))
    if as_json:
        _emit_json("baselines", {"baselines": [to_data(item, current=current) for item, current in found]})
    else:
        emit("\n".join(to_line(item, current=current) for item, current in found) or "no baseline")


@baseline_app.command("show")
def baseline_show(
    matrix: Annotated[str, typer.Argument(metavar="NAME", help="Name of the matrix.")],
    variant: Annotated[str, typer.Option("--variant", metavar="GLOB", help="Device model, as `list` prints it.")] = "*",
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the current baselines of a matrix: who accepted what and why, and how it is judged today."""
    from qualify.cards.load import load_kernels
    from qualify.report.baselines import current_of, to_data, to_line
    from qualify.report.judged import judge
    from qualify.report.verdict_text import to_text

    now, kernels = datetime.now(UTC), load_kernels(tuple(cards or ()))
    with _open(db, create=False) as store:
        found = current_of(store, matrix, variant)
        judged = [judge(store, item.run_id, kernels, now=now, waivers=waivers) for item in found]
    if as_json:
        pairs = zip(found, judged, strict=True)
        shown = [to_data(item, current=True) | {"verdict": run.conclusion.verdict} for item, run in pairs]
        _emit_json("baselines", {"baselines": shown})
        return
    for item, run in zip(found, judged, strict=True):
        emit(f"{to_line(item, current=True)}\n{to_text(run, now)}")


@waiver_app.command("check")
def waiver_check(
    target: Annotated[str, typer.Argument(metavar="FILE|MATRIX", help="A waivers file, or a matrix that names one.")],
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of every waiver whether it is in force; exit 1 where one has expired."""
    from qualify.report.waivers import check_waivers, to_data, to_lines

    checked = check_waivers(target, tuple(cards or ()), datetime.now(UTC))
    if as_json:
        _emit_json("waivers", to_data(checked))
    else:
        emit("\n".join(to_lines(checked)))
    raise typer.Exit(NOT_QUALIFIED if checked.expired else QUALIFIED)


@traffic_app.command("import")
def traffic_import(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="CSV or JSONL, one line for each request.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new traffic file.")],
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sequences decoded together: the log does not say it.")
    ] = 1,
    page_size: Annotated[int, typer.Option(min=0, metavar="N", help="Keys per page of the cache; 0 = contiguous.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a histogram of calls from a log with the tokens of prompts and answers; a matrix names it as traffic."""
    from qualify.cards.request_log import read_log, traffic_name, write_traffic

    histogram = read_log(log)
    name = traffic_name(out)
    buckets = write_traffic(histogram, name=name, log=log.name, batch=batch, page_size=page_size, out=out)
    if as_json:
        counts = {"requests": histogram.requests, "left_out": histogram.empty, "buckets": buckets}
        _emit_json("traffic", {"traffic": name, "file": str(out), **counts})
    else:
        emit(f"{out}: {buckets} buckets from {histogram.requests} requests; in a matrix: traffic: {out}")


@canary_app.callback()
def _canary_root() -> None:
    """Say what is missing where only the base is installed."""
    from importlib.util import find_spec

    if find_spec("apscheduler") is None:
        raise InfrastructureError(
            "canaries need apscheduler, which is not installed: pip install 'attn-qualify[service]'"
        )


@canary_app.command("list")
def canary_list(
    lease: LeaseOption = DEFAULT_LEASE, db: DbOption = "", cards: CardsOption = None, as_json: JsonOption = False
) -> None:
    """List every canary: when it fires next, how it ended last, what it holds; who leads; alerts given up."""
    from qualify.canary.overview import list_canaries, to_lines
    from qualify.cards.load import load_canaries

    loaded = load_canaries(tuple(cards or ()))
    with _open(db, create=True) as store:
        data = list_canaries(store, loaded, lease)
    if as_json:
        _emit_json("canaries", data)
    else:
        emit("\n".join(to_lines(data)))


@canary_app.command("explain")
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
    with _open(db, create=True) as store:
        data = explain(store, loaded, lease)
    if as_json:
        _emit_json("canary", data)
    else:
        emit("\n".join(explain_lines(data)))


def _canary(name: str, cards: tuple[Path, ...]) -> LoadedCanary:
    """The canary of that name."""
    from qualify.cards.load import load_canaries, unknown_canary

    loaded = load_canaries(cards)
    if name not in loaded:
        raise unknown_canary(name, loaded)
    return loaded[name]


@canary_app.command("fire")
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
    with _open(db, create=True) as store:
        fire = store.canaries.ask(name, loaded.card.matrix, reason)
        if wait:
            with _open(db, create=True) as keeping:
                fire = fire_and_wait(store, keeping, fire, folders, _serving(db, node, lease, out), say)
    if as_json:
        _emit_json("fire", fire_data(fire))
    else:
        emit(fire_line(fire_data(fire)))
    raise typer.Exit(exit_code(fire) if wait else QUALIFIED)


@canary_app.command("serve")
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
    with _open(db, create=True) as store, _open(db, create=True) as keeping:
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


@app.command()
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


@db_app.command("upgrade")
def db_upgrade(db: DbOption = "", as_json: JsonOption = False) -> None:
    """Bring the evidence store's schema to this program's; opening a store does the same."""
    with _open(db, create=True) as store:
        where = store.where
    if as_json:
        _emit_json("db", {"store": where})
    else:
        emit(f"{where} is up to date")


@db_app.command("export")
def db_export(
    run_id: RunArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file, for example run.jsonl.gz.")],
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a run with all its evidence into one file, which another store can import."""
    from qualify.facts import codec

    with _open(db, create=False) as store:
        moved = store.export_run(store.resolve(run_id), out)
    if as_json:
        _emit_json("db-export", codec.to_data(moved) | {"file": str(out)})
    else:
        emit(f"{out}: run {moved.run}, {moved.cases} cases, {moved.outcomes} outcomes, sha256 {moved.sha256}")


@db_app.command("import")
def db_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `qualify db export` wrote.")],
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add the run of an exported file to the store; one that is there already stays as it is."""
    from qualify.facts import codec

    with _open(db, create=True) as store:
        moved, where = store.import_run(file), store.where
    if as_json:
        _emit_json("db-import", codec.to_data(moved) | {"store": where})
    else:
        done = "added" if moved.new else "was there already"
        emit(f"{where}: run {moved.run} {done}, {moved.cases} cases, {moved.outcomes} outcomes, sha256 {moved.sha256}")


@db_app.command("prune")
def db_prune(
    keep_days: Annotated[int, typer.Option(min=1, metavar="N", help="Keep runs that ended in the last N days.")],
    keep_last: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N runs of each matrix.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old runs with all their evidence; what a baseline or a sign-off holds stays."""
    from datetime import UTC, datetime, timedelta

    with _open(db, create=False) as store:
        where, before = store.where, datetime.now(UTC) - timedelta(days=keep_days)
        old, held = store.old_runs(before, keep_last)
        for what, some in (("would go" if dry_run else "goes", old), ("held", held)):
            for run in some:
                say(f"{what:9}{run.id}  {run.matrix}  {run.started_at:%Y-%m-%d}  {run.state}")
        if old and not (dry_run or yes) and not _confirmed(len(old), where):
            old = []
        removed = [run.id for run in old if dry_run or store.remove_run(run.id)]
    if as_json:
        kept = [run.id for run in held]
        _emit_json("db-prune", {"store": where, "dry_run": dry_run, "removed": removed, "held": kept})
    else:
        would = "would be removed" if dry_run else "removed"
        emit(f"{where}: {len(removed)} {'run' if len(removed) == 1 else 'runs'} {would}, {len(held)} held")


def _confirmed(count: int, where: str) -> bool:
    """Whether the person at the terminal says yes; where nobody sits, --yes must be on the command line."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to confirm the removal. Look at it with --dry-run, then give --yes.")
    return typer.confirm(f"Remove {count} from {where} for ever?", err=True)
