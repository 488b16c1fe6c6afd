"""``qualify run`` and ``qualify plan``: a matrix on a device, and what would run of it."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    CardsOption,
    DbOption,
    DeviceOption,
    EnvironmentOption,
    JsonOption,
    KernelOption,
    Level,
    MatrixArgument,
    OutOption,
    SelectOption,
    emit_json,
    fail,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, say
from qualify.errors import INTERRUPTED, InfrastructureError, LeaseLost, NothingSelected, RunBusy, SigningFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.cards.load import LoadedKernel
    from qualify.facts.run import Run
    from qualify.facts.typed import Typed
    from qualify.fleet.request import Request
    from qualify.store.store import Store


ResumeOption = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with an interrupted run (id, prefix or `latest`): its selection, level and device are kept.",
    ),
]


def run(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    level: Annotated[Level | None, typer.Option(help="smoke (default): seconds per kernel; full: everything.")] = None,
    device: Annotated[DeviceOption, typer.Option(help="auto takes the GPU where there is one.")] = "auto",
    db: DbOption = "",
    out: OutOption = Path("out"),
    resume: ResumeOption = "",
    environment: EnvironmentOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything: also what a run of the last 24 h passed on this stack.")
    ] = False,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan, execute, store, judge and report a matrix. The exit code is the gate's."""
    from qualify.cards.environments import parse_environments
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
        device=device,
        environments=parse_environments(environment or ()),
        typed=typed(cards=cards, db=db, environments=environment),
    )
    with ExitStack() as stack:
        store = stack.enter_context(open_store(db, create=False)) if resume else None
        begun = store.run(store.resolve(resume)) if store else None
        request = make_request(asked, begun)
        check_folder(out)
        store = store or stack.enter_context(open_store(db, create=True))
        run_id = _execute(request, store, begun, reuse=not fresh)
        code = _conclude(store, run_id, request.kernels, out, asked.typed, as_json=as_json)
    raise typer.Exit(code)


def _execute(request: Request, store: Store, begun: Run | None, *, reuse: bool) -> str:
    """Run it under a progress display; whatever ends it early, say how to go on. Returns the run's id."""
    from qualify.cli.progress import Show
    from qualify.fleet.local import execute, new_run
    from qualify.report.verdict_text import DEMONSTRATION

    plan, the_run = request.plan, begun or new_run(request)
    if the_run.state == "completed":
        say(f"run {the_run.id} is complete: nothing is left to run")
        return the_run.id
    calls = f"{len(plan.cases)} cases" + (f" ({plan.calls} calls)" if plan.calls < len(plan.cases) else "")
    say(f"run {the_run.id}: {calls} on {request.host}, {len(plan.refused)} refused beforehand")
    if request.demonstration:
        say(f"{DEMONSTRATION}: it proves nothing about a GPU")
    go_on = f"What was measured is stored. Go on with: {_as_typed()} --resume {the_run.id}"
    try:
        with Show() as show:
            execute(request, store, the_run, show, resume=begun is not None, reuse=reuse and begun is None)
    except KeyboardInterrupt:
        fail(f"interrupted. {go_on}", INTERRUPTED)
    except (LeaseLost, RunBusy, SigningFailed):
        raise
    except InfrastructureError as error:
        raise type(error)(f"{error}\n{go_on}") from error
    if request.signing_key:
        say(f"run {the_run.id}: sealed by key {request.signing_key.public.id[:12]}")
    return the_run.id


def _as_typed() -> str:
    """This command line without its --resume, and without the store's password."""
    from qualify.store.database import passwordless

    arguments = [passwordless(argument) for argument in sys.argv[1:]]
    for at, argument in reversed(list(enumerate(arguments))):
        if argument == "--resume":
            del arguments[at : at + 2]
        elif argument.startswith("--resume="):
            del arguments[at]
    return shlex.join(["qualify", *arguments])


def _conclude(
    store: Store, run_id: str, kernels: Mapping[str, LoadedKernel], out: Path, given: Typed, *, as_json: bool
) -> int:
    """Judge a stored run, write its report, print the verdict; returns the exit code.

    It is the gate's, except that what this command line itself selected may pass.
    """
    from qualify.judge.beside import beside_baseline
    from qualify.judge.judged import judge
    from qualify.report.files import write_report
    from qualify.report.verdict_json import to_data
    from qualify.report.verdict_text import to_text

    now = datetime.now(UTC)
    judged = beside_baseline(store, judge(store, run_id, kernels, now=now, part=True, typed=given))
    if not as_json:
        emit(to_text(judged, now))
    shown = (judged.selftest, judged.against, judged.slower, given, judged.weaker)
    path = write_report(out / run_id, judged.run, judged.records, judged.conclusion, *shown)
    if as_json:
        emit_json("run", to_data(judged) | {"report": str(path)})
    else:
        emit(f"report: {path}")
    return judged.conclusion.exit_code


def plan(
    matrix: MatrixArgument,
    select: SelectOption = None,
    kernel: KernelOption = None,
    here: Annotated[bool, typer.Option("--here", help="Refuse also what this machine cannot run.")] = False,
    device: Annotated[DeviceOption, typer.Option(help="Device for --here.")] = "auto",
    environment: EnvironmentOption = None,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every case id and every refusal with its reasons, without a device."""
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.fleet.probe import find_host
    from qualify.plan.plan import Selection, make_plan

    extra = tuple(cards or ())
    loaded, kernels = load_matrix(matrix, extra, parse_environments(environment or ())), load_kernels(extra)
    selection = Selection(select=select or "", kernel=kernel or "")
    host = find_host(device) if here else None
    given = typed(cards=cards, environments=environment)
    made = make_plan(loaded, kernels, host=host, selection=selection, typed=given)
    counts = {"cases": len(made.cases), "calls": made.calls, "refused": len(made.refused)}
    if as_json:
        refused = [{"id": case.id, "reasons": reasons} for case, reasons in made.refused]
        cases = [case.id for case in made.cases]
        emit_json("plan", {"matrix": made.matrix, "cases": cases, "refused": refused, "counts": counts})
    else:
        for case in made.cases:
            emit(case.id)
        for case, reasons in made.refused:
            emit(f"{case.id}  refused: {'; '.join(reasons)}")
        calls = f" ({made.calls} different calls)" if made.calls < len(made.cases) else ""
        say(f"{made.matrix}: {counts['cases']} cases{calls}, {counts['refused']} refused")
    if not made.cases:
        raise NothingSelected(
            f"nothing of {made.matrix} can run{' on this machine' if here else ''}, all {len(made.refused)} cases are "
            f"refused: {made.why_refused()}"
        )
