"""Kernel maps on a page of their own, with the file that a report takes."""

from __future__ import annotations

from pathlib import Path

from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.cliffs import KernelMaps
from qualify.report.cliffs import maps_data, maps_view
from qualify.report.page import render_page
from qualify.report.replacing import remove_output, replace_text

SCHEMA = "qualify.cliffs/1"


def clear_cliffs(directory: Path, kernel: str) -> None:
    """Removes what an earlier command wrote of the kernel: a later one takes minutes, and may end without a map."""
    for page in _pages(directory, kernel):
        remove_output(page)


def _pages(directory: Path, kernel: str) -> tuple[Path, Path]:
    """The page of a kernel and its JSON twin."""
    page = directory / f"cliffs-{kernel}.html"
    return page, page.with_suffix(".json")


def write_cliffs(directory: Path, found: KernelMaps) -> Path:
    """Writes the page and its JSON twin and returns the path of the page.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    html = render_page("cliffs.html", maps_view(found))
    page, data = _pages(directory, found.kernel)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(data, codec.to_json({"schema": SCHEMA, **maps_data(found)}))
        replace_text(page, html)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InfrastructureError(
            f"the kernel map cannot be written to {directory}: {reason}. Give another folder with --out DIR."
        ) from error
    return page
