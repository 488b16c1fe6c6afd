"""``qualify gate``: one verdict on stored evidence, in every format that its readers take."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.outputs import Outputs, make_outputs
from qualify.cli.shared import (
    AgainstOption,
    CardsOption,
    DbOption,
    EnvironmentOption,
    Level,
    WaiversOption,
    open_store,
    reading_only,
    typed,
)
from qualify.errors import DeviceError, UsageError
from qualify.report.formats import FormatName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qualify.cards.load import LoadedKernel, LoadedMatrix
    from qualify.facts.stack import Stack
    from qualify.facts.typed import Typed
    from qualify.judge.judged import Judged
    from qualify.plan.code import CodeHere
    from qualify.report.formats.interface import OutputOptions
    from qualify.seal.keys import PublicKey
    from qualify.store.store import Store


DEFAULT_AGE = "24h"


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What is to be judged, as the command line has it."""

    run: str
    matrix: str
    max_age: timedelta | None
    stack: str
    level: Any
    against: str
    waivers: Path | None
    cards: tuple[Path, ...]
    environments: Mapping[str, str]
    keys: tuple[PublicKey, ...]
    require_duel: bool
    typed: Typed

    def check(self) -> None:
        """Raises UsageError where options contradict each other, and where no stack can be called so."""
        if self.run and self.matrix:
            raise UsageError("--run and --matrix: give one of them. --run judges one run, --matrix all fresh evidence.")
        if self.stack and not self.matrix:
            raise UsageError(f"--stack {self.stack} needs --matrix: a single run is judged on its own stack.")
        if self.stack and self.stack != "here" and not re.fullmatch("[0-9a-f]+", self.stack):
            raise UsageError(f"--stack {self.stack}: give here, or the hex digits of a fingerprint in lower case")
        if self.environments and not self.matrix:
            raise UsageError("--environment needs --matrix: a run has the environments that it was made with.")


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
FormatOption = Annotated[FormatName | None, typer.Option("--format", help="What goes to stdout. Default: text.")]
JunitOption = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML to this file.")]
SarifOption = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0 to this file.")
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Also write Markdown to this file.")
]
StatementOption = Annotated[
    Path | None, typer.Option("--statement", metavar="FILE", help="Also write the in-toto statement to this file.")
]
JsonFileOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="[FILE]", help="Also write JSON to this file; without FILE it is --format json."),
]
GithubOption = Annotated[
    bool,
    typer.Option("--github", help="On GitHub: annotations on stdout, Markdown in the summary, outputs of the step."),
]
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


RequireDuelOption = Annotated[
    bool,
    typer.Option("--require-duel", help="Give no verdict without a stored duel of this stack against the one before."),
]


def gate(
    run_id: RunOption = None,
    matrix: MatrixOption = None,
    max_age: AgeOption = None,
    stack: StackOption = None,
    level: LevelOption = Level.smoke,
    against: AgainstOption = None,
    format_: FormatOption = None,
    junit: JunitOption = None,
    sarif: SarifOption = None,
    markdown: MarkdownOption = None,
    statement: StatementOption = None,
    json_file: JsonFileOption = None,
    github: GithubOption = False,
    subject: SubjectOption = None,
    waivers: WaiversOption = None,
    require_signed_by: SignedByOption = None,
    sign: SignOption = False,
    require_duel: RequireDuelOption = False,
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
) -> None:
    """Give the verdict on stored evidence. What is unfinished, missing or stale is never qualified."""
    reading_only()
    from qualify.cards.environments import parse_environments
    from qualify.report.ages import parse_age
    from qualify.seal.keys import public_keys

    files = {"junit": junit, "sarif": sarif, "markdown": markdown, "in-toto": statement, "json": json_file}
    outputs = make_outputs(format_, files, db, on_github=github)
    wanted = GateOptions(
        run=run_id or "",
        matrix=matrix or "",
        max_age=parse_age(max_age) if max_age else None,
        stack=stack or "",
        level=level.value,
        against=against or "",
        waivers=waivers,
        cards=tuple(cards or ()),
        environments=parse_environments(environment or ()),
        keys=tuple(public_keys(require_signed_by)) if require_signed_by else (),
        require_duel=require_duel,
        typed=typed(cards=cards, db=db, waivers=waivers, environments=environment),
    )
    wanted.check()
    options = _options(subject or (), outputs, sign=sign)
    loaded = _matrix_of(wanted)
    with open_store(db, create=False) as store:
        judged = _judged(store, wanted, loaded, options.now)
    raise typer.Exit(outputs.write(judged, options))


