"""Writes pages so that a reader never sees half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.comparison import Comparison
from qualify.facts.run import Conclusion, Record, Run
from qualify.report.beside import NOTHING, Beside
from qualify.report.context import report_context
from qualify.report.diff_page import diff_page
from qualify.report.differences import SCHEMA as DIFF_SCHEMA
from qualify.report.differences import to_data
from qualify.report.document import to_json
from qualify.report.page import render_html, render_page
from qualify.text import Document, pieces_of

READABLE = 0o644
"""a temporary file is private; a report is for everybody who may read the folder"""


def write_report(
    directory: Path, run: Run, records: Sequence[Record], conclusion: Conclusion, beside: Beside = NOTHING
) -> Path:
    """Writes ``report.json`` and ``report.html`` and returns the path of the page.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    context = report_context(run, records, conclusion, beside)
    data, html = to_json(context), render_html(context)
    page = directory / "report.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(directory / "report.json", data)
        replace_text(page, html)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InfrastructureError(
            f"the report cannot be written to {directory}: {reason}. The evidence of run {run.id} is stored. Free the "
            f"place or choose another folder: {beside.typed.command('report', run.id, '--out', 'other')}"
        ) from error
    return page


def write_diff(folder: Path, comparison: Comparison) -> Path:
    """Writes ``diff.json`` and ``diff.html`` into a folder named after the two runs, and returns the page's path.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    place = folder / f"{comparison.before.id}..{comparison.after.id}"
    data = codec.to_json({"schema": DIFF_SCHEMA, **to_data(comparison)})
    html = render_page("diff.html", diff_page(comparison))
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_text(place / "diff.json", data)
        replace_text(place / "diff.html", html)
    except OSError as error:
        raise InfrastructureError(
            f"the comparison cannot be written to {place}: {error.strerror or error}. Choose another folder with --out."
        ) from error
    return place / "diff.html"


def check_folder(directory: Path) -> None:
    """Makes the folder for reports and sees whether a file can be written there, before a run that needs it.

    Raises InfrastructureError where not.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise InfrastructureError(
            f"--out {directory}: reports cannot be written there: {error.strerror or error}. Nothing was run. Choose "
            "another folder with --out DIR."
        ) from error


def write_output(path: Path, text: Document) -> None:
    """Writes a file that a user named, whole or not at all, and its folder where that is missing.

    A pipe or a device is written to: it must not be replaced by a file. Behind a link the linked file is.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces_of(text))
        return
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent)) from None
    replace_text(target, text)


def remove_output(path: Path) -> None:
    """Removes what :func:`write_output` wrote there before, so that nobody takes it for what is written next.

    A file that cannot be removed stays: then it cannot be replaced either, and writing it says why.
    """
    with suppress(OSError):
        if path.is_file():
            path.resolve().unlink()


def replace_text(path: Path, text: Document) -> None:
    """Writes a file beside its place and renames it there, so that it is whole or absent.

    Half a character, which UTF-8 cannot hold, is written out.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces_of(text))
        temporary.chmod(READABLE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
