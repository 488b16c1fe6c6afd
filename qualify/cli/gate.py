"""``qualify gate``: the verdict on stored evidence, in the format that its reader takes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.shared import (
    AgainstOption,
    CardsOption,
    DbOption,
    EnvironmentOption,
    JsonOption,
    Level,
    WaiversOption,
    emit_json,
    given,
    open_store,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit
from qualify.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.cards.load import LoadedKernel
    from qualify.facts.artifact import Artifact
    from qualify.facts.stack import Stack
    from qualify.facts.typed import Typed
    from qualify.judge.judged import Judged
    from qualify.plan.code import CodeHere
    from qualify.seal.keys import PublicKey, SigningKey
    from qualify.store.store import Store


DEFAULT_AGE = "24h"


class GateFormat(str, Enum):
    """How the gate prints its verdict."""

    text = "text"
    json = "json"
    junit = "junit"
    markdown = "markdown"
    github = "github"
    in_toto = "in-toto"


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What is to be judged, as the command line has it."""

    run: str
    matrix: str
    max_age: str
    stack: str
    level: Any
    against: str
    waivers: Path | None
    cards: tuple[Path, ...]
    environments: Mapping[str, str]
    keys: tuple[PublicKey, ...]
    typed: Typed


RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Run id, a unique prefix, or `latest` (default).")
]
MatrixOption = Annotated[
    str | None,
    typer.Option("--matrix", metavar="MATRIX", help="Judge a matrix on all fresh evidence that is stored."),
]
AgeOption = Annotated[
    str | None,
    typer.Option("--max-age", metavar="AGE", help="Older evidence is stale, for example 24h (default), 7d."),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        "--stack", metavar="STACK", help="With --matrix: `here`, or a fingerprint. Default: the newest run's."
    ),
]
LevelOption = Annotated[Level, typer.Option(help="With --matrix: evidence of this level at least.")]
FormatOption = Annotated[GateFormat, typer.Option("--format", help="How to print the verdict.")]
SubjectOption = Annotated[
    list[str] | None,
    typer.Option("--subject", metavar="NAME@sha256:HEX", help="Artifact of the in-toto statement; may be repeated."),
]
SignedByOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--require-signed-by",
        metavar="KEYS",
        help="Only evidence that one of these public keys has sealed counts: a file, or a folder; may be repeated.",
    ),
]
SignOption = Annotated[
    bool, typer.Option("--sign", help="Sign the in-toto statement with the key of QUALIFY_SIGNING_KEY.")
]


