"""The table of calibration in docs/numerics.md: how far correct kernels stay from the limits."""

from __future__ import annotations

from collections.abc import Sequence

from generating.places import EVIDENCE, read
from generating.tables import table

FILE = EVIDENCE / "calibration-h100.json"
STATISTICS = {"E": ".2f", "R": ".2f", "G_share": ".2f", "beta_share": ".2f", "lse_rel": ".1e"}
"""shown statistics, each with the format of its numbers"""
SHOWN = (0.5, 0.99, 0.999, 1.0)
"""shown quantiles"""
HEADS = ("kernel", "dtype", "class", "calls", "E", "R", "G / limit", "\\|β\\| / limit", "LSE", "over a limit")


def calibration_table() -> str:
    """A row for each kernel and dtype, with its statistics."""
    document = read(FILE)
    places = [document["quantiles"].index(share) for share in SHOWN]
    rows = []
    for entry in document["kernels"]:
        found = entry["quantiles"]["all"]
        cells = [_cell(found.get(name), places, form) for name, form in STATISTICS.items()]
        over = entry["error"] or f"{entry['over_count']}"
        rows.append([entry["kernel"], entry["dtype"], entry["declared"], f"{entry['trials']:,}", *cells, over])
    head = f"{document['device']}, torch {document['torch']}, head_dim {document['head_dim']}.\n\n"
    return head + table(HEADS, rows)


def _cell(values: Sequence[float | None] | None, places: Sequence[int], form: str) -> str:
    if not values:
        return "–"
    picked = (values[place] for place in places)
    return " · ".join("∞" if value is None else format(value, form) for value in picked)
