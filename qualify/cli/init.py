"""``qualify init``: the files of a project of one's own, by questions at a terminal or by options."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from qualify.cli import completion
from qualify.cli.shared import CardsOption, JsonOption, emit_json
from qualify.cli.terminal import emit
from qualify.errors import InfrastructureError, QualifyError, UsageError
from qualify.facts.ci import Ci
from qualify.files import is_begun, is_file, write_new
from qualify.text import one_line, shell_line, shell_word

if TYPE_CHECKING:
    from qualify.cards.config.finding import FoundModel

CLONE = "HOST/OWNER/qualify@COMMIT"
"""the address of a clone of qualify, to fill in: qualify is not on PyPI"""
PACKAGE = f"attn-qualify[run] @ git+https://{CLONE}"
"""what CI installs where --package is left out"""


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The project's folder.")] = Path(),
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="MODEL", help="A model, as `qualify check` takes it.", autocompletion=completion.models
        ),
    ] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the matrix. Default: the model's.")] = "",
    ci: Annotated[Ci | None, typer.Option("--ci", help="Which CI server gets a file. Default: github.")] = None,
    canary: Annotated[
        bool | None,
        typer.Option("--canary/--no-canary", help="A canary that runs the matrix every night. Default: yes."),
    ] = None,
    package: Annotated[
        str,
        typer.Option("--package", metavar="WHAT", help="What pip installs in CI: a wheel, or NAME @ git+https://…"),
    ] = PACKAGE,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take the default of what is left out.")] = False,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a project of your own: matrix, waivers, CI file, canary.

    At a terminal it asks for what no option says. It overwrites nothing: a second model gets a matrix and a canary of
    its own, and shares the waivers and the CI file that are there. What a killed `init` has begun is finished.
    """
    from qualify.cards.config.writing import findings_data
    from qualify.plan.starting import PIPELINES, SHARED, first_files, matrix_path

    if ci == "none" and package != PACKAGE:
        raise UsageError(f"--package {package}: --ci none writes no CI file that would install it. Leave out one")
    if not package.isprintable():
        raise UsageError(f"--package {package!r}: must be one line: it stands on a line of the CI file")
    asking = not yes and not as_json and sys.stdin.isatty()
    found = _model(model, tuple(cards or ()), asking=asking)
    called = name or (typer.prompt("Name of the matrix", found.card.model, err=True) if asking else found.card.model)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,79}", called):
        raise UsageError(f"--name {called}: must be lower-case letters, digits, dots and dashes, at most 80")
    server = ci or (_ci() if asking else "github")
    nightly = (
        canary if canary is not None else not asking or typer.confirm("Run it every night?", default=True, err=True)
    )
    files = first_files(
        found.card,
        shipped=found.shipped,
        dtype=found.dtype,
        name=called,
        ci=server,
        canary=nightly,
        package=shlex.quote(package),
    )
    there = [path for path in files if path in SHARED and is_file(folder / path)]
    kept = [path for path in there if _is_other(folder / path, files[path])]
    written = {path: text for path, text in files.items() if path not in kept}
    _write(folder, written)
    todo = _todo(folder, matrix_path(called), [*written], canary=nightly)
    pipeline = PIPELINES[server][0] if server in PIPELINES else ""
    if pipeline in kept:
        todo.insert(-1, f"have {folder / pipeline} run and gate {matrix_path(called)}, too: it is as it was")
    elif pipeline and package == PACKAGE:
        todo.insert(-1, f"write the address of your clone of qualify in place of {CLONE}: CI installs it from there")
    if as_json:
        told = {"model": found.origin, "dtype": found.dtype, "folder": str(folder), "files": [*written], "kept": kept}
        known = {"untested": list(found.untested), "findings": findings_data(found.findings)}
        emit_json("init", told | known | {"do": todo})
    else:
        lines = [f"model: {found.origin}, in {found.dtype}"]
        lines += [f"not tested: {each}" for each in found.untested]
        lines += [f"note: {each.where}: {each.detail}" for each in found.findings if each.kind != "unread"]
        lines += [*(f"wrote {one_line(str(folder / path))}" for path in written)]
        lines += [f"kept {one_line(str(folder / path))}, which was there" for path in kept]
        emit("\n".join([*lines, *(f"do: {line}" for line in todo)]))


def _model(typed: str, cards: tuple[Path, ...], *, asking: bool) -> FoundModel:
    """The model; at a terminal the question comes again until there is one.

    Raises:
        UsageError: nobody is here to answer, or --model names nothing.
    """
    from qualify.cards.config.finding import find_model

    if typed:
        return find_model(typed, cards)
    if not asking:
        raise UsageError("nobody is here to answer: give --model MODEL, for example --model Qwen/Qwen3-8B")
    while True:
        answer = typer.prompt("Model (organisation/name, a folder, a config.json or a model card)", err=True)
        try:
            return find_model(answer, cards)
        except QualifyError as error:
            typer.echo(str(error), err=True)


def _ci() -> Ci:
    """The CI server that somebody names at a terminal."""
    known = get_args(Ci)
    while True:
        answer = typer.prompt(f"CI server ({', '.join(known)})", "github", err=True)
        if found := next((each for each in known if each == answer.strip().lower()), None):
            return found  # type: ignore[no-any-return]
        typer.echo(f"{answer}: is none of {', '.join(known)}", err=True)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none. What an earlier command has begun is finished.

    Raises:
        UsageError: one of them exists already, with another text.
        InfrastructureError: one of them cannot be written.
    """
    taken = [str(folder / path) for path, text in files.items() if _is_other(folder / path, text)]
    if taken:
        there, them = ("exists", "it") if len(taken) == 1 else ("exist", "them")
        raise UsageError(
            f"{', '.join(taken)}: {there} already, so nothing was written. Remove {them}, or give another --name"
        )
    written: list[Path] = []
    made: list[Path] = []
    for path, text in files.items():
        place = folder / path
        missing, is_new = [each for each in place.parents if not each.exists()], not place.exists()
        try:
            for each in reversed(missing):
                each.mkdir()
                made.append(each)
            write_new(place, text)
        except OSError as error:
            for earlier in written:
                earlier.unlink()
            for each in reversed(made):
                each.rmdir()
            told = f"{place}: cannot be written: {error.strerror or error}. Choose another folder"
            raise InfrastructureError(told) from None
        written += [place] if is_new else []


def _is_other(place: Path, text: str) -> bool:
    """Whether something else than this text or its beginning is there.

    Raises:
        InfrastructureError: nobody may read it.
    """
    try:
        return place.exists() and not is_begun(place, text)
    except OSError as error:
        raise InfrastructureError(
            f"{place}: cannot be read: {error.strerror or error}. Choose another folder"
        ) from None


def _todo(folder: Path, matrix: str, files: list[str], *, canary: bool) -> list[str]:
    """What to type next, in the project's folder."""
    here = "" if folder.resolve() == Path.cwd() else f"cd {shell_word(str(folder))} && "
    todo = [
        f"see what would run: {here}qualify plan {matrix}",
        f"run it on the GPU host: qualify run {matrix}",
        f"ask for the verdict: qualify gate --matrix {matrix}",
    ]
    todo += ["see when the canary fires: qualify canary list --cards ."] if canary else []
    return [*todo, f"commit what was written: git add {shell_line(files)}"]