def gate(
    run_id: RunOption = None,
    matrix: MatrixOption = None,
    max_age: AgeOption = None,
    stack: StackOption = None,
    level: LevelOption = Level.smoke,
    format_: FormatOption = GateFormat.text,
    against: AgainstOption = None,
    subject: SubjectOption = None,
    waivers: WaiversOption = None,
    require_signed_by: SignedByOption = None,
    sign: SignOption = False,
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the verdict on stored evidence. What is unfinished, missing or stale is never qualified."""
    reading_only()
    from qualify.cards.environments import parse_environments
    from qualify.facts.artifact import parse_artifact
    from qualify.seal.keys import needed_signing_key, public_keys

    wanted = GateOptions(
        run=given("--run", run_id),
        matrix=given("--matrix", matrix),
        max_age=given("--max-age", max_age),
        stack=given("--stack", stack),
        level=level.value,
        against=given("--against", against),
        waivers=waivers,
        cards=tuple(cards or ()),
        environments=parse_environments(environment or ()),
        keys=tuple(public_keys(require_signed_by)) if require_signed_by else (),
        typed=typed(cards=cards, db=db, waivers=waivers, environments=environment),
    )
    subjects = [parse_artifact("--subject", text) for text in subject or []]
    if subjects and format_ is not GateFormat.in_toto:
        raise UsageError("--subject needs --format in-toto: only that states something about artifacts")
    if sign and format_ is not GateFormat.in_toto:
        raise UsageError("--sign needs --format in-toto: only a statement is signed")
    key = needed_signing_key() if sign else None
    if run_id and matrix:
        raise UsageError("--run and --matrix: give one of them. --run judges one run, --matrix all fresh evidence.")
    if stack and not matrix:
        raise UsageError(f"--stack {stack} needs --matrix: a run has its one stack.")
    if environment and not matrix:
        raise UsageError("--environment needs --matrix: a run has the environments that it was made with.")
    now = datetime.now(UTC)
    with open_store(db, create=False) as store:
        judged = _judged(store, wanted, now)
    _emit_verdict(judged, GateFormat.json if as_json else format_, subjects, key, now)
    raise typer.Exit(judged.conclusion.exit_code)


def _emit_verdict(
    judged: Judged, format_: GateFormat, subjects: list[Artifact], key: SigningKey | None, now: datetime
) -> None:
    """Print the verdict in one format."""
    match format_:
        case GateFormat.text:
            from qualify.report.verdict_text import to_text

            emit(to_text(judged, now))
        case GateFormat.json:
            from qualify.report.verdict_json import to_data

            emit_json("run", to_data(judged))
        case GateFormat.junit:
            from qualify.report.junit import to_junit

            emit(to_junit(judged))
        case GateFormat.markdown:
            from qualify.report.markdown import to_markdown

            emit(to_markdown(judged, now))
        case GateFormat.github:
            from qualify.report.annotations import to_github

            workspace = os.environ.get("GITHUB_WORKSPACE")
            emit(to_github(judged, now, Path(workspace) if workspace else None))
        case GateFormat.in_toto:
            from qualify.facts import codec
            from qualify.report.attestation import to_statement
            from qualify.seal.sealed import signed

            statement = to_statement(judged, subjects)
            emit(codec.to_json(signed(statement, key) if key else statement))


def _judged(store: Store, wanted: GateOptions, now: datetime) -> Judged:
    """The verdict on a run or on a matrix, compared where that was asked."""
    from qualify.cards.load import load_kernels
    from qualify.judge.against import compare_with
    from qualify.judge.slower import with_slower

    kernels = load_kernels(wanted.cards)
    judge_it = _judged_matrix if wanted.matrix else _judged_run
    judged = judge_it(store, wanted, kernels, now)
    if not wanted.against:
        return with_slower(store, judged)
    against = wanted.against
    return compare_with(store, judged, against, kernels, now=now, waivers=wanted.waivers, keys=wanted.keys)


def _judged_run(store: Store, wanted: GateOptions, kernels: Mapping[str, LoadedKernel], now: datetime) -> Judged:
    """The verdict on one run."""
    from qualify.judge.judged import judge
    from qualify.report.ages import parse_age

    limit = parse_age(wanted.max_age) if wanted.max_age else None
    return judge(
        store,
        store.resolve(wanted.run or "latest"),
        kernels,
        now=now,
        waivers=wanted.waivers,
        max_age=limit,
        code=_code_here(wanted, {}),
        keys=wanted.keys,
        typed=wanted.typed,
    )


def _judged_matrix(store: Store, wanted: GateOptions, kernels: Mapping[str, LoadedKernel], now: datetime) -> Judged:
    """The verdict on a matrix, from all evidence that is fresh."""
    from qualify.cards.load import load_matrix
    from qualify.cards.waivers import beside, load_waivers
    from qualify.judge.gathered import Fresh, gather
    from qualify.report.ages import parse_age

    loaded = load_matrix(wanted.matrix, wanted.cards, wanted.environments)
    fresh = Fresh(
        now=now,
        max_age=parse_age(wanted.max_age or DEFAULT_AGE),
        level=wanted.level,
        code=_code_here(wanted, loaded.environments),
        stack=_stack_here() if wanted.stack == "here" else wanted.stack,
        keys=wanted.keys,
        typed=wanted.typed,
    )
    named = str(wanted.waivers or (beside(loaded.path, loaded.card.waivers) if loaded.card.waivers else ""))
    items = load_waivers(wanted.waivers) if wanted.waivers else loaded.waivers
    return gather(store, loaded, kernels, fresh, waivers=items, waivers_path=named)


def _code_here(wanted: GateOptions, environments: Mapping[str, str]) -> CodeHere:
    """What evidence is compared with: all code of this machine where it was asked about, else the --cards folders'."""
    from qualify.assets import digest_cache
    from qualify.plan.code import CodeHere

    folders = tuple(str(folder.resolve()) for folder in wanted.cards)
    return CodeHere(folders=folders, cache=digest_cache(), every=wanted.stack == "here", environments=environments)


def _stack_here() -> Stack:
    """What this machine is."""
    from qualify.fleet.doctor import examine

    stack = examine().stack
    if stack is None:
        raise DeviceError("--stack here: this machine's stack cannot be described; `qualify doctor` says why")
    return stack
