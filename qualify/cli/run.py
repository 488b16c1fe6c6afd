"""``qualify run`` and ``qualify plan``: a matrix on a device, and what would run of it."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qualify.cli.cards import repeat_on_every_card, shared_by_cards
from qualify.cli.shared import (
    CardsOption,
    DbOption,
    DeviceOption,
    EnvironmentOption,
    JsonOption,
    KernelOption,
    LevelToRunOption,
    MatrixArgument,
    OutOption,
    QuietOption,
    SelectOption,
    Talk,
    VerboseOption,
    check_folder,
    detail_of,
    emit_json,
    fail,
    joined,
    log_of,
    open_store,
    talk_of,
    typed,
)
from qualify.cli.terminal import emit, kept_elsewhere, say
from qualify.errors import (
    INTERRUPTED,
    InfrastructureError,
    LeaseLost,
    NothingSelected,
    RunBusy,
    SigningFailed,
    StoreError,
    UsageError,
)
from qualify.text import one_line, shell_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qualify.cards.load import LoadedKernel
    from qualify.facts.run import Run
    from qualify.facts.typed import Typed
    from qualify.fleet.judges import Judges
    from qualify.fleet.request import Request
    from qualify.plan.plan import Plan
    from qualify.store.store import Store


ResumeOption = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with an interrupted run (id, prefix or `latest`): its selection, level and device are kept.",
    ),
]
MaxAgeOption = Annotated[
    str | None,
    typer.Option(
        "--max-age",
        metavar="AGE",
        help="Take over passes younger than nine tenths of AGE: a gate with the same --max-age then accepts them. "
        "Default: 24h.",
    ),
]
DevicesOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:all|cpu:N",
        help="auto takes the GPU where there is one, cuda:all every GPU of this machine.",
    ),
]
SpreadOption = Annotated[
    Literal["shard", "repeat"],
    typer.Option(help="cuda:all: shard shares the cases among equal cards; repeat runs all of them on every card."),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Run every case, also those that passed on this stack in the last 24 h.")
]


def run(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    level: LevelToRunOption = None,
    device: DevicesOption = "auto",
    spread: SpreadOption = "shard",
    db: DbOption = "",
    out: OutOption = Path("out"),
    resume: ResumeOption = "",
    environment: EnvironmentOption = None,
    fresh: FreshOption = False,
    max_age: MaxAgeOption = None,
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan, execute, store, judge and report a matrix. The exit code is the gate's."""
    from qualify.cards.environments import parse_environments
    from qualify.fleet.judges import begin_judges
    from qualify.fleet.request import Asked, make_request

    talk = talk_of(quiet=quiet, verbose=verbose)
    asked = Asked(
        matrix=matrix,
        cards=tuple(cards or ()),
        select=joined(select),
        kernel=kernel,
        level=level.value if level else None,
        device=device,
        environments=parse_environments(environment or ()),
        typed=typed(cards=cards, db=db, environments=environment),
        max_age=_reused_age(max_age, fresh=fresh),
    )
    if spread == "repeat":
        _check_repeat(device, other=bool(resume or environment))
        raise typer.Exit(repeat_on_every_card(asked, db, out, as_json=as_json))
    with ExitStack() as stack:
        store = stack.enter_context(open_store(db, create=False)) if resume else None
        begun = store.run(store.resolve(resume)) if store else None
        if begun:
            from qualify.report.files import clear_report

            clear_report(out / begun.id)  # it lacks what is still to be run
        request = make_request(shared_by_cards(asked, begun), begun)
        check_folder(out)
        # One that goes on with a run waits until nobody else does: its judges would disturb what is timed there.
        judges = None if begun else stack.enter_context(begin_judges(request))
        import_module("qualify.report.files")  # it takes a second, and the judge begins meanwhile
        store = store or stack.enter_context(open_store(db, create=True))
        run_id = execute_shown(request, store, begun, reuse=not fresh, resume=_as_typed(), talk=talk, judges=judges)
        with concluding(run_id, asked.typed):
            code = _conclude(store, run_id, request.kernels, out, asked.typed, as_json=as_json)
    raise typer.Exit(code)


def _check_repeat(device: str, *, other: bool) -> None:
    """Raises UsageError where --spread repeat is impossible: for a single card, or for a run that exists already.

    Args:
        other: whether the command line names an interrupted run or an environment.
    """
    if ":" not in device:
        raise UsageError(
            f"--spread repeat runs all cases on every card, but --device {device} uses a single card. "
            "Try: --device cuda:all"
        )
    if other:
        raise UsageError("--spread repeat makes a new run on every card: it takes no --resume and no --environment")