def _options(subjects: Sequence[str], outputs: Outputs, *, sign: bool) -> OutputOptions:
    """What the formats need: the current time, the checkout, and the artifacts and the key of the statement."""
    from qualify.facts.artifact import parse_artifact
    from qualify.report.formats.interface import OutputOptions
    from qualify.seal.keys import needed_signing_key

    if subjects and not outputs.wants("in-toto"):
        raise UsageError("--subject needs --format in-toto or --statement FILE: only these name artifacts")
    if sign and not outputs.wants("in-toto"):
        raise UsageError("--sign needs --format in-toto or --statement FILE: only a statement is signed")
    workspace = os.environ.get("GITHUB_WORKSPACE")
    return OutputOptions(
        now=datetime.now(UTC),
        workspace=Path(workspace) if workspace else None,
        subjects=[parse_artifact("--subject", text) for text in subjects],
        key=needed_signing_key() if sign else None,
    )


def _matrix_of(wanted: GateOptions) -> LoadedMatrix | None:
    """The matrix; None for a run. It is read before the store is opened, so that its errors come first."""
    from qualify.cards.load import load_matrix

    return load_matrix(wanted.matrix, wanted.cards, wanted.environments) if wanted.matrix else None


def _judged(store: Store, wanted: GateOptions, loaded: LoadedMatrix | None, now: datetime) -> Judged:
    """The verdict on a run or on a matrix, compared where ``--against`` is given."""
    from qualify.cards.load import load_kernels
    from qualify.judge.against import compare_with
    from qualify.judge.beside import beside_baseline
    from qualify.judge.timed import with_performance
    from qualify.report.ages import parse_age

    kernels = load_kernels(wanted.cards)
    judged = _judged_matrix(store, wanted, loaded, kernels, now) if loaded else _judged_run(store, wanted, kernels, now)
    if wanted.against:
        against = wanted.against
        judged = compare_with(store, judged, against, kernels, now=now, waivers=wanted.waivers, keys=wanted.keys)
    return with_performance(
        store,
        beside_baseline(store, judged, keys=wanted.keys),
        now=now,
        max_age=wanted.max_age or (parse_age(DEFAULT_AGE) if wanted.matrix else None),
        required=wanted.require_duel,
        keys=wanted.keys,
    )


def _judged_run(store: Store, wanted: GateOptions, kernels: Mapping[str, LoadedKernel], now: datetime) -> Judged:
    """The verdict on one run; none where it was made at a lower level than is wanted."""
    from qualify.judge.judged import again, judge
    from qualify.judge.newer import newer_failure
    from qualify.verdict.gate import without_verdict
    from qualify.verdict.origin import weaker

    judged = judge(
        store,
        store.resolve(wanted.run or "latest"),
        kernels,
        now=now,
        waivers=wanted.waivers,
        max_age=wanted.max_age,
        code=_code_here(wanted, {}),
        keys=wanted.keys,
        typed=wanted.typed,
    )
    run = judged.run
    if wanted.run:
        newer = newer_failure(store, run, kernels, now=now, waivers=wanted.waivers, typed=wanted.typed)
        judged = replace(judged, notes=(*judged.notes, *newer))
    if not weaker(run.level, wanted.level):
        return judged
    return replace(
        judged,
        notes=(*judged.notes, f"run {run.id} was made at level {run.level}, below {wanted.level}"),
        conclusion=without_verdict(judged.conclusion),
        below=wanted.level,
        again=again(run, wanted.level, fresh=judged.stale or judged.future is not None),
    )


def _judged_matrix(
    store: Store, wanted: GateOptions, loaded: LoadedMatrix, kernels: Mapping[str, LoadedKernel], now: datetime
) -> Judged:
    """The verdict on a matrix, from all evidence that is fresh."""
    from qualify.cards.waivers import load_waivers
    from qualify.files import beside
    from qualify.judge.evidence import Fresh
    from qualify.judge.gathered import gather
    from qualify.report.ages import parse_age

    fresh = Fresh(
        now=now,
        max_age=wanted.max_age or parse_age(DEFAULT_AGE),
        level=wanted.level,
        code=_code_here(wanted, loaded.environments),
        stack=_stack_here(anew=wanted.level == "full") if wanted.stack == "here" else wanted.stack,
        keys=wanted.keys,
        typed=wanted.typed,
    )
    named = str(wanted.waivers or (beside(loaded.path, loaded.card.waivers) if loaded.card.waivers else ""))
    items = load_waivers(wanted.waivers, loaded.card.policy.waivers) if wanted.waivers else loaded.waivers
    return gather(store, loaded, kernels, fresh, waivers=items, waivers_path=named)


def _code_here(wanted: GateOptions, environments: Mapping[str, str]) -> CodeHere:
    """The code that evidence is compared with: with ``--stack here`` all of this machine, else the --cards folders."""
    from qualify.plan.code import code_of_cards

    here = code_of_cards(wanted.cards)
    known = None if wanted.level == "full" else here.cache
    return replace(here, cache=known, every=wanted.stack == "here", environments=environments)


def _stack_here(*, anew: bool) -> Stack:
    """The stack of this machine."""
    from qualify.fleet.doctor import examine

    stack = examine(anew=anew).stack
    if stack is None:
        raise DeviceError("--stack here: this machine's stack cannot be described; `qualify doctor` says why")
    return stack
