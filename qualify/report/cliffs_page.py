"""Kernel maps on a page of their own, with the file that a report takes."""

from __future__ import annotations

from pathlib import Path

from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.cliffs import KernelMaps
from qualify.report.cliffs import maps_data, maps_view
from qualify.report.page import render_page
from qualify.report.replacing import replace_text

SCHEMA = "qualify.cliffs/1"


def write_cliffs(directory: Path, found: KernelMaps) -> Path:
    """Writes the page and its JSON twin and returns the path of the page.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    html = render_page("cliffs.html", maps_view(found))
    page = directory / f"cliffs-{found.kernel}.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(page.with_suffix(".json"), codec.to_json({"schema": SCHEMA, **maps_data(found)}))
        replace_text(page, html)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InfrastructureError(
            f"the kernel map cannot be written to {directory}: {reason}. Give another folder with --out DIR."
        ) from error
    return page
