"""``qualify check``: from a model's name to the kernel that serves each phase, in about ten lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.assets import CHECKS
from qualify.cli import completion
from qualify.cli.shared import (
    CardsOption,
    DbOption,
    DeviceOption,
    JsonOption,
    Level,
    OutOption,
    QuietOption,
    Talk,
    VerboseOption,
    check_folder,
    emit_json,
    open_store,
    talk_of,
    typed,
)
from qualify.cli.terminal import columns, emit, say
from qualify.errors import DeviceError, InfrastructureError, UsageError
from qualify.facts.dtypes import USUAL, Dtype
from qualify.facts.engines import EngineName
from qualify.files import TAKEN, write_new
from qualify.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qualify.cards.config.finding import FoundModel
    from qualify.cards.load import LoadedKernel
    from qualify.facts.typed import Typed
    from qualify.fleet.judges import Judges
    from qualify.fleet.request import Request
    from qualify.judge.judged import Judged
    from qualify.plan.engines import Chosen
    from qualify.plan.host import Host
    from qualify.report.answer import CheckAnswer
    from qualify.store.store import Store

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="organisation/name on the Hugging Face hub, a folder, a config.json, or the name of a model card.",
        autocompletion=completion.models,
    ),
]
EngineOption = Annotated[
    EngineName | None, typer.Option("--engine", help="Only the kernels that this engine would use, by its names.")
]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="With --engine: the attention backend, as the engine calls it.",
        autocompletion=completion.backends,
    ),
]


@dataclass(frozen=True, kw_only=True)
class CheckAsked:
    """What shall be checked, as the command line has it."""

    model: str
    engine: EngineName | None
    backend: str
    dtype: Dtype | None
    device: str
    parallel: int | None
    save: Path | None
    cards: tuple[Path, ...]
    typed: Typed
    talk: Talk


def check(
    model: ModelArgument,
    engine: EngineOption = None,
    backend: BackendOption = "",
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Element type of queries, keys and values. Default: that of the config.json, else bf16."),
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option("--tensor-parallel", min=1, metavar="N", help="GPUs that share the heads.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep the matrix in this new file.")
    ] = None,
    level: Annotated[Level, typer.Option(help="smoke: seconds per kernel; full: everything.")] = Level.smoke,
    device: Annotated[DeviceOption, typer.Option(help="auto takes the GPU where there is one.")] = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run every case, also those that passed on this stack in the last 24 h.")
    ] = False,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say which kernel serves a model here, and whether it is correct.

    The answer names one kernel for each phase, the fastest that passed every check, and what to do next.
    """
    from qualify.cards.config.writing import phases_of
    from qualify.cli.run import concluding
    from qualify.fleet.judges import begin_judges
    from qualify.fleet.request import Asked, make_request
    from qualify.plan.checking import CHECKED, idle_masks
    from qualify.plan.engines import not_checked

    wanted = CheckAsked(
        model=model,
        engine=engine,
        backend=backend,
        dtype=dtype,
        device=device,
        parallel=tensor_parallel,
        save=save,
        cards=tuple(cards or ()),
        typed=typed(cards=cards, db=db),
        talk=talk_of(quiet=quiet, verbose=verbose),
    )
    found, host, chosen, path = _planned(wanted)
    asked = Asked(matrix=str(path), cards=wanted.cards, level=level.value, device=host.kind, typed=wanted.typed)
    request = make_request(asked)
    check_folder(out)
    with begin_judges(request) as judges, open_store(db, create=True) as store:
        answer = _answer(request, store, wanted, found, chosen, out, reuse=not fresh, judges=judges)
    elsewhere = not_checked(chosen, [phase for phase in CHECKED if phase in phases_of(found.card)])
    untested = (*found.untested, *elsewhere, idle_masks(found.card, host))
    answer = replace(answer, untested=tuple(filter(None, untested)))
    with concluding(answer.judged.run.id, wanted.typed):
        _print(answer, request, as_json=as_json)
    raise typer.Exit(answer.judged.conclusion.exit_code)


def _planned(wanted: CheckAsked) -> tuple[FoundModel, Host, list[Chosen], Path]:
    """The model, the device, what the engine would take, and the matrix on disk."""
    from qualify.cards.config.finding import find_model
    from qualify.cards.load import load_kernels
    from qualify.fleet.probe import find_host
    from qualify.plan.checking import CHECKED, check_matrix, check_parallel
    from qualify.plan.engines import unserved

    if wanted.backend and not wanted.engine:
        raise UsageError(f"--backend {wanted.backend} needs --engine: transformers, vllm or sglang")
    found, host = find_model(wanted.model, wanted.cards), find_host(wanted.device)
    if wanted.talk != "quiet":
        say(f"model: {found.origin}")
        for note in found.findings:
            if note.kind != "unread":  # the answer says that
                say(f"note: {note.where}: {note.detail}")
    if wanted.engine:
        found = _as_served(wanted, found)
    check_parallel(found.card, wanted.parallel)
    dtype = wanted.dtype or found.dtype
    if dtype != USUAL and not wanted.dtype and wanted.talk != "quiet":
        say(f"note: queries, keys and values are {dtype}, as its config.json says; --dtype takes another type")
    chosen = _of_engine(wanted, found, dtype, host) if wanted.engine else []
    kernels = load_kernels(wanted.cards)
    names = dict.fromkeys(name for each in chosen for name in each.cards)
    text = check_matrix(
        found.card,
        shipped=found.shipped,
        host=host,
        dtype=dtype,
        kernels=[kernels[name].card for name in names],
        parallel=wanted.parallel,
        phases=sorted({phase for each in chosen if each.cards for phase in each.phases}) or CHECKED,
        others=[name for name in kernels if name not in names],
        unserved=unserved(chosen),
        again=_arguments(wanted),
    )
    return found, host, chosen, _write(text, wanted.save, found.card.model)


