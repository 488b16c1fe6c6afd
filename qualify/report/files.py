"""Writes reports and comparisons into folders."""

from __future__ import annotations

from collections.abc import Sequence
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
from qualify.report.replacing import remove_output, replace_text

REPORT = ("report.json", "report.html")
DIFF = ("diff.json", "diff.html")


def clear_report(directory: Path) -> None:
    """Removes what an earlier command wrote of the run: where a later one fails, nobody takes it for the new page."""
    for name in REPORT:
        remove_output(directory / name)


def clear_diff(folder: Path, before: str, after: str) -> None:
    """The same for the comparison of two runs, given by their ids."""
    for name in DIFF:
        remove_output(folder / _of_two(before, after) / name)


def _of_two(before: str, after: str) -> str:
    return f"{before}..{after}"


def write_report(
    directory: Path, run: Run, records: Sequence[Record], conclusion: Conclusion, beside: Beside = NOTHING
) -> Path:
    """Writes ``report.json`` and ``report.html`` and returns the path of the page.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    context = report_context(run, records, conclusion, beside)
    data, html = to_json(context), render_html(context)
    twin, page = (directory / name for name in REPORT)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(twin, data)
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
    place = folder / _of_two(comparison.before.id, comparison.after.id)
    twin, page = (place / name for name in DIFF)
    data = codec.to_json({"schema": DIFF_SCHEMA, **to_data(comparison)})
    html = render_page("diff.html", diff_page(comparison))
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_text(twin, data)
        replace_text(page, html)
    except OSError as error:
        raise InfrastructureError(
            f"the comparison cannot be written to {place}: {error.strerror or error}. Choose another folder with --out."
        ) from error
    return page
