"""The table of docs/cliffs.md: values at which `qualify cliffs` found that a library launches another kernel."""

from __future__ import annotations

from generating.places import EVIDENCE, read
from generating.tables import table


def cliffs_table() -> str:
    """A row for each kernel, call and axis of docs/evidence/cliffs-*.json."""
    rows = []
    for path in sorted(EVIDENCE.glob("cliffs-*.json")):
        for found in read(path):
            for axis in found["maps"]:
                begins = [f"{part['first']:,}{'' if part['exact'] else ' (about)'}" for part in axis["segments"][1:]]
                span = f"{axis['segments'][0]['first']:,} to {axis['segments'][-1]['last']:,}"
                changes = ", ".join(begins) or "none"
                rows.append([f"`{found['kernel']}`", found["phase"], axis["axis"].replace("_", " "), span, changes])
    return table(["kernel", "call", "varied", "from", "values from which another kernel is launched"], rows)