def _as_served(wanted: CheckAsked, found: FoundModel) -> FoundModel:
    """The model with the calls that the engine makes of it; where its card has others, the log says so."""
    from qualify.facts.backends import engine_named
    from qualify.plan.engines import as_served, how_served

    assert wanted.engine, "asked only where an engine was named"
    engine = engine_named(wanted.engine)
    card = as_served(engine, found.card)
    if card is found.card:
        return found
    for told in how_served(engine, found.card) if wanted.talk != "quiet" else ():
        say(f"note: {told}")
    return replace(found, card=card, shipped=False)


def _of_engine(wanted: CheckAsked, found: FoundModel, dtype: Dtype, host: Host) -> list[Chosen]:
    """What the engine would use: with the given backend, or with each of its backends.

    Raises:
        UsageError: an unknown backend, or one that no machine could check for this model.
        DeviceError: the backend, or every one, is refused for the device of this machine.
    """
    from qualify.cards.problems import meant
    from qualify.facts.backends import engine_named
    from qualify.plan.engines import choose

    assert wanted.engine, "asked only where an engine was named"
    engine = engine_named(wanted.engine)
    known = [each.name for each in engine.backends]
    if wanted.backend and engine.backend(wanted.backend) is None:
        raise UsageError(
            f"--backend {wanted.backend}: is not in the table of {engine.title} {engine.version}"
            f"{meant(wanted.backend, known)}. It has {', '.join(known)}. Without --backend qualify compares all that "
            f"{engine.title} takes for this model."
        )
    all_ = [choose(engine, each, found.card, dtype, host) for each in engine.backends]
    if not wanted.backend:
        if not any(each.cards for each in all_):
            raise _no_backend(wanted, all_, host)
        return all_
    own = next(each for each in all_ if each.backend.name.lower() == wanted.backend.lower())
    if own.refused:
        told = f"{engine.title} {engine.version} with {own.backend.name}, {found.card.model} on {host}"
        refusal = DeviceError if own.elsewhere else UsageError
        raise refusal(f"{told}: {'; '.join(own.refused)}. {_instead(wanted, own, all_, host)}".rstrip())
    return [own]


def _no_backend(wanted: CheckAsked, all_: Sequence[Chosen], host: Host) -> DeviceError | UsageError:
    """Why nothing of an engine can be checked here: a line for each reason, with the backends that it stops."""
    engine, stopped = all_[0].engine, dict[str, list[str]]()
    for each in all_:
        stopped.setdefault("; ".join(each.refused), []).append(each.backend.name)
    text = "\n".join(
        [
            f"{engine.title} {engine.version}: no backend can be checked on {host}:",
            *(f"  {', '.join(names)}: {reason}" for reason, names in stopped.items()),
        ]
    )
    if not any(each.elsewhere for each in all_):
        return UsageError(f"{text}\nTo compare all kernels without an engine: {_again(wanted, engine=False)}")
    return DeviceError(f"{text}\n{_elsewhere(wanted, host)}".rstrip())


def _instead(wanted: CheckAsked, own: Chosen, all_: Sequence[Chosen], host: Host) -> str:
    """What can be checked in place of a backend that is refused."""
    if taken := ", ".join(each.backend.name for each in all_ if each.cards):
        return f"Here --backend can be {taken}. {_elsewhere(wanted, host) if own.elsewhere else ''}"
    if own.elsewhere:
        return f"No other backend can be checked here either. {_elsewhere(wanted, host)}"
    if not any(each.elsewhere for each in all_):
        return "No other backend can be checked for this model in this dtype either."
    return f"Without --backend qualify compares all that {own.engine.title} takes for this model."


def _elsewhere(wanted: CheckAsked, host: Host) -> str:
    """The command for a GPU host, where this machine has no GPU."""
    from qualify.facts.devices import HOST

    return f"On the GPU host: {_again(wanted)}" if host.kind == HOST else ""


def _again(wanted: CheckAsked, *, engine: bool = True) -> str:
    """The command that checks the same on another machine; or without the engine."""
    return wanted.typed.command("check", *_arguments(wanted, engine=engine))