def _reused_age(text: str | None, *, fresh: bool) -> timedelta:
    """How old evidence may be that the run takes over."""
    from qualify.report.ages import parse_age
    from qualify.verdict.origin import MAX_AGE

    if text and fresh:
        raise UsageError(f"--max-age {text} and --fresh: give one of them. --fresh takes over no earlier result.")
    return parse_age(text) if text else MAX_AGE


def execute_shown(
    request: Request,
    store: Store,
    begun: Run | None,
    *,
    reuse: bool,
    resume: Sequence[str],
    talk: Talk,
    judges: Judges | None,
) -> str:
    """Run it under a progress display; whatever ends it early, say how to go on. Returns the run's id.

    Args:
        reuse: take over what earlier runs settled.
        resume: the words of the command that goes on with it, before its --resume.
        talk: how much is said on stderr.
        judges: that have begun for this request; None = they begin once nobody else has the run.
    """
    from qualify.cli.progress import Show
    from qualify.fleet.local import execute, new_run

    the_run = begun or new_run(request)
    if the_run.state == "completed":
        say(f"run {the_run.id} is complete: nothing is left to run")
        return the_run.id
    if talk != "quiet":
        _tell_plan(request, the_run)
    go_on = f"Go on with: {shell_line(resumed(resume, the_run.id))}"
    measured = "What was measured is stored."
    try:
        with Show(talk) as show:
            execute(
                request, store, the_run, show, resume=begun is not None, reuse=reuse and begun is None, judges=judges
            )
    except KeyboardInterrupt as interrupt:
        fail(f"interrupted. {interrupt if interrupt.args else measured} {go_on}", INTERRUPTED)
    except (LeaseLost, RunBusy, SigningFailed):
        raise
    except InfrastructureError as error:
        stored = True if begun or show.ended else _is_stored(store, the_run)
        kept = "What was stored before is kept." if isinstance(error, StoreError) else measured
        if stored is None:
            left = f"The store does not say whether it has the run. If it has, {go_on[0].lower()}{go_on[1:]}"
        else:
            left = f"{kept} {go_on}" if stored else "Nothing was measured."
        raise type(error)(f"{error}\n{left}") from error
    if request.signing_key and talk != "quiet":
        say(f"run {the_run.id}: sealed by key {request.signing_key.public.id[:12]}")
    return the_run.id


def _is_stored(store: Store, run: Run) -> bool | None:
    """Whether the store has the run; None where it cannot be asked."""
    with suppress(StoreError):
        return run.id in store.runs_of([run.id])
    return None


@contextmanager
def concluding(run_id: str, given: Typed) -> Iterator[None]:
    """Where the store or stdout fails once a run is complete, the message says how to get the verdict later."""
    stored = f"Run {run_id} is complete and stored. Judge it with: {given.command('gate', '--run', run_id)}"
    try:
        with kept_elsewhere(stored):
            yield
    except StoreError as error:
        raise type(error)(f"{error}\n{stored}") from error


def _tell_plan(request: Request, run: Run) -> None:
    """What will run, and where."""
    from qualify.report.figures import counted
    from qualify.report.verdict_text import DEMONSTRATION

    plan = request.plan
    calls = counted(len(plan.cases), "case") + (f" ({plan.calls} calls)" if plan.calls < len(plan.cases) else "")
    say(f"run {run.id}: {calls} on {request.host}, {len(plan.refused)} refused beforehand")
    if plan.matched:
        say(plan.matched)
    if request.demonstration:
        say(f"{DEMONSTRATION}: it proves nothing about a GPU")


def _as_typed() -> list[str]:
    """The words of this command line without its --resume, and without the store's password."""
    from qualify.store.address import passwordless

    arguments = [passwordless(argument) for argument in sys.argv[1:]]
    for at, argument in reversed(list(enumerate(arguments))):
        if argument == "--resume":
            del arguments[at : at + 2]
        elif argument.startswith("--resume="):
            del arguments[at]
    return ["qualify", *arguments]


def resumed(words: Sequence[str], run_id: str) -> list[str]:
    """The words of a command that goes on with a run. What follows ``--`` is no option, so --resume stands before it.

    Args:
        words: the command without its --resume.
    """
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "--resume", run_id, *words[at:]]


