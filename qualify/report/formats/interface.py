"""What every output format of the gate is: a module of this package with a function ``render``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from qualify.facts.artifact import Artifact
from qualify.judge.judged import Judged
from qualify.seal.keys import SigningKey
from qualify.text import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """What formats need beside the verdict; each takes what it uses."""

    now: datetime
    """aware UTC"""
    workspace: Path | None = None
    """the checkout; formats that name files name them from there"""
    subjects: Sequence[Artifact] = ()
    """the artifacts that the statement is about"""
    key: SigningKey | None = None
    """what signs the statement; None = it is not signed"""

    def from_workspace(self, path: str) -> str:
        """The path from the checkout, where the file lies in it; else as it is."""
        if self.workspace is None:
            return path
        try:
            return Path(path).resolve().relative_to(self.workspace.resolve()).as_posix()
        except ValueError:
            return path


class Format(Protocol):
    """One output format."""

    def __call__(self, judged: Judged, options: OutputOptions) -> Document:
        """The whole document, or its pieces, without a line break at its end.

        Raises:
            NoVerdict: the format cannot say anything true about this verdict.
        """