def _arguments(wanted: CheckAsked, *, engine: bool = True) -> list[str]:
    """The model, and the options that choose what is checked of it."""
    options = {
        "--engine": wanted.engine if engine else "",
        "--backend": wanted.backend if engine else "",
        "--dtype": wanted.dtype,
        "--tensor-parallel": wanted.parallel,
    }
    return [wanted.model, *(word for option, value in options.items() if value for word in (option, str(value)))]


def _write(text: str, save: Path | None, name: str) -> Path:
    """The matrix on disk: in a new file where one was named, else in the folder of checks.

    Raises:
        UsageError: the named file exists with another text, or would be read as JSON.
        InfrastructureError: it cannot be written.
    """
    from qualify.cards.source import check_new
    from qualify.report.replacing import replace_text

    path = save or CHECKS / f"{name}.yaml"
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        (write_new if save else replace_text)(path, text)
    except FileExistsError:
        raise UsageError(f"--save {path}: {TAKEN}") from None
    except OSError as error:
        told = f"{path}: the matrix cannot be written: {error.strerror or error}. Give another place with --save"
        raise InfrastructureError(told) from None
    return path


def _answer(
    request: Request,
    store: Store,
    wanted: CheckAsked,
    found: FoundModel,
    chosen: Sequence[Chosen],
    out: Path,
    *,
    reuse: bool,
    judges: Judges,
) -> CheckAnswer:
    """Run the matrix, judge it, write its report."""
    from qualify.cards.config.writing import described
    from qualify.cli.run import concluding, execute_shown
    from qualify.facts.devices import HOST
    from qualify.judge.judged import judge
    from qualify.report.answer import CheckAnswer, lines_of, unused_of
    from qualify.report.beside import beside_of
    from qualify.report.files import write_report
    from qualify.verdict.gate import refused_by_claims

    path = str(request.matrix.path)
    go_on = wanted.typed.words("run", path)
    run_id = execute_shown(request, store, None, reuse=reuse, resume=go_on, talk=wanted.talk, judges=judges)
    with concluding(run_id, wanted.typed):
        judged = judge(store, run_id, request.kernels, now=datetime.now(UTC), typed=wanted.typed)
    page = write_report(out / run_id, judged.run, judged.records, judged.conclusion, beside_of(judged))
    answer = CheckAnswer(
        judged=judged,
        origin=found.origin,
        described=tuple(described(group) for group in found.card.groups),
        lines=lines_of(judged.records, judged.conclusion),
        unused=unused_of(judged.records),
        findings=found.findings,
        demonstration=request.device == HOST and (bool(chosen) or not refused_by_claims(judged.records)),
        engine=_engine_data(chosen),
        report=str(page),
    )
    return replace(answer, todo=tuple(_todo(answer, judged, wanted, path, request.kernels)))


def _engine_data(chosen: Sequence[Chosen]) -> dict[str, Any]:
    if not chosen:
        return {}
    engine = chosen[0].engine
    return {
        "engine": engine.name,
        "title": engine.title,
        "version": engine.version,
        "option": engine.option,
        "backends": {each.backend.name: list(each.cards) for each in chosen if each.cards},
        "other_builds": sorted({name for each in chosen for name in each.other_builds}),
        "refused": {each.backend.name: list(each.refused) for each in chosen if each.refused},
    }


def _todo(
    answer: CheckAnswer, judged: Judged, wanted: CheckAsked, path: str, kernels: Mapping[str, LoadedKernel]
) -> list[str]:
    """What to do next; every command can be pasted."""
    typed_ = wanted.typed
    todo = [
        f"look at {each.kernel}: {typed_.command('repro', each.failed[0].partition(': ')[0], '--run', judged.run.id)}"
        for line in answer.lines
        for each in line.kernels
        if each.failed
    ][:1]
    if answer.demonstration:
        return [*todo, f"this result says nothing about a GPU; run it on the GPU host: {_again(wanted)}"]
    if all(line.best is None and not any(each.passed or each.failed for each in line.kernels) for line in answer.lines):
        return ["test this model in another way: no kernel card takes a call of it, on any device (docs/models.md)"]
    waiting = [name for name in answer.unused if not kernels[name].card.environment]
    if waiting and answer.unused[waiting[0]].startswith("not installed"):
        todo.append(f"to compare more kernels: {waiting[0]} is {answer.unused[waiting[0]]}")
    return [*todo, f"for a release, gather all evidence: {typed_.command('run', path, '--level', 'full')}"]


def _print(answer: CheckAnswer, request: Request, *, as_json: bool) -> None:
    from qualify.report.answer import to_data, to_lines
    from qualify.report.verdict_json import to_data as verdict_data

    if as_json:
        emit_json("check", verdict_data(answer.judged) | to_data(answer) | {"matrix_path": str(request.matrix.path)})
        return
    if answer.demonstration:
        emit("demonstration on a CPU, at reduced shapes: it proves nothing about a GPU")
    places = f"matrix: {request.matrix.path}", f"report: {answer.report}"
    emit("\n".join([*to_lines(answer, columns()), *map(one_line, places)]))