def _conclude(
    store: Store, run_id: str, kernels: Mapping[str, LoadedKernel], out: Path, given: Typed, *, as_json: bool
) -> int:
    """Judge a stored run, write its report, print the verdict; returns the exit code.

    It is the exit code of the gate, with one exception: a run that this command line narrowed may pass as well.
    """
    from qualify.judge.beside import beside_baseline
    from qualify.judge.judged import judge
    from qualify.judge.timed import with_performance
    from qualify.report.beside import beside_of
    from qualify.report.files import write_report
    from qualify.report.verdict_json import to_data
    from qualify.report.verdict_text import to_text

    now = datetime.now(UTC)
    judged = beside_baseline(store, judge(store, run_id, kernels, now=now, part=True, typed=given))
    judged = with_performance(store, judged, now=now, max_age=None)
    if not as_json:
        emit(to_text(judged, now))
    path = write_report(out / run_id, judged.run, judged.records, judged.conclusion, beside_of(judged))
    if as_json:
        emit_json("run", to_data(judged) | {"report": str(path)})
    else:
        emit(f"report: {one_line(str(path))}")
    return judged.conclusion.exit_code


def plan(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    here: Annotated[bool, typer.Option("--here", help="Refuse also what this machine cannot run.")] = False,
    device: Annotated[DeviceOption, typer.Option(help="Device for --here.")] = "auto",
    environment: EnvironmentOption = None,
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every kernel: its cases, and why others are refused.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List every case of a matrix, and every refusal with its reasons.

    It needs no device, and it runs nothing.
    """
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.fleet.probe import find_host
    from qualify.plan.plan import make_plan
    from qualify.plan.selection import Selection
    from qualify.report.figures import counted

    talk = talk_of(quiet=quiet, verbose=verbose)
    extra = tuple(cards or ())
    loaded, kernels = load_matrix(matrix, extra, parse_environments(environment or ())), load_kernels(extra)
    selection = Selection(select=joined(select) or "", kernel=kernel or "")
    host = find_host(device) if here else None
    given = typed(cards=cards, environments=environment)
    made = make_plan(loaded, kernels, host=host, selection=selection, typed=given)
    for note in _missing_code([kernels[name] for name in made.kernels if name in kernels], extra, here=here):
        log_of(quiet=quiet)(f"note: {note}")
    counts = {"cases": len(made.cases), "calls": made.calls, "refused": len(made.refused)}
    if as_json:
        refused = [{"id": case.id, "reasons": reasons} for case, reasons in made.refused]
        cases = [case.id for case in made.cases]
        said = {"cases": cases, "refused": refused, "counts": counts, "excluded": made.excluded}
        emit_json("plan", {"matrix": made.matrix, **said})
    else:
        for case in made.cases:
            emit(case.id)
        for case, reasons in made.refused:
            emit(f"{case.id}  refused: {'; '.join(reasons)}")
        calls = f" ({made.calls} different calls)" if made.calls < len(made.cases) else ""
        log = log_of(quiet=quiet)
        if made.matched:
            log(made.matched)
        if made.excluded:
            log(made.excluded)
        for line in _kernel_lines(made):
            detail_of(talk)(line)
        log(f"{made.matrix}: {counted(counts['cases'], 'case')}{calls}, {counts['refused']} refused")
    if not made.cases:
        where = " on this machine" if here else ""
        why = f"{counted(len(made.refused), 'case')} refused: {made.why_refused()}"
        error = NothingSelected(f"nothing of {made.matrix} can run{where}, {why}")
        if not as_json:
            raise error
        say(f"qualify: {error}")  # stdout has one object, and that is the plan
        raise typer.Exit(error.exit_code)


def _missing_code(kernels: Sequence[LoadedKernel], cards: tuple[Path, ...], *, here: bool) -> Iterator[str]:
    """A sentence for each kernel whose code is not on this machine: it may be where the run is, or is mistyped.

    Args:
        here: whether the plan is for this machine, and so has refused adapters that nothing provides.
    """
    from qualify.fleet.entries import entry_refusals
    from qualify.plan.offered import unoffered

    for place, message in () if here else unoffered(kernels):
        yield f"{place}: {message}. Correct it, unless a distribution offers it where the run is"
    for kernel in kernels:
        yield from (f"{kernel.card.kernel}: {reason}" for reason in entry_refusals(kernel, cards))


def _kernel_lines(made: Plan) -> Iterator[str]:
    """A line for every kernel of the plan: how many cases it has, and why its others are refused."""
    from qualify.report.figures import counted

    cases = Counter(case.kernel for case in made.cases)
    refused: dict[str, set[str]] = defaultdict(set)
    for case, _ in made.refused:
        refused[case.kernel].add(case.id)
    for kernel in sorted({*cases, *refused}):
        why = f", {len(refused[kernel])} refused: {made.why_refused(refused[kernel])}" if kernel in refused else ""
        yield f"{kernel}: {counted(cases[kernel], 'case')}{why}"
