"""Where the gate's one verdict goes: a format on stdout, others into files, and GitHub's summary and outputs.

::

    Judged ─┬─ files, each whole or absent      --junit F --sarif F --markdown F --statement F --json F
            ├─ stdout, one format               --format F
            └─ what GitHub's runner reads       --github: annotations, $GITHUB_STEP_SUMMARY, $GITHUB_OUTPUT

What cannot be written is said on stderr, and everything else is written all the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from qualify.cli.earlier import CARDS, DATABASE, head_of
from qualify.cli.shared import DEFAULT_DB, alone
from qualify.cli.terminal import emit, say
from qualify.errors import INFRASTRUCTURE, InfrastructureError, NoVerdict, QualifyError, UsageError
from qualify.text import Document, pieces_of, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.judge.judged import Judged
    from qualify.report.formats import FormatName, KnownFormat
    from qualify.report.formats.interface import OutputOptions


STDOUT = Path("-")
"""the file of a ``--json`` that stands alone"""


class JsonOrFile(TyperCommand):
    """A command whose ``--json`` may stand alone, as everywhere, or name a file, as ``--junit`` does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A ``--json`` without a file names stdout. The command takes only options, no other arguments."""
        lone = alone(args)
        return super().parse_args(ctx, [f"--json={STDOUT}" if at in lone else word for at, word in enumerate(args)])


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written of a verdict, as the command line asked for it."""

    stdout: FormatName
    files: Mapping[FormatName, Path]
    on_github: bool

    def wants(self, name: FormatName) -> bool:
        """Whether that format is written anywhere."""
        return self.stdout == name or name in self.files

    def write(self, judged: Judged, options: OutputOptions) -> int:
        """Write everything; returns the exit code of the command.

        It is the exit code of the verdict, unless an output is missing. Where one cannot be written, it is 4. Where a
        format cannot be made, the code of that error takes the place of 0.
        """
        from qualify.report.formats import format_named

        files = [self._file(format_named(name), path, judged, options) for name, path in self.files.items()]
        stdout = self._stdout(judged, options)
        failed = [*files, stdout, self._summary(judged, options)]
        code = _exit_code(judged, failed)
        complete = code == judged.conclusion.exit_code
        missing = _results(judged.conclusion.verdict if complete else "", code) if self.on_github else None
        code = missing.exit_code if missing else code
        for error in filter(None, (*failed, missing)):
            say(f"qualify: {error}")
        if ends := _ends(judged, code, told=stdout is None):
            say(ends)
        return code

    def _file(self, form: KnownFormat, path: Path, judged: Judged, options: OutputOptions) -> QualifyError | None:
        from qualify.report.replacing import write_output

        try:
            document = form.load()(judged, options)
            write_output(path, chain(map(visible, pieces_of(document)), "\n"))
        except NoVerdict as error:
            return NoVerdict(f"{form.option} {path} is not written: {error}")
        except OSError as error:
            return _unwritable(f"{form.option} {path}", error)
        return None

    def _stdout(self, judged: Judged, options: OutputOptions) -> QualifyError | None:
        from qualify.report.formats import format_named

        try:
            emit(format_named(self.stdout).load()(judged, options), plain=self.stdout != "text")
        except (NoVerdict, InfrastructureError) as error:
            return error
        return None

    def _summary(self, judged: Judged, options: OutputOptions) -> QualifyError | None:
        """The Markdown at the end of the summary of GitHub's job."""
        from qualify.report.formats import format_named

        if not self.on_github or not os.environ.get("GITHUB_STEP_SUMMARY"):
            return None
        document = format_named("markdown").load()(judged, options)
        return _append("GITHUB_STEP_SUMMARY", chain(pieces_of(document), "\n"))


def tell_github(message: str, code: int) -> None:
    """Tell GitHub why a gate gives no verdict, also where its command line is refused; the command ends with that."""
    from qualify.report.formats.github import problem

    emit(problem(message))
    if missing := _results("", code):
        say(f"qualify: {missing}")


def _results(verdict: str, code: int) -> QualifyError | None:
    """The outputs of GitHub's step."""
    return _append("GITHUB_OUTPUT", f"verdict={verdict}\nexit-code={code}\n")


def _append(variable: str, text: Document) -> QualifyError | None:
    """Append to the file that a variable of GitHub's runner names; an error where it cannot be written."""
    path = os.environ.get(variable, "")
    if not path:
        return None
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(map(visible, pieces_of(text)))
    except OSError as error:
        return _unwritable(f"{variable}={path}", error)
    return None


