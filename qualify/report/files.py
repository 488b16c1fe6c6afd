"""Writes a report so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qualify.errors import InfrastructureError
from qualify.facts.run import Conclusion, Record, Run
from qualify.facts.selftest import SelfTest
from qualify.report.context import report_context
from qualify.report.document import to_json
from qualify.report.page import render_html

READABLE = 0o644
"""a temporary file is private; a report is for everybody who may read the folder"""


def write_report(
    directory: Path,
    run: Run,
    records: Sequence[Record],
    conclusion: Conclusion,
    selftest: SelfTest | None = None,
) -> Path:
    """Writes ``report.json`` and ``report.html`` and returns the path of the page.

    Args:
        selftest: what these checks' own detection was measured to be; None where it was not.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    context = report_context(run, records, conclusion, selftest)
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
            f"place or choose another folder: qualify report {run.id} --out DIR"
        ) from error
    return page


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


def replace_text(path: Path, text: str) -> None:
    """Writes a file beside its place and renames it there, so that it is whole or absent.

    Half a character, which UTF-8 cannot hold, is written out.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.chmod(READABLE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
