"""Every file with generated content, and the text that it must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from generating.accuracy import accuracy_table
from generating.calibration import calibration_table
from generating.checks import checks_table
from generating.cliffs import cliffs_table
from generating.command_help import command_help
from generating.coverage import coverage
from generating.engines import engines_table
from generating.incidents import incidents_table
from generating.kernels import kernels_table
from generating.keys import keys_tables
from generating.measured import measured_table
from generating.models import families_table, models_table
from generating.new_store import PLACE, new_store
from generating.places import ROOT
from generating.selftest import selftest_table
from qualify.cards.schema import KINDS, schema
from qualify.report.contract import gate_schema

BLOCK = re.compile(r"(<!-- generated: ([a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCKS = {
    "accuracy": accuracy_table,
    "calibration": calibration_table,
    "checks": checks_table,
    "cliffs": cliffs_table,
    "coverage": coverage,
    "engines": engines_table,
    "families": families_table,
    "incidents": incidents_table,
    "kernels": kernels_table,
    "keys": keys_tables,
    "measured": measured_table,
    "models": models_table,
    "selftest": selftest_table,
}
"""functions that make the marked blocks, by name; a block ``help COMMAND`` holds the help of a command instead"""


def documents() -> Iterator[tuple[Path, str]]:
    """(path, text) of every schema, of every page with marked blocks, and of the statements for a new store."""
    schemas = {kind: schema(kind) for kind, _ in KINDS} | {"gate": gate_schema()}
    for name, content in schemas.items():
        yield ROOT / "docs" / "schema" / f"{name}.json", json.dumps(content, indent=2) + "\n"
    yield PLACE, new_store()
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        text = path.read_text()
        if BLOCK.search(text):
            yield path, BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}{match[3]}", text)


def block(name: str) -> str:
    """The content of a marked block: the help of a command, or one of BLOCKS."""
    kind, *command = name.split()
    return command_help(command) if kind == "help" else BLOCKS[name]()