def make_outputs(stdout: FormatName | None, files: Mapping[str, Path | None], db: str, *, on_github: bool) -> Outputs:
    """The outputs that were asked for.

    Args:
        db: what ``--db`` says. No output may replace that file, and none may replace a card.
        stdout: what ``--format`` says; None where it was not given.
        files: by format, the file of its option; None where it was not given. STDOUT for JSON is ``--format json``.

    Raises:
        UsageError: two outputs would go to the same place or to a file that is read.
    """
    if files.get("json") == STDOUT:
        if stdout not in {None, "json"}:
            raise UsageError(
                f"--json and --format {stdout}: both print to stdout. Write JSON into a file, with --json FILE."
            )
        stdout, files = "json", {**files, "json": None}
    if on_github and stdout not in {None, "github"}:
        raise UsageError(
            f"--github and --format {stdout}: both print to stdout, and GitHub's runner reads annotations there. "
            "Write the other format into a file, for example with --json FILE."
        )
    chosen = _files(files, db)
    return Outputs(stdout=stdout or ("github" if on_github else "text"), files=chosen, on_github=on_github)


def check_output(option: str, path: Path, db: str, example: str, *, reader: str = "qualify", begins: str = "") -> None:
    """Refuse a file that an output must not replace: the store, a card, and what the command cannot have written.

    Args:
        option: the option that names the file.
        db: what ``--db`` says.
        example: a name for the message.
        reader: who reads the store, for the message.
        begins: how the command begins each file that it writes, in Latin-1; empty where no beginning is its own.

    Raises:
        UsageError: the file must stay.
    """
    from qualify.store.address import files_of

    place = os.path.realpath(path)
    if path == STDOUT:
        raise UsageError(f"{option} {path}: would be a file of that name. Give a file, such as {example}.")
    if CARDS & {path.suffix, Path(place).suffix} or place in files_of(db or DEFAULT_DB):
        raise UsageError(f"{option} {path}: {reader} reads that file. Give another one, such as {example}.")
    check_kind(option, path, example, begins)


def check_kind(option: str, path: Path, example: str, begins: str) -> None:
    """Raises UsageError where a file is there that does not begin as the command begins each of its own."""
    head = head_of(path)
    if head and (head.startswith(DATABASE) or not head.startswith(begins)):
        raise UsageError(
            f"{option} {path}: the file that is there is of another kind, so it stays. Give another one, such as "
            f"{example}, or remove it first."
        )


def _files(files: Mapping[str, Path | None], db: str) -> dict[FormatName, Path]:
    """The file of each format. Each has a place of its own, which is neither the store nor a card."""
    from qualify.report.formats import FORMATS

    chosen: dict[FormatName, Path] = {}
    places: dict[str, str] = {}
    for form in FORMATS:
        path = files.get(form.name)
        if path is None:
            continue
        place = os.path.realpath(path)
        check_output(form.option, path, db, "gate.json", reader="the gate")
        if (taken := places.setdefault(place, form.option)) != form.option:
            raise UsageError(f"{taken} and {form.option}: both name {path}. Give each its own file.")
        chosen[form.name] = path
    return chosen


def _unwritable(what: str, error: OSError) -> InfrastructureError:
    reason = error.strerror or str(error)
    return InfrastructureError(f"{what} cannot be written: {reason}. Free the place, or give another file.")


def _exit_code(judged: Judged, failed: list[QualifyError | None]) -> int:
    missing = [error.exit_code for error in failed if error]
    if INFRASTRUCTURE in missing:
        return INFRASTRUCTURE
    return judged.conclusion.exit_code or max(missing, default=0)


def _ends(judged: Judged, code: int, *, told: bool) -> str:
    """The verdict, where stdout does not tell it, and what became of its exit code.

    Args:
        told: whether stdout has the verdict.
    """
    from qualify.report.verdict_text import DEMONSTRATION, WORDS

    conclusion = judged.conclusion
    if told and code == conclusion.exit_code:
        return ""
    verdict = f"a {DEMONSTRATION}" if conclusion.demonstration else WORDS[conclusion.verdict]
    ends = f"; the gate ends with exit {code}" if code != conclusion.exit_code else ""
    return f"The verdict is {verdict}, exit {conclusion.exit_code}{ends}."
