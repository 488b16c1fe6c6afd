"""The output formats of the gate. One entry of ``FORMATS`` and one module with ``render`` are a whole format.

::

    Judged ── text       stdout                people
           ├─ json       stdout, --json        programs
           ├─ junit      stdout, --junit       CI servers
           ├─ sarif      stdout, --sarif       code scanning
           ├─ markdown   stdout, --markdown    the summary of a job
           ├─ github     stdout, --github      annotations
           └─ in-toto    stdout, --statement   promotion

A module is imported when its format is asked for: the help needs none, and most gates print one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from qualify.report.formats.interface import Format

FormatName = Literal["text", "json", "junit", "sarif", "markdown", "github", "in-toto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFormat:
    """One output format."""

    name: FormatName
    """the word behind ``--format``"""
    module: str
    """in this package"""
    option: str = ""
    """option that writes the format into a file; empty = it goes to stdout only"""

    def load(self) -> Format:
        """The function that renders it."""
        render: Format = import_module(f"{__name__}.{self.module}").render
        return render


FORMATS: tuple[KnownFormat, ...] = (
    KnownFormat(name="text", module="text"),
    KnownFormat(name="json", module="json", option="--json"),
    KnownFormat(name="junit", module="junit", option="--junit"),
    KnownFormat(name="sarif", module="sarif", option="--sarif"),
    KnownFormat(name="markdown", module="markdown", option="--markdown"),
    KnownFormat(name="github", module="github"),
    KnownFormat(name="in-toto", module="in_toto", option="--statement"),
)


def format_named(name: FormatName) -> KnownFormat:
    """The format of that name."""
    return next(each for each in FORMATS if each.name == name)
